"""Weights that follow a measured divergence."""

from __future__ import annotations

SLACK = 1.5
"""The weight is left alone while the divergence is within a factor of 1.5 of its target; arXiv 1707.06347."""
_SMALLEST, _LARGEST = 1e-6, 1e6


def adapted_weight(weight: float, divergence: float, target: float) -> float:
    """The next weight: doubled where the divergence exceeds 1.5 targets, halved where it is below target / 1.5.

    Held between 1e-6 and 1e6. Raises ValueError unless weight and target are positive and the divergence is finite.
    """
    if not (weight > 0 and target > 0 and divergence == divergence and abs(divergence) < float("inf")):
        raise ValueError(f"weight {weight}, target {target} and divergence {divergence} do not fit together")
    if divergence > SLACK * target:
        return min(2.0 * weight, _LARGEST)
    if divergence < target / SLACK:
        return max(weight / 2.0, _SMALLEST)
    return weight
