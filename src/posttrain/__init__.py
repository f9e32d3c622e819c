"""posttrain: RL post-training for language models, and what is wrong with a run."""

__version__ = "0.1.0"
