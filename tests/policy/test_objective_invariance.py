"""Same data, same result: split, order, padding and garbage under the mask change nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.errors import InputError
from posttrain.policy.aggregation import step_totals
from posttrain.policy.batch import StepTotals, TokenBatch
from posttrain.policy.objective import objective
from posttrain.policy.statistics import ObjectiveStatistics
from posttrain.settings.algorithms import ROWS, algorithm_row
from posttrain.settings.objective import Aggregation, Anchor, Correction, ObjectiveSpec, Ratio, TrustRegion

SPECS = [row.spec.for_generation_budget(16) for row in ROWS.values()] + [
    ObjectiveSpec(anchor=Anchor(weight=0.1, estimator="k3_corrected"), trust_region=TrustRegion(dual_clip=2.0)),
    ObjectiveSpec(aggregation=Aggregation(kind="prompt_average"), ratio=Ratio(denominator="sampler")),
    ObjectiveSpec(correction=Correction(weight="sequence", reject="geometric", reject_low=0.8, reject_high=1.2)),
    ObjectiveSpec(correction=Correction(weight="token", rule="mask", low=0.7, veto=0.6, off_policy_mask=0.1)),
]


def random_batch(seed: int, lengths: list[int], groups: list[int]) -> tuple[TokenBatch, StepTotals]:
    """Flat batch; one in four tokens is masked."""
    generator = torch.Generator().manual_seed(seed)
    sequence = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    tokens = int(sequence.numel())
    noise = torch.randn(6, tokens, generator=generator, dtype=torch.float64)
    mask = torch.rand(tokens, generator=generator) > 0.25
    advantages = torch.randn(len(lengths), generator=generator, dtype=torch.float64)[sequence]
    batch = TokenBatch(
        -noise[0].abs(),
        -noise[0].abs() + 0.3 * noise[1],
        advantages,
        mask,
        sequence,
        sampler_logprobs=-noise[0].abs() + 0.3 * noise[2],
        reference_logprobs=-noise[3].abs(),
        entropies=noise[4].abs(),
        covariance_chosen=noise[5] > 1.0,
    )
    counts = torch.bincount(sequence[mask], minlength=len(lengths))
    return batch, step_totals(counts, torch.tensor(groups))


def take(batch: TokenBatch, index: torch.Tensor) -> TokenBatch:
    names = ("logprobs", "old_logprobs", "advantages", "mask", "sequence_index", "sampler_logprobs")
    names += ("reference_logprobs", "entropies", "covariance_chosen")
    return TokenBatch(**{name: getattr(batch, name)[index] for name in names})


def run(parts: list[TokenBatch], totals: StepTotals, spec: ObjectiveSpec):
    """Sum of losses, gradients of the parts in a row, merged statistics."""
    loss, gradients, statistics = 0.0, [], None
    for part in parts:
        leaf = part.logprobs.clone().requires_grad_()
        result = objective(replace(part, logprobs=leaf), totals, spec)
        result.loss.backward()
        loss += result.loss.item()
        gradients.append(leaf.grad)
        statistics = result.statistics if statistics is None else statistics + result.statistics
    return loss, torch.cat(gradients), statistics.finalize(totals.tokens)


def same(left, right):
    assert left[0] == pytest.approx(right[0], abs=1e-12)
    torch.testing.assert_close(left[1], right[1], rtol=0, atol=1e-12)
    assert left[2].keys() == right[2].keys()
    for name in left[2]:
        assert left[2][name] == pytest.approx(right[2][name], rel=1e-9, abs=1e-12), name


batches = st.tuples(
    st.integers(0, 10_000), st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3)), min_size=1, max_size=8)
)


@pytest.mark.parametrize("spec", SPECS)
@settings(max_examples=15)
@given(batches, st.integers(1, 4), st.randoms(use_true_random=False))
def test_any_split_and_any_order_give_the_same_step(spec, drawn, pieces, random):
    seed, rows = drawn
    batch, totals = random_batch(seed, [n for n, _ in rows], [g for _, g in rows])
    whole = run([batch], totals, spec)
    order = list(range(len(rows)))
    random.shuffle(order)
    chunks = [order[i::pieces] for i in range(pieces)]
    indices = [
        torch.cat([(batch.sequence_index == s).nonzero()[:, 0] for s in c] or [torch.empty(0).long()]) for c in chunks
    ]
    split = run([take(batch, index) for index in indices], totals, spec)
    back = torch.argsort(torch.cat(indices))
    same(whole, (split[0], split[1][back], split[2]))


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), float("-inf"), 89.0, -1e4])
def test_padding_with_garbage_changes_nothing(spec, garbage):
    batch, totals = random_batch(3, [4, 0, 5, 2], [0, 0, 1, 1])
    bare = run([batch], totals, spec)
    padding = {
        name: torch.full((7,), garbage, dtype=torch.float64)
        for name in ("logprobs", "old_logprobs", "advantages", "sampler_logprobs", "reference_logprobs", "entropies")
    } | {
        "mask": torch.zeros(7, dtype=torch.bool),
        "covariance_chosen": torch.ones(7, dtype=torch.bool),
        "sequence_index": torch.zeros(7, dtype=torch.int64),
    }
    padded = TokenBatch(**{name: torch.cat([getattr(batch, name), values]) for name, values in padding.items()})
    got = run([padded], totals, spec)
    assert torch.equal(got[1][-7:], torch.zeros(7, dtype=torch.float64))
    same(bare, (got[0], got[1][:-7], got[2]))


def test_merged_extremes_are_extremes():
    batch, totals = random_batch(2, [6, 6], [0, 1])
    ratios = (batch.logprobs - batch.old_logprobs).exp()[batch.mask]
    halves = [take(batch, (batch.sequence_index == s).nonzero()[:, 0]) for s in (0, 1)]
    parts = [objective(half, totals, SPECS[2]).statistics for half in halves]
    values = (ObjectiveStatistics.empty() + parts[0] + parts[1]).finalize(totals.tokens)
    assert values["policy/ratio_max"] == pytest.approx(ratios.max().item())
    assert values["policy/ratio_min"] == pytest.approx(ratios.min().item())


def test_masked_log_ratio_of_89_in_fp32_contributes_exactly_nothing():
    """exp(89) overflows fp32, and 0 x inf is NaN: the token must be removed before the exponential."""
    logprobs = torch.tensor([-1.0, -1.0], requires_grad=True)
    batch = TokenBatch(
        logprobs,
        torch.tensor([-1.0, -90.0]),
        torch.tensor([1.0, -1.0]),
        torch.tensor([True, False]),
        torch.tensor([0, 0]),
    )
    result = objective(batch, step_totals(torch.tensor([1]), torch.tensor([0])), algorithm_row("grpo").spec)
    result.loss.backward()
    assert result.loss.item() == -1.0
    assert logprobs.grad.tolist() == [-1.0, 0.0]
    assert result.statistics.finalize(1)["policy/ratio_max"] == 1.0


def test_trained_log_ratio_of_89_in_fp32_is_clamped_and_counted():
    logprobs = torch.tensor([-1.0, -1.0], requires_grad=True)
    batch = TokenBatch(
        logprobs,
        torch.tensor([-1.0, -90.0]),
        torch.tensor([-1.0, -1.0]),
        torch.ones(2, dtype=torch.bool),
        torch.tensor([0, 0]),
    )
    result = objective(batch, step_totals(torch.tensor([2]), torch.tensor([0])), algorithm_row("grpo").spec)
    result.loss.backward()
    values = result.statistics.finalize(2)
    assert torch.isfinite(result.loss)
    assert logprobs.grad.tolist() == [0.5, 0.0]
    assert values["policy/ratio_clamped_share"] == 0.5
    assert values["policy/gradient_token_share"] == 0.5
    assert values["policy/ratio_max"] == pytest.approx(np.exp(89.0))


def test_token_mean_is_not_a_mean_of_micro_batch_means():
    """10 tokens of loss 2 and 90 of loss 1 are 1.1 together, not 1.5."""
    spec = ObjectiveSpec(ratio=Ratio(level="none"), trust_region=TrustRegion(kind="none"))
    totals = step_totals(torch.tensor([10, 90]), torch.tensor([0, 0]))
    loss = 0.0
    for sequence, (tokens, value) in enumerate([(10, 2.0), (90, 1.0)]):
        logprobs = torch.full((tokens,), -value)
        batch = TokenBatch(
            logprobs,
            logprobs,
            torch.ones(tokens),
            torch.ones(tokens, dtype=torch.bool),
            torch.full((tokens,), sequence),
        )
        loss += objective(batch, totals, spec).loss.item()
    assert loss == pytest.approx(1.1)


def test_a_micro_batch_without_trained_tokens_still_has_a_gradient():
    logprobs = torch.tensor([float("nan")], requires_grad=True)
    batch = TokenBatch(logprobs, logprobs.detach(), torch.ones(1), torch.tensor([False]), torch.tensor([0]))
    result = objective(batch, step_totals(torch.tensor([0, 3]), torch.tensor([0, 1])), algorithm_row("grpo").spec)
    result.loss.backward()
    assert result.loss.item() == 0.0
    assert logprobs.grad.tolist() == [0.0]


def test_skipping_sequences_without_advantage_keeps_gradient_and_trained_shares():
    batch, totals = random_batch(5, [4, 5, 3], [0, 0, 1])
    batch = replace(batch, advantages=torch.where(batch.sequence_index == 1, 0.0, batch.advantages))
    spec = algorithm_row("dapo").spec
    kept = (batch.sequence_index != 1).nonzero()[:, 0]
    whole, skipped = run([batch], totals, spec), run([take(batch, kept)], totals, spec)
    assert whole[0] == pytest.approx(skipped[0], abs=1e-12)
    torch.testing.assert_close(whole[1][kept], skipped[1])
    for name in ("clip_fraction_low", "clip_fraction_high", "gradient_token_share"):
        assert whole[2][f"policy/{name}"] == pytest.approx(skipped[2][f"policy/{name}"]), name


@pytest.mark.parametrize(
    ("spec", "setting"),
    [
        (ObjectiveSpec(ratio=Ratio(denominator="sampler")), "policy.ratio.denominator"),
        (ObjectiveSpec(anchor=Anchor(weight=0.1)), "policy.anchor.weight"),
        (ObjectiveSpec(aggregation=Aggregation(kind="constant_length")), "policy.aggregation.length"),
    ],
)
def test_missing_inputs_are_named(spec, setting):
    batch, totals = random_batch(1, [3], [0])
    bare = replace(batch, sampler_logprobs=None, reference_logprobs=None)
    with pytest.raises(InputError, match=setting):
        objective(bare, totals, spec)
