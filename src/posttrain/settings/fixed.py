"""The configuration tree of a run that trains on fixed data: ``[data]`` in place of environments and rollout."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_serializer

from posttrain.errors import InputError
from posttrain.settings.data import DataSettings
from posttrain.settings.field import Auto, Positive, Section, setting
from posttrain.settings.fixed_algorithms import fixed_row
from posttrain.settings.parts.preference import Preference
from posttrain.settings.parts.supervised import RewardModelling, Supervised
from posttrain.settings.rows.fixed import FixedRow
from posttrain.settings.rules import SMALLEST_BFLOAT16_RATE
from posttrain.settings.tree import (
    CheckpointSettings,
    FaultmapSettings,
    LogprobsSettings,
    ModelSettings,
    PolicySettings,
    RundirSettings,
    RunSettings,
    TrackerName,
)


def _as_in(section: type[Section], name: str) -> Any:
    """The declaration of a setting that means the same here as in a run that samples."""
    return section.model_fields[name]


class FixedPolicySettings(Section):
    """``[policy]``: the algorithm and the optimizer.

    The nested table of the algorithm replaces single values of its row; `posttrain algorithms ROW` prints them.
    """

    algorithm: str = setting(
        ...,
        "Row of the table of algorithms on fixed data (`posttrain algorithms`).",
        reason="the data decides: pairs, labelled answers or answers to imitate",
        min_length=1,
    )
    preference: Preference | None = setting(None, "Values that replace the row's.", reason="the row's own values")
    supervised: Supervised | None = setting(None, "Values that replace the row's.", reason="the row's own values")
    reward_model: RewardModelling | None = setting(
        None, "Values that replace the row's.", reason="the row's own values"
    )
    learning_rate: Auto | Annotated[float, Field(gt=0.0)] = setting(
        "auto",
        "Peak learning rate of AdamW; `auto` takes the row's, and ten times that with LoRA.",
        reason="what is usual differs by a factor of ten between supervised and preference training",
        assumes="full fine-tuning of billion-parameter models; 0.1 billion takes about ten times as much",
    )
    warmup_steps: int = _as_in(PolicySettings, "warmup_steps")
    learning_rate_schedule: Literal["constant", "linear", "cosine"] = setting(
        "linear",
        "Course of the learning rate after warm-up; linear and cosine end at 0.",
        reason="the end of a run over given rows is known beforehand",
    )
    weight_decay: float = _as_in(PolicySettings, "weight_decay")
    adam_beta1: float = _as_in(PolicySettings, "adam_beta1")
    adam_beta2: float = setting(
        0.999,
        "Decay of AdamW's second moment.",
        reason="torch's and TRL's value; the gradient of given rows changes slowly",
        ge=0.0,
        lt=1.0,
    )
    adam_eps: float = _as_in(PolicySettings, "adam_eps")
    gradient_clip: float = _as_in(PolicySettings, "gradient_clip")
    micro_batch_tokens: Auto | Positive = _as_in(PolicySettings, "micro_batch_tokens")

    @field_serializer("preference", "supervised", "reward_model")
    def _only_what_was_set(self, part: Section | None) -> dict[str, Any] | None:
        return None if part is None else part.model_dump(mode="json", exclude_unset=True)


class FixedEvaluationSettings(Section):
    """``[evaluation]``: loss and accuracy on held-out rows."""

    every: int = setting(0, "Evaluate after every so many steps; 0: not in between.", reason="it costs time", ge=0)
    at_start: bool = setting(True, "Evaluate the untrained model.", reason="a gain needs its starting point")
    at_end: bool = setting(True, "Evaluate the final model.", reason="a gain needs its end")
    max_rows: int = setting(256, "Held-out rows used, from the first on.", reason="time", ge=1)


class FixedRundirSettings(Section):
    """``[rundir]``: where and what is written."""

    root: str = _as_in(RundirSettings, "root")
    trackers: tuple[TrackerName, ...] = _as_in(RundirSettings, "trackers")


class FixedSettings(Section):
    """All settings of a run on fixed data."""

    run: RunSettings = setting(RunSettings(), "The run as a whole.", reason="")
    model: ModelSettings = setting(..., "What is trained.", reason="")
    data: DataSettings = setting(..., "The rows.", reason="")
    logprobs: LogprobsSettings = setting(LogprobsSettings(), "How tokens are scored.", reason="")
    policy: FixedPolicySettings = setting(..., "The algorithm and the optimizer.", reason="")
    evaluation: FixedEvaluationSettings = setting(FixedEvaluationSettings(), "Held-out rows.", reason="")
    checkpoint: CheckpointSettings = setting(CheckpointSettings(), "What a killed run continues from.", reason="")
    rundir: FixedRundirSettings = setting(FixedRundirSettings(), "Where and what is written.", reason="")
    faultmap: FaultmapSettings = setting(FaultmapSettings(), "Who watches the run.", reason="")

    def to_mapping(self) -> dict[str, Any]:
        """Plain JSON data; ``settings.load`` reads it back equal."""
        return self.model_dump(mode="json", exclude_none=True)


def chosen_part(policy: FixedPolicySettings) -> tuple[FixedRow, Preference | Supervised | RewardModelling]:
    """The row, and its part with the overrides of ``[policy]``. Raises InputError where they contradict each other."""
    row = fixed_row(policy.algorithm)
    for name in ("preference", "supervised", "reward_model"):
        if name != row.part_name and getattr(policy, name) is not None:
            raise InputError(
                f"policy.{name}",
                policy.algorithm,
                f"algorithm = {row.name!r} has no such part",
                f"Its part is policy.{row.part_name}.",
            )
    given: Section | None = getattr(policy, row.part_name)
    if given is None:
        return row, row.part
    values = given.model_dump(exclude_unset=True)
    try:
        return row, type(row.part).model_validate(row.part.model_dump() | values)
    except ValidationError as error:
        message = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
        raise InputError(
            f"policy.{row.part_name}",
            values,
            f"{message} (the rest comes from row {row.name!r})",
            f"See posttrain algorithms {row.name}.",
        ) from None


def learning_rate_of(settings: FixedSettings) -> float:
    """The learning rate as given, or the row's."""
    given = settings.policy.learning_rate
    if given != "auto":
        return given
    return fixed_row(settings.policy.algorithm).learning_rate * (10.0 if settings.model.lora else 1.0)


