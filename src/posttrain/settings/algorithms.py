"""Algorithms as rows of a table: which parts, and what to know before choosing one."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType

from posttrain.errors import InputError
from posttrain.settings.rows import (
    asynchronous,
    dapo,
    distillation,
    divergence,
    group,
    grpo,
    ppo,
    reinforce,
    sequence,
    soft,
    weighted,
)
from posttrain.settings.rows.row import AlgorithmRow

_FAMILIES = (reinforce, grpo, dapo, group, ppo, sequence, weighted, divergence, asynchronous, soft, distillation)

ROWS: Mapping[str, AlgorithmRow] = MappingProxyType({row.name: row for family in _FAMILIES for row in family.ROWS})
"""Every algorithm by name."""


def algorithm_row(name: str) -> AlgorithmRow:
    """The row of that name. Raises InputError naming the nearest ones."""
    if name in ROWS:
        return ROWS[name]
    near = difflib.get_close_matches(name, list(ROWS), n=3, cutoff=0.4)
    hint = f"Did you mean {' or '.join(map(repr, near))}? " if near else ""
    raise InputError("policy.algorithm", name, "no such algorithm", f"{hint}Known: {', '.join(ROWS)}")
