"""Algorithms as rows of a table: which parts, and what to know before choosing one."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType

from posttrain.errors import InputError
from posttrain.settings.rows import dapo, distillation, grpo, reinforce
from posttrain.settings.rows.row import AlgorithmRow

ROWS: Mapping[str, AlgorithmRow] = MappingProxyType(
    {row.name: row for row in (*reinforce.ROWS, *grpo.ROWS, *dapo.ROWS, *distillation.ROWS)}
)
"""Every algorithm by name."""


def algorithm_row(name: str) -> AlgorithmRow:
    """The row of that name. Raises InputError naming the nearest one."""
    if name in ROWS:
        return ROWS[name]
    near = difflib.get_close_matches(name, list(ROWS), n=1, cutoff=0.4)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    raise InputError("policy.algorithm", name, "no such algorithm", f"{hint}Known: {', '.join(ROWS)}")
