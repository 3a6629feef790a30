"""Study of training weights: masks against hierarchies, tuned alike."""
