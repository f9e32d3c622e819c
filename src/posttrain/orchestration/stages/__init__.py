"""Chains of runs: lineage of models, and what each stage gained and lost."""
