"""The algorithm a run really uses: a row of the table with the overrides of ``[policy]`` in it."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError

from posttrain.errors import InputError
from posttrain.settings.algorithms import algorithm_row
from posttrain.settings.environments import reward_kind_of
from posttrain.settings.field import Section
from posttrain.settings.objective import Need, ObjectiveSpec
from posttrain.settings.parts.fit import PartError
from posttrain.settings.rows.row import AlgorithmRow
from posttrain.settings.tree import PolicySettings, Settings

SOFT_ANCHOR_WEIGHT = 0.01
"""Anchor weight of a soft reward when nothing is said. Published recipes use 0.001 to 0.04 for the KL term."""


def chosen_objective(policy: PolicySettings) -> ObjectiveSpec:
    """The row named by ``policy.algorithm`` with its overrides. Raises InputError if they contradict it."""
    row = algorithm_row(policy.algorithm)
    parts = {name: getattr(policy, name) for name in ObjectiveSpec.model_fields}
    try:
        spec = row.spec.override(**parts)
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        cause = detail.get("ctx", {}).get("error")
        place = (cause.part,) if isinstance(cause, PartError) else detail["loc"]
        setting = ".".join(("policy", *(str(part) for part in place)))
        message = detail["msg"].removeprefix("Value error, ")
        given = {name: part.model_dump(exclude_unset=True) for name, part in parts.items() if part is not None}
        raise InputError(
            setting, given, f"{message} (the rest comes from row {row.name!r})", f"See posttrain algorithms {row.name}."
        ) from None
    _check_overrides(row, spec, parts)
    return spec


def _check_overrides(row: AlgorithmRow, spec: ObjectiveSpec, parts: Mapping[str, Section | None]) -> None:
    """Every written value has an effect, and none turns the row into another one. Raises InputError."""
    for ban in row.forbidden:
        if getattr(getattr(spec, ban.part), ban.field) == ban.value:
            fix = "Take the line out, or choose another row"
            raise InputError(f"policy.{ban.part}.{ban.field}", ban.value, f"in row {row.name!r} {ban.reason}", fix)
    for name in ("advantage", "critic", "trust_region", "correction"):
        written = parts[name]
        if written is None:
            continue
        unused = name == "critic" and Need.CRITIC not in spec.needs
        read: frozenset[str] = frozenset() if unused else getattr(spec, name).read
        for field in sorted(written.model_fields_set - read):
            if getattr(written, field) != type(written).model_fields[field].default:
                raise InputError(
                    f"policy.{name}.{field}",
                    getattr(written, field),
                    f"has no effect with the other values of policy.{name} (row {row.name!r})",
                    f"These are read: {', '.join(sorted(read))}"
                    if read
                    else "Use policy.algorithm = 'ppo', or take it out",
                )


def anchor_weights(settings: Settings) -> dict[str, float]:
    """Weight of the pull towards the reference for each environment.

    The environment's own table wins, then ``policy.anchor.weight`` if written, then the row's for a verifiable
    reward, or one that only is measured, and :data:`SOFT_ANCHOR_WEIGHT` for a soft one.
    """
    spec = chosen_objective(settings.policy)
    written = settings.policy.anchor is not None and "weight" in settings.policy.anchor.model_fields_set
    weights: dict[str, float] = {}
    for name, environment in settings.environments.items():
        if environment.anchor is not None:
            weights[name] = environment.anchor.weight
        elif written or reward_kind_of(environment) == "verifiable" or spec.distillation.reward_weight == 0.0:
            weights[name] = spec.anchor.weight
        else:
            weights[name] = max(spec.anchor.weight, SOFT_ANCHOR_WEIGHT)
    return weights


def has_own_critic(settings: Settings) -> bool:
    """True if a second model is trained beside the policy to predict returns."""
    spec = chosen_objective(settings.policy)
    return Need.CRITIC in spec.needs and spec.critic.backbone == "separate"


def needs_reference(settings: Settings) -> bool:
    """True if any environment is anchored."""
    return any(weight > 0 for weight in anchor_weights(settings).values())


def holds_average(settings: Settings) -> bool:
    """True if the reference is a moving average, which is float32 beside a reference of a narrower type."""
    return needs_reference(settings) and chosen_objective(settings.policy).anchor.reference == "ema"


def holds_reference(settings: Settings) -> bool:
    """True if the reference's weights are held beside the policy's. Under LoRA the initial ones are the policy's own,
    without its adapters."""
    if not needs_reference(settings):
        return False
    return settings.model.lora is None or chosen_objective(settings.policy).anchor.from_path
