"""The packed forward is the model's own: same log-probs and gradients, however the tokens are laid out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from policies import gradients, largest_gap, make_model, make_sequences

from posttrain.errors import InputError
from posttrain.logprobs.scoring import score_blocks
from posttrain.model import attention
from posttrain.model.forward import check_packed_forward, cost_model, prepare_model
from posttrain.model.head import HeadSettings
from posttrain.model.packing import CostModel, TrainSequence, build_blocks, plan_micro_batches
from posttrain.model.tiny import TINY_KINDS, build_tiny

GROUPS = [(9, [3, 14, 5, 5]), (4, [20]), (12, [1, 2]), (1, [6, 7, 8])]
SHARED, SPLIT = CostModel(1e6, 1.0), CostModel(1.0, 1e6)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def packed_scores(
    model: Any, sequences: list[TrainSequence], cost: CostModel = SHARED, max_tokens: int = 1000
) -> tuple[dict[tuple[int, int], float], dict[str, torch.Tensor]]:
    """Log-prob of every target by (row, offset), and the gradient of their weighted sum."""
    model.zero_grad(set_to_none=True)
    values: dict[tuple[int, int], float] = {}
    for blocks in plan_micro_batches(build_blocks(sequences, cost), max_tokens, max_tokens**2):
        scores = score_blocks(model, blocks, 1.0, HeadSettings(chunk_tokens=7))
        packed = scores.batch.packed
        keys = list(zip(packed.target_sequence.tolist(), packed.target_offset.tolist(), strict=True))
        weights = torch.tensor([weight_of(*key) for key in keys])
        (scores.logprobs * weights).sum().backward()
        values |= dict(zip(keys, scores.logprobs.tolist(), strict=True))
    return values, gradients(model)


def weight_of(row: int, offset: int) -> float:
    """Any number that differs from token to token, so that mixed-up gradients do not cancel."""
    return ((row * 31 + offset * 17) % 11 - 5) / 10


def eager_scores(
    model: Any, sequences: list[TrainSequence]
) -> tuple[dict[tuple[int, int], float], dict[str, torch.Tensor]]:
    """The same by the model's own eager forward, one sequence at a time."""
    model.zero_grad(set_to_none=True)
    model.set_attn_implementation("eager")
    values: dict[tuple[int, int], float] = {}
    for sequence in sequences:
        ids = torch.tensor(sequence.token_ids, dtype=torch.long)[None]
        logprobs = model(input_ids=ids, use_cache=False).logits[0, :-1].float().log_softmax(-1)
        chosen = logprobs.gather(1, ids[0, 1:, None])[:, 0]
        offsets = sequence.target_mask.nonzero()[0].tolist()
        torch.stack([chosen[o - 1] * weight_of(sequence.index, o) for o in offsets]).sum().backward()
        values |= {(sequence.index, o): float(chosen[o - 1].detach()) for o in offsets}
    model.set_attn_implementation(attention.ATTENTION_NAME)
    return values, gradients(model)


def assert_equal_scores(left: dict[tuple[int, int], float], right: dict[tuple[int, int], float]) -> None:
    assert left.keys() == right.keys()
    assert max(abs(left[k] - right[k]) for k in left) < 2e-5


@pytest.mark.parametrize("kind", TINY_KINDS)
def test_it_equals_the_models_own_eager_forward_and_backward(kind: str) -> None:
    model = make_model(kind)
    sequences = make_sequences(GROUPS)
    theirs, their_gradient = eager_scores(model, sequences)
    ours, our_gradient = packed_scores(model, sequences)
    assert_equal_scores(ours, theirs)
    assert largest_gap(their_gradient, our_gradient) < 1e-4


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_sharing_cutting_and_padding_change_nothing(kind: str) -> None:
    model = make_model(kind)
    sequences = make_sequences(GROUPS)
    values, gradient = packed_scores(model, sequences)
    for cost, max_tokens in ((SPLIT, 1000), (SHARED, 30), (SPLIT, 1), (CostModel(1.0, 0.1), 60)):
        other, other_gradient = packed_scores(model, sequences, cost, max_tokens)
        assert_equal_scores(values, other)
        assert largest_gap(gradient, other_gradient) < 1e-5


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_materialised_scores_and_the_fused_kernel_agree(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model(kind)
    sequences = make_sequences(GROUPS)
    values, gradient = packed_scores(model, sequences)
    monkeypatch.setattr(attention, "DENSE_SCORE_BYTES", 0)
    other, other_gradient = packed_scores(model, sequences)
    assert_equal_scores(values, other)
    assert largest_gap(gradient, other_gradient) < 1e-5


def test_a_sliding_window_hides_what_is_far_away() -> None:
    """With one sliding layer alone, a token further back than the window has no influence at all."""
    model = make_model("gemma3")
    layers = model.get_decoder().layers
    window = model.config.sliding_window
    assert layers[0].self_attn.sliding_window == window
    del layers[1]
    model.config.num_hidden_layers = 1
    [sequence] = make_sequences([(1, [window + 6])])
    changed = sequence.token_ids.copy()
    changed[1] = (changed[1] + 1) % 100
    other = TrainSequence(0, changed, sequence.target_mask, 1, "g")
    before, _ = packed_scores(model, [sequence])
    after, _ = packed_scores(model, [other])
    # Token 1 is seen by queries 1 to window, which predict tokens 2 to window + 1.
    differs = [offset for offset in range(2, len(sequence)) if before[0, offset] != after[0, offset]]
    assert differs == list(range(2, window + 2))


def test_the_check_before_a_run_passes_and_notices_another_model() -> None:
    model = make_model()
    assert check_packed_forward(model) < 1e-4
    layer = model.get_decoder().layers[0].self_attn
    layer.register_forward_pre_hook(_shift_positions_of_our_forward, with_kwargs=True)
    with pytest.raises(InputError, match=r"differs from the model's own by .* nats"):
        check_packed_forward(model)


def _shift_positions_of_our_forward(module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    if kwargs.get("layout") is not None:
        cos, sin = kwargs["position_embeddings"]
        kwargs = kwargs | {"position_embeddings": (cos.roll(3, 1), sin.roll(3, 1))}
    return args, kwargs


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: setattr(m.config, "final_logit_softcapping", 30.0), "final_logit_softcapping"),
        (lambda m: setattr(m.config, "logits_scaling", 8.0), "logits_scaling"),
        (lambda m: setattr(type(m), "_supports_attention_backend", False), "attention interface"),
    ],
)
def test_a_model_that_would_silently_be_another_policy_is_refused(change: Any, message: str) -> None:
    model: Any = build_tiny("llama")[0]
    model.__class__ = type("Changed", (type(model),), {})
    change(model)
    with pytest.raises(InputError, match=message):
        prepare_model(model)


def test_dropout_is_switched_off_everywhere() -> None:
    model: Any = build_tiny("llama")[0]
    for layer in model.get_decoder().layers:
        layer.self_attn.attention_dropout = 0.5
    prepare_model(model)
    model.train()
    sequences = make_sequences([(3, [5])])
    assert packed_scores(model, sequences)[0] == packed_scores(model, sequences)[0]


def test_attention_without_a_layout_is_an_error_not_another_policy() -> None:
    model = make_model()
    with pytest.raises(ValueError, match="no layout"):
        model(input_ids=torch.zeros(1, 3, dtype=torch.long))


def test_the_cost_model_counts_what_a_token_really_multiplies() -> None:
    model = make_model("llama")
    cost = cost_model(model)
    layer = 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128
    assert cost.per_token == pytest.approx(2 * layer, rel=0.02)
    assert cost.per_pair == 2 * 4 * 16 * 2
