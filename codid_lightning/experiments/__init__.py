"""Many runs: matrices of experiments, hyperparameter search, and the launchers that start them."""
