"""The parts of an objective as data, one module for each."""
