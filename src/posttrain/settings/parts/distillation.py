"""On-policy distillation, as data."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from posttrain.settings.field import Section, setting


class Distillation(Section):
    """``[policy.distillation]``: what the teacher's judgement of the student's own tokens adds to the objective."""

    weight: float = setting(
        0.0, "Weight of the teacher's term; 0 needs no teacher.", reason="off unless a row distills", ge=0.0
    )
    kind: Literal["sampled", "full_vocabulary", "top_k"] = setting(
        "sampled",
        "`sampled`: the advantage of each token gains weight x (log teacher - log student), the single-sample reverse "
        "KL. `full_vocabulary`: the divergence of the whole next-token distributions is added to each token's loss. "
        "`top_k`: the same over `top_k` tokens and one bucket for all others.",
        reason="one log-prob per token is all that a teacher must give, and a clip or weight acts on it as on any "
        "advantage",
    )
    beta: float = setting(
        1.0,
        "Divergence of the two kinds with distributions: 1 reverse KL(student || teacher), 0 forward KL, between them "
        "JSD_beta.",
        reason="the reverse KL is what `sampled` estimates; TRL's GKD uses 0.5",
        ge=0.0,
        le=1.0,
    )
    top_k: int = setting(
        64, "Tokens of `top_k` beside the tail bucket.", reason="the rest of a sharp teacher's mass is small", ge=1
    )
    support: Literal["teacher", "student"] = setting(
        "teacher",
        "Whose likeliest tokens `top_k` takes.",
        reason="an engine returns its own; what the student invents beside them is in the tail bucket",
    )
    discount: float = setting(
        0.0,
        "For `sampled`: share of a later token's gap that is credited to the tokens before it.",
        reason="0 is the gradient of the KL at each prefix, of low variance; 1 that of the sequence",
        ge=0.0,
        le=1.0,
    )
    reward_weight: float = setting(
        1.0,
        "Weight of the advantage from rewards beside the teacher's term; 0: distillation alone, and rewards are only "
        "measured.",
        reason="a reward counts unless a row says otherwise",
        ge=0.0,
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.discount > 0.0 and self.kind != "sampled":
            raise ValueError(f"discount credits single tokens, so it needs kind = 'sampled', not {self.kind!r}")
        if self.weight == 0.0 and self.reward_weight == 0.0:
            raise ValueError("weight and reward_weight are both 0, so nothing would be learnt")
        return self

    @property
    def by_distribution(self) -> bool:
        """True if the teacher's whole distributions enter the loss."""
        return self.weight > 0.0 and self.kind != "sampled"
