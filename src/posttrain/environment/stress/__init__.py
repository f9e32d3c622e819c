"""The reward stress test: what a reward pays that it should not, and what it does not pay that it should."""
