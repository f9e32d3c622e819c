"""A remedy in the settings of each framework, as one mapping."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from posttrain.signals.framework import Framework


def remedies(*, posttrain: str, trl: str, verl: str, prime_rl: str, openrlhf: str) -> Mapping[Framework, str]:
    """The same remedy said in the settings of five frameworks."""
    return MappingProxyType(
        {
            Framework.POSTTRAIN: posttrain,
            Framework.TRL: trl,
            Framework.VERL: verl,
            Framework.PRIME_RL: prime_rl,
            Framework.OPENRLHF: openrlhf,
        }
    )
