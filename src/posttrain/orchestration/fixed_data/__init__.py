"""Training on rows of a file: preference, supervised and reward-model training."""
