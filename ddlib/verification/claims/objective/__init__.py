"""Claims about the bound, the training loss, times and weightings."""
