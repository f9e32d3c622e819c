"""The rows of the algorithm table, one module for each family."""
