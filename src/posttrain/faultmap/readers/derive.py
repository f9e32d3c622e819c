"""Signals that follow from others of the same log."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from posttrain.faultmap.history import Course
from posttrain.faultmap.readers.remarks import Remarks
from posttrain.signals.framework import Framework


def derive(courses: Mapping[str, Course], framework: Framework, remarks: Remarks) -> dict[str, Course]:
    """Add what can be computed exactly, and undo what a release is known to have meant otherwise."""
    found = dict(courses)
    _add_clip_fraction(found)
    if framework is Framework.TRL and "reward/std" in found and "reward/zero_variance_groups" not in found:
        # Releases that do not log frac_reward_zero_std all averaged the groups' standard deviations.
        old = found.pop("reward/std")
        found["reward/group_std_mean"] = Course("reward/group_std_mean", old.steps, old.values)
        remarks.note("`reward_std` is taken for the mean of the groups' standard deviations, as in releases this old.")
    parts = [name for name in found if name.startswith("reward/part/") and name.endswith("/mean")]
    if "reward/mean" not in found and len(parts) == 1:
        only = found[parts[0]]
        found["reward/mean"] = Course("reward/mean", only.steps, only.values)
        remarks.note(f"The log has one part of the reward and no total: `{parts[0]}` stands for both.")
    return found


def _add_clip_fraction(found: dict[str, Course]) -> None:
    low, high = found.get("policy/clip_fraction_low"), found.get("policy/clip_fraction_high")
    if "policy/clip_fraction" in found or low is None or high is None:
        return
    steps, at_low, at_high = np.intersect1d(low.steps, high.steps, assume_unique=True, return_indices=True)
    if len(steps):
        values = low.values[at_low] + high.values[at_high]
        found["policy/clip_fraction"] = Course("policy/clip_fraction", steps, values)
