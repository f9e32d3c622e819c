"""Layer 6: loop, journal, weight sync, evaluation."""
