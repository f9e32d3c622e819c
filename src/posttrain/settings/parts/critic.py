"""The critic of PPO, as data."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from posttrain.settings.field import Section, setting


class Critic(Section):
    """``[policy.critic]``: the model that predicts returns, and how advantages follow from it.

    Read where ``policy.advantage.baseline = "critic"``.
    """

    backbone: Literal["separate", "shared"] = setting(
        "separate",
        "`separate`: a copy of the initial policy with weights of its own; `shared`: a head on the policy's hidden "
        "states.",
        reason="a second model learns values without pulling the policy; sharing saves its memory and a backward pass",
    )
    learning_rate: float = setting(
        1e-5,
        "Peak learning rate of the critic's AdamW; with a shared backbone that of the head alone. Schedule, betas and "
        "decay are the policy's.",
        reason="the default of verl; OpenRLHF takes 9e-6. The critic chases the policy, so it moves about ten times "
        "faster",
        assumes="full fine-tuning of billion-parameter models; 0.1 billion and less take 1e-4 and more",
        gt=0.0,
    )
    warmup_steps: int = setting(
        0,
        "Batches at the start on which only the critic trains. The policy is scored and stays as it is; with a shared "
        "backbone only the head trains.",
        reason="the head starts at 0, where advantages are plain returns and whitening centres them; 10 to 50 make the "
        "first policy updates those of a critic that knows something",
        ge=0,
    )
    epochs: int = setting(
        1,
        "Passes of a separate critic over each batch; each is one optimizer step.",
        reason="one pass, as the policy does; more passes fit old returns",
        ge=1,
    )
    value_clip: float | None = setting(
        0.2,
        "How far a value may move from where it was before the batch's updates and still get a gradient towards its "
        "return. Absent: no clip. With one pass it never acts.",
        reason="TRL's value (0.5 in verl and OpenRLHF); in units of the return, so 0.2 is for returns of about 0 to 1",
        assumes="returns between -1 and 1",
        gt=0.0,
    )
    gradient_clip: float = setting(
        1.0, "Largest global L2 norm of the critic's gradient.", reason="as the policy's", gt=0.0
    )
    coefficient: float = setting(
        0.1,
        "Weight of the value loss in the gradient of a shared backbone; 0: values are read and change nothing.",
        reason="the first PPO used 0.5 to 1 on small networks; a language model should stay one",
        ge=0.0,
    )
    gamma: float = setting(
        1.0,
        "Discount of each sampled token. Tokens of tools and users take no step.",
        reason="an answer of 1000 tokens is no worse than one of 10: verl, OpenRLHF and slime use 1",
        gt=0.0,
        le=1.0,
    )
    gae_lambda: float = setting(
        1.0,
        "Lambda of generalised advantages: 1 is the return minus the value (unbiased), 0 trusts the critic at every "
        "token.",
        reason="verl's and slime's; with a reward at the end only, 0.95 forgets it within 60 tokens",
        assumes="one reward at the end of an answer",
        ge=0.0,
        le=1.0,
    )
    truncated: Literal["end", "bootstrap"] = setting(
        "end",
        "What comes after an answer that was cut off (finish reason length, context or budget): `end`: nothing, as "
        "after any answer; `bootstrap`: the critic's value of where it stopped.",
        reason="a cut answer was graded, so its reward is its return, as in verl; `bootstrap` is right where the cut "
        "is not the task's and such answers get no reward of their own",
    )

    @property
    def read(self) -> frozenset[str]:
        """Names of the fields that have an effect beside the others' values."""
        return frozenset(type(self).model_fields) - {"coefficient" if self.backbone == "separate" else "epochs"}

    @model_validator(mode="after")
    def _one_pass_where_shared(self) -> Self:
        if self.backbone == "shared" and self.epochs > 1:
            raise ValueError("epochs counts passes of a separate critic; a shared head trains with each policy update")
        return self
