"""Every detector, one module each."""

from __future__ import annotations

from posttrain.faultmap.detector import Detector
from posttrain.faultmap.detectors import (
    constant_policy,
    grader_failing,
    gradient_without_signal,
    loss_zero,
    no_group_signal,
    reward_collapse,
    reward_dead,
    reward_hacking,
)

DETECTORS: tuple[Detector, ...] = (
    reward_dead.DETECTOR,
    grader_failing.DETECTOR,
    no_group_signal.DETECTOR,
    reward_hacking.DETECTOR,
    reward_collapse.DETECTOR,
    constant_policy.DETECTOR,
    gradient_without_signal.DETECTOR,
    loss_zero.DETECTOR,
)
