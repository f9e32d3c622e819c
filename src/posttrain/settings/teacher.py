"""``[teacher]``: whose judgement a policy is distilled from."""

from __future__ import annotations

from posttrain.settings.field import Section, setting

SELF = "self"


class TeacherSettings(Section):
    """``[teacher]``: the model that scores the student's own tokens (`policy.distillation` says how they count)."""

    path: str = setting(
        ...,
        "A model as in `model.path`, of the student's tokenizer; or `self`: the policy itself, with `prompt`.",
        reason="there is no default teacher",
        min_length=1,
    )
    prompt: str | None = setting(
        None,
        "What the teacher reads in place of the task's last user message: `{prompt}` stands for that message, `{gold}` "
        "for the task's right answer, any other name in braces for a column of the task. Absent: what the student "
        "reads.",
        reason="a stronger model needs no hint; the policy as its own teacher needs what it does not know",
    )
    temperature: float | None = setting(
        None,
        "Temperature of the teacher's distributions. Absent: `rollout.temperature`.",
        reason="both sides of the divergence at one temperature, or the student learns the difference",
        gt=0.0,
    )
    compare_samples: int = setting(
        4,
        "Attempts of teacher and student at each held-out task before training starts: a teacher that is worse is "
        "refused unless acknowledged. 0: not compared.",
        reason="a difference of a few per cent shows on a few dozen tasks",
        ge=0,
        le=65536,
    )
