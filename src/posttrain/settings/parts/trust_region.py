"""Trust regions, as data."""

from __future__ import annotations

from typing import Literal

from posttrain.settings.field import Section, setting


class TrustRegion(Section):
    """``[policy.trust_region]``: how far the policy may move on one batch."""

    kind: Literal["none", "clip"] = setting(
        "clip",
        "`clip`: no gradient once A > 0 and ratio > 1 + clip_high, or A < 0 and ratio < 1 - clip_low.",
        reason="PPO's one-sided clip, the field's default",
    )
    clip_low: float = setting(
        0.2,
        "How far below 1 the ratio may fall where the advantage is negative.",
        reason="0.2 in TRL, verl, OpenRLHF and NeMo-RL",
        ge=0.0,
        le=1.0,
    )
    clip_high: float = setting(
        0.2,
        "How far above 1 the ratio may rise where the advantage is positive.",
        reason="symmetric with clip_low; DAPO raises it to 0.28 so that rare tokens can grow",
        ge=0.0,
    )
    dual_clip: float | None = setting(
        None,
        "Bound c > 1 on the ratio where the advantage is negative: the loss there is at most -c A. Absent: none.",
        reason="off, as in the papers of these rows (verl's default is 3); with one update per batch it never acts",
        gt=1.0,
    )
