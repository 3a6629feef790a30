"""Study of output layers: tokens, adaptive softmax, and children of three trees."""
