"""TRL's arguments, which TensorBoard and wandb keep beside the metrics, as facts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import orjson

from posttrain.faultmap.history import Facts


def facts_from_text(text: bytes) -> Facts:
    """Facts of arguments as JSON text; none where the text is something else."""
    try:
        arguments = orjson.loads(text)
    except orjson.JSONDecodeError:
        return Facts()
    return facts_from_arguments(cast("dict[str, Any]", arguments)) if isinstance(arguments, dict) else Facts()


def facts_from_arguments(arguments: Mapping[str, Any]) -> Facts:
    """Facts of a ``GRPOConfig`` as a mapping; what is missing or has another type stays unknown."""

    def number(name: str) -> float | None:
        value = arguments.get(name)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def count(name: str) -> int | None:
        value = number(name)
        return int(value) if value is not None and value == value // 1 and 0 < value < 2**53 else None

    correction, uses_vllm = arguments.get("vllm_importance_sampling_correction"), arguments.get("use_vllm")
    return Facts(
        algorithm=loss if isinstance(loss := arguments.get("loss_type"), str) else None,
        learning_rate=number("learning_rate"),
        warmup_steps=count("warmup_steps"),
        planned_steps=count("max_steps"),
        group_size=count("num_generations"),
        max_new_tokens=count("max_completion_length"),
        temperature=number("temperature"),
        anchor_weight=number("beta"),
        updates_per_batch=count("num_iterations"),
        corrected=bool(correction) if uses_vllm is True and isinstance(correction, bool) else None,
        compute_dtype="bfloat16" if arguments.get("bf16") is True else None,
    )
