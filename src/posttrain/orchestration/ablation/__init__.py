"""Ablations: runs that differ from a base in one setting, paired by seed."""
