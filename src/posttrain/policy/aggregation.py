"""From token losses to one number. Denominators are counts of the whole optimizer step, so any split into
micro-batches or ranks adds up to the same sum."""

from __future__ import annotations

import torch

from posttrain.errors import InputError
from posttrain.policy.batch import StepTotals
from posttrain.settings.objective import Aggregation


def step_totals(
    tokens_per_sequence: torch.Tensor,
    group_of_sequence: torch.Tensor,
    correction_mean: float | None = None,
    kl_weight: float | None = None,
) -> StepTotals:
    """Global denominators from the trained tokens of every sequence of the step.

    Both int64 (S,); group numbers start at 0. Sequences and groups without a trained token count nowhere.
    """
    num_groups = int(group_of_sequence.max()) + 1 if group_of_sequence.numel() else 0
    tokens_per_group = torch.zeros(num_groups, dtype=torch.int64).index_add_(
        0, group_of_sequence.to(torch.int64), tokens_per_sequence.to(torch.int64)
    )
    return StepTotals(
        tokens=int(tokens_per_sequence.sum()),
        sequences=int((tokens_per_sequence > 0).sum()),
        groups=int((tokens_per_group > 0).sum()),
        tokens_per_sequence=tokens_per_sequence,
        group_of_sequence=group_of_sequence,
        tokens_per_group=tokens_per_group,
        correction_mean=correction_mean,
        kl_weight=kl_weight,
    )


def aggregate(
    token_losses: torch.Tensor, sequence_index: torch.Tensor, totals: StepTotals, spec: Aggregation
) -> torch.Tensor:
    """This micro-batch's part of the step's loss, a scalar.

    ``token_losses`` (m,) of trained tokens only, ``sequence_index`` (m,) their sequence within the step.

    - ``token_mean``: sum / tokens
    - ``sequence_mean``: mean over sequences of (sum / its tokens)
    - ``sequence_sum``: mean over sequences of sum
    - ``constant_length``: mean over sequences of (sum / length)
    - ``prompt_average``: mean over groups of (sum over the group / its tokens)

    Raises InputError if ``constant_length`` has no length.
    """
    if spec.kind == "token_mean":
        return token_losses.sum() / max(totals.tokens, 1)
    if spec.kind == "sequence_sum":
        return token_losses.sum() / max(totals.sequences, 1)
    if spec.kind == "constant_length":
        if spec.length is None:
            fix = "Set it to the generation budget (rollout.max_new_tokens)"
            raise InputError("policy.aggregation.length", None, "constant_length needs a constant", fix)
        return token_losses.sum() / (max(totals.sequences, 1) * spec.length)
    if spec.kind == "sequence_mean":
        # A sequence that a correction drops whole has losses of 0 and no tokens that count.
        counts = totals.tokens_per_sequence.to(token_losses.device)[sequence_index].clamp(min=1)
        return (token_losses / counts).sum() / max(totals.sequences, 1)
    group = totals.group_of_sequence.to(token_losses.device)[sequence_index]
    counts = totals.tokens_per_group.to(token_losses.device)[group].clamp(min=1)
    return (token_losses / counts).sum() / max(totals.groups, 1)
