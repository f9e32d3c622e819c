"""The one model that sampler and trainer both run."""
