"""Two processes at one budget, side by side: what the quickstart trains, measures and draws."""
