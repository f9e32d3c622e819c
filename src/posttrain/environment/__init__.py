"""Layer 1: tasks, rewards, verifiers. No torch."""
