"""The algorithms that train on fixed data, by name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType

from posttrain.errors import InputError
from posttrain.settings.algorithms import ROWS
from posttrain.settings.rows import fixed, preference
from posttrain.settings.rows.fixed import FixedRow

FIXED_ROWS: Mapping[str, FixedRow] = MappingProxyType({row.name: row for row in (*fixed.ROWS, *preference.ROWS)})
"""Every algorithm on fixed data by name."""


def fixed_row(name: str) -> FixedRow:
    """The row of that name. Raises InputError naming the nearest one, and for one that samples its data."""
    if name in FIXED_ROWS:
        return FIXED_ROWS[name]
    if name in ROWS:
        raise InputError(
            "policy.algorithm", name, "trains on what it samples, and [data] is given", "Give [environments.NAME]."
        )
    near = difflib.get_close_matches(name, list(FIXED_ROWS), n=1, cutoff=0.4)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    raise InputError(
        "policy.algorithm", name, "no such algorithm on fixed data", f"{hint}Known: {', '.join(FIXED_ROWS)}"
    )
