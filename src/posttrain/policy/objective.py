"""The objective of a policy update, composed from the parts of one algorithm.

``loss = aggregate( correction * trust_region(ratio, advantage) + weight * anchor )`` over the trained tokens. Its
gradient is what the optimizer step uses; its value is often 0 (centred advantages, ratio 1) and says nothing alone.

Example, two sequences of one group in a single micro-batch::

    spec = algorithm_row("grpo").spec
    advantages = sequence_advantages(np.array([1.0, 0.0]), ["task", "task"], spec.advantage).values
    sequence = torch.tensor([0, 0, 0, 1, 1])
    totals = step_totals(torch.bincount(sequence), torch.tensor([0, 0]))
    logprobs = torch.randn(5, requires_grad=True)
    batch = TokenBatch(logprobs, logprobs.detach(), torch.tensor(advantages)[sequence],
                       torch.ones(5, dtype=torch.bool), sequence)
    result = objective(batch, totals, spec)
    result.loss.backward()
    print(result.statistics.finalize(totals.tokens))
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from posttrain.errors import InputError
from posttrain.logprobs.corrections import Sequences, correction_weights, off_policy_mask
from posttrain.policy.aggregation import aggregate
from posttrain.policy.anchors import anchor_values
from posttrain.policy.batch import StepTotals, TokenBatch
from posttrain.policy.ratios import PolicyRatio, policy_ratio
from posttrain.policy.statistics import Corrected, ObjectiveStatistics, token_statistics
from posttrain.policy.trust_region import RegionInput, RegionResult, policy_losses, score_function
from posttrain.settings.objective import Anchor, ObjectiveSpec


@dataclass(frozen=True, slots=True)
class ObjectiveResult:
    """``loss``: scalar with gradient, this micro-batch's part of the step's loss (parts add up, they are not averaged).
    ``statistics``: partial sums that add over micro-batches."""

    loss: torch.Tensor
    statistics: ObjectiveStatistics


def objective(batch: TokenBatch, totals: StepTotals, spec: ObjectiveSpec) -> ObjectiveResult:
    """Loss and statistics of one micro-batch.

    Masked tokens are removed before anything is computed, so NaN and infinity there reach neither loss, gradient nor
    statistics. With ``ratio.level = "none"`` the token loss is ``-A log pi``. The correction's weights multiply the
    trust region's loss, never the anchor; tokens that it takes out of the denominators have no anchor either. Raises
    InputError if the parts need what the batch does not carry.
    """
    mask = batch.mask
    logprobs = batch.logprobs[mask]
    advantages = batch.advantages[mask].to(logprobs.dtype)
    sequence_index = batch.sequence_index[mask]
    sequences = Sequences.of(sequence_index)
    denominator = _denominator(batch, spec)[mask].to(logprobs.dtype)
    ratio = policy_ratio(logprobs, denominator, sequences, spec.ratio)
    region = _region(batch, totals, spec, _RegionTokens(logprobs, denominator, ratio, advantages, sequences))
    corrected = _correction(batch, totals, spec, advantages, sequences)
    token_losses = region.losses
    if corrected is not None:
        token_losses = torch.where(corrected.kept, corrected.weights * token_losses, 0.0)
    anchor = _anchor(batch, logprobs, ratio.token_log, spec.anchor)
    if anchor.term is not None:
        term = anchor.term
        if corrected is not None and spec.correction.denominator == "kept":
            term = torch.where(corrected.kept, term, 0.0)
        token_losses = token_losses + term
    if batch.extra_losses is not None:
        token_losses = token_losses + batch.extra_losses[mask].to(token_losses.dtype)
    loss = aggregate(token_losses, sequence_index, totals, spec.aggregation)
    statistics = token_statistics(
        loss=loss,
        logprobs=logprobs,
        ratio=ratio,
        advantages=advantages,
        region=region,
        corrected=corrected,
        anchor_kl=anchor.kl,
        entropies=None if batch.entropies is None else batch.entropies[mask],
    )
    return ObjectiveResult(loss, statistics)


@dataclass(frozen=True, slots=True)
class _RegionTokens:
    """What the trust region sees of the trained tokens, (m,) each."""

    logprobs: torch.Tensor
    denominator: torch.Tensor
    ratio: PolicyRatio
    advantages: torch.Tensor
    sequences: Sequences


def _region(batch: TokenBatch, totals: StepTotals, spec: ObjectiveSpec, tokens: _RegionTokens) -> RegionResult:
    if spec.ratio.level == "none":
        return score_function(tokens.logprobs, tokens.advantages)
    chosen = torch.zeros_like(tokens.advantages, dtype=torch.bool)
    if spec.trust_region.chooses_by_covariance:
        if batch.covariance_chosen is None:
            fix = "Choose them over the whole step with policy.covariance.chosen_by_covariance"
            raise InputError("policy.trust_region.kind", spec.trust_region.kind, "the batch carries no choice", fix)
        chosen = batch.covariance_chosen[batch.mask]
    weight = spec.trust_region.kl_weight if totals.kl_weight is None else totals.kl_weight
    given = RegionInput(
        tokens.logprobs, tokens.denominator, tokens.ratio, tokens.advantages, tokens.sequences, chosen, weight
    )
    return policy_losses(given, spec.trust_region)


def _sampler_logprobs(batch: TokenBatch, setting: str, value: object) -> torch.Tensor:
    if batch.sampler_logprobs is None:
        fix = "Pass the engine's log-probs, or take the correction out"
        raise InputError(setting, value, "the batch carries no sampler log-probs", fix)
    return batch.sampler_logprobs[batch.mask]


@torch.no_grad()
def _correction(
    batch: TokenBatch, totals: StepTotals, spec: ObjectiveSpec, advantages: torch.Tensor, sequences: Sequences
) -> Corrected | None:
    correction = spec.correction
    if not correction.reads_sampler:
        return None
    sampler = _sampler_logprobs(batch, "policy.correction.weight", correction.weight).to(advantages.dtype)
    old = batch.old_logprobs[batch.mask].to(advantages.dtype)
    result = correction_weights(old, sampler, sequences, correction)
    weights, kept = result.weights, result.kept
    if correction.normalize:
        if totals.correction_mean is None:
            fix = "Pass step_totals(..., correction_mean=...)"
            raise InputError("policy.correction.normalize", True, "the step's mean weight is not known", fix)
        # Where everything is dropped the mean is 0, and so is every weight.
        weights = weights / (totals.correction_mean or 1.0)
    if correction.off_policy_mask is not None:
        now = batch.logprobs.detach()[batch.mask]
        kept = kept & off_policy_mask(now, sampler, advantages, sequences, correction.off_policy_mask)
    return Corrected(weights, kept, result.capped)


def _denominator(batch: TokenBatch, spec: ObjectiveSpec) -> torch.Tensor:
    if spec.ratio.level == "none" or spec.ratio.denominator == "proximal":
        return batch.old_logprobs
    if batch.sampler_logprobs is None:
        fix = "Pass the engine's log-probs, or set it to 'proximal'"
        raise InputError("policy.ratio.denominator", "sampler", "the batch carries no sampler log-probs", fix)
    return batch.sampler_logprobs


@dataclass(frozen=True, slots=True)
class _AnchorTerm:
    """``term`` (m,): weighted, with gradient; ``kl`` of the anchored tokens alone, for the statistics."""

    term: torch.Tensor | None
    kl: torch.Tensor | None


def _anchor(batch: TokenBatch, logprobs: torch.Tensor, log_ratio: torch.Tensor, spec: Anchor) -> _AnchorTerm:
    """The anchor's part of the token losses. Tokens of weight 0 need no reference: it may be NaN there."""
    weights = None if batch.anchor_weights is None else batch.anchor_weights[batch.mask].to(logprobs.dtype)
    wanted = spec.weight > 0 if weights is None else bool((weights != 0).any())
    in_loss = spec.place == "loss" and spec.sampled and wanted
    if batch.reference_logprobs is None:
        if in_loss:
            fix = "Score the batch with the reference model, or set the weight to 0"
            raise InputError("policy.anchor.weight", spec.weight, "the batch carries no reference log-probs", fix)
        return _AnchorTerm(None, None)
    reference = batch.reference_logprobs[batch.mask].to(logprobs.dtype)
    anchored = torch.ones_like(reference, dtype=torch.bool) if weights is None else weights != 0
    reference = torch.where(anchored, reference, logprobs.detach())
    term = None
    if in_loss:
        values = anchor_values(logprobs, reference, log_ratio, spec)
        term = values * (spec.weight if weights is None else weights)
    with torch.no_grad():
        kl = anchor_values(logprobs, reference, log_ratio, Anchor(estimator="k3"))[anchored]
    return _AnchorTerm(term, kl)