def check_fixed_settings(settings: FixedSettings) -> None:
    """Refuse what contradicts itself before anything is loaded. Raises InputError for the first problem."""
    row, part = chosen_part(settings.policy)
    if isinstance(part, Preference) and part.pairs != (row.row_kind == "pairs"):
        raise InputError(
            "policy.preference.link",
            part.link,
            f"the rows of algorithm = {row.name!r} are {row.row_kind}",
            "Use algorithm = 'kto' for labelled answers and any other row for pairs.",
        )
    data = settings.data
    if data.margin_column is not None and row.name != "reward_model":
        raise InputError(
            "data.margin_column", data.margin_column, f"{row.name} has no margins", "Use it with 'reward_model'."
        )
    if data.train_on == "all" and row.name != "sft":
        raise InputError("data.train_on", "all", f"{row.name} trains answers alone", "Leave it out.")
    if data.render == "text" and data.system_prompt is not None:
        raise InputError("data.system_prompt", data.system_prompt, "render = 'text' has no messages", "Leave it out.")
    if data.rows_per_step < 2 and row.row_kind == "answers":
        raise InputError(
            "data.rows_per_step", data.rows_per_step, "z0 compares different prompts of a step", "Set it to 8 or more."
        )
    if settings.policy.warmup_steps > settings.run.steps:
        raise InputError(
            "policy.warmup_steps",
            settings.policy.warmup_steps,
            f"the run has only {settings.run.steps} optimizer steps",
            f"Set it to at most {settings.run.steps}, or raise run.steps.",
        )
    if settings.model.master_dtype == "bfloat16" and learning_rate_of(settings) < SMALLEST_BFLOAT16_RATE:
        raise InputError(
            "policy.learning_rate",
            learning_rate_of(settings),
            f"with model.master_dtype = 'bfloat16' a step below {SMALLEST_BFLOAT16_RATE:.1e} rounds away",
            'Set model.master_dtype = "float32".',
        )
    micro = settings.policy.micro_batch_tokens
    if micro != "auto" and data.max_tokens != "auto" and micro < data.max_tokens:
        raise InputError(
            "policy.micro_batch_tokens",
            micro,
            f"a row is never split, and may have data.max_tokens = {data.max_tokens}",
            f'Set it to at least {data.max_tokens}, or to "auto".',
        )
