"""Every detector, one module each."""

from __future__ import annotations

from posttrain.faultmap.detector import Detector
from posttrain.faultmap.detectors import (
    anchor_strength,
    clip_high,
    clip_inert,
    constant_policy,
    entropy_collapse,
    entropy_explosion,
    grader_failing,
    gradient_spike,
    gradient_without_signal,
    kl_high,
    learning_rate,
    length_explosion,
    loss_zero,
    mismatch,
    no_group_signal,
    nonfinite,
    ratio_tail,
    reward_collapse,
    reward_dead,
    reward_hacking,
    reward_shift,
    truncation,
)

DETECTORS: tuple[Detector, ...] = (
    reward_dead.DETECTOR,
    grader_failing.DETECTOR,
    reward_shift.DETECTOR,
    no_group_signal.DETECTOR,
    reward_hacking.DETECTOR,
    reward_collapse.DETECTOR,
    constant_policy.DETECTOR,
    gradient_without_signal.DETECTOR,
    loss_zero.DETECTOR,
    nonfinite.DETECTOR,
    mismatch.DETECTOR,
    truncation.DETECTOR,
    learning_rate.DETECTOR,
    anchor_strength.DETECTOR,
    kl_high.DETECTOR,
    entropy_collapse.DETECTOR,
    entropy_explosion.DETECTOR,
    length_explosion.DETECTOR,
    ratio_tail.DETECTOR,
    clip_high.DETECTOR,
    clip_inert.DETECTOR,
    gradient_spike.DETECTOR,
)
