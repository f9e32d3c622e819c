"""Layer 3: scoring and sampler/trainer comparison."""
