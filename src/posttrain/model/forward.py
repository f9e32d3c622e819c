"""The packed forward pass: the only way trainer, scorer and prefill run the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from posttrain.errors import InputError
from posttrain.model.attention import ATTENTION_NAME, BlockLayout, Layout, register_attention
from posttrain.model.norm import fuse_norms
from posttrain.model.packing import Block, CostModel, Packed, TrainSequence, pack


def prepare_model(model: nn.Module) -> None:
    """Switch a transformers causal LM to posttrain's attention and fused norms, and its dropout off.

    Raises InputError for a model whose attention cannot be replaced or whose head does more than a product.
    """
    register_attention()
    config = _text_config(model)
    softcap = getattr(config, "final_logit_softcapping", None)
    for name, value in (("final_logit_softcapping", softcap), ("logits_scaling", getattr(config, "logits_scaling", 1))):
        if value not in (None, 1, 1.0):
            raise InputError(
                "model.path", name, f"its head applies {name} = {value}, which is not supported", _FAMILIES
            )
    if not getattr(model, "_supports_attention_backend", False):
        raise InputError("model.path", type(model).__name__, "it does not use the attention interface", _FAMILIES)
    model.set_attn_implementation(ATTENTION_NAME)  # pyright: ignore[reportCallIssue]
    for module in model.modules():
        for name in ("attention_dropout", "dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    fuse_norms(model)


_FAMILIES = "Use a decoder such as Llama, SmolLM, Qwen2, Qwen3, Qwen3-MoE or Gemma 3"


def _text_config(model: nn.Module) -> Any:
    config: Any = model.config
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def base_model(model: nn.Module) -> Any:
    """The transformers causal LM itself, without a LoRA wrapper around it."""
    wrapped: Any = model
    return wrapped.get_base_model() if hasattr(wrapped, "get_base_model") else wrapped


def output_weight(model: nn.Module) -> torch.Tensor:
    """Weight of the language-model head, (V, h). Raises InputError if the head has a bias."""
    head = base_model(model).get_output_embeddings()
    if getattr(head, "bias", None) is not None:
        raise InputError("model.path", type(model).__name__, "its head has a bias, which is not supported", _FAMILIES)
    return head.weight


def forward_hidden(
    model: nn.Module, token_ids: torch.Tensor, position_ids: torch.Tensor, layout: Layout
) -> torch.Tensor:
    """Last hidden states (N, h) of packed ``token_ids`` int64 (N,) at ``position_ids`` int64 (N,)."""
    decoder = base_model(model).get_decoder()
    output = decoder(
        input_ids=token_ids[None], position_ids=position_ids[None], use_cache=False, layout=layout, return_dict=True
    )
    return output.last_hidden_state[0]


@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """A ``Packed`` on the model's device, ready for the forward. Shapes as in ``Packed``."""

    packed: Packed
    token_ids: torch.Tensor
    position_ids: torch.Tensor
    predictor: torch.Tensor
    target_ids: torch.Tensor
    target_sequence: torch.Tensor
    layout: BlockLayout


def to_device(blocks: list[Block], device: torch.device) -> DeviceBatch:
    """Pack blocks and move them to the device."""
    packed = pack(blocks)
    return DeviceBatch(
        packed=packed,
        token_ids=torch.from_numpy(packed.token_ids).to(device),
        position_ids=torch.from_numpy(packed.position_ids).to(device),
        predictor=torch.from_numpy(packed.predictor).to(device),
        target_ids=torch.from_numpy(packed.target_ids).to(device),
        target_sequence=torch.from_numpy(packed.target_sequence).to(device),
        layout=BlockLayout(blocks, device),
    )


def target_hidden(model: nn.Module, batch: DeviceBatch) -> torch.Tensor:
    """Hidden states (M, h) at the positions that predict the batch's targets."""
    return forward_hidden(model, batch.token_ids, batch.position_ids, batch.layout).index_select(0, batch.predictor)


def cost_model(model: nn.Module) -> CostModel:
    """Multiply-adds of a packed token and of a query-key pair, over all layers."""
    config = _text_config(model)
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    embedding = base_model(model).get_input_embeddings().weight.numel()
    linear = sum(p.numel() for p in model.parameters()) - embedding
    return CostModel(per_token=float(linear), per_pair=2.0 * heads * width * config.num_hidden_layers)


@torch.no_grad()
def check_packed_forward(model: nn.Module, seed: int = 0, length: int = 12) -> float:
    """Compare the packed forward with the model's own eager one on random ids; return the largest log-prob gap.

    A model with a part our forward does not know (a scaled head, another mask, positions of another kind) shows
    here, before any training. Raises InputError when the gap is more than rounding.
    """
    from posttrain.model.head import token_logprobs

    generator = torch.Generator().manual_seed(seed)
    weight = output_weight(model)
    ids = torch.randint(0, weight.shape[0], (2, length), generator=generator)
    half = length // 2
    ids[1, :half] = ids[0, :half]
    sequences: list[TrainSequence] = []
    for index in range(2):
        tokens = ids[index].numpy().astype("int32")
        mask = torch.zeros(length, dtype=torch.bool)
        mask[half:] = True
        sequences.append(TrainSequence(index, tokens, mask.numpy(), half, "probe"))
    block = Block(sequences[0].token_ids[:half], tuple(sequences))
    batch = to_device([block], weight.device)
    was_training = model.training
    model.eval()
    ours, _ = token_logprobs(target_hidden(model, batch), weight, batch.target_ids)
    causal = base_model(model)
    causal.set_attn_implementation("eager")
    try:
        logits = causal(input_ids=ids.to(weight.device), use_cache=False).logits.float().log_softmax(-1)
    finally:
        causal.set_attn_implementation(ATTENTION_NAME)
        model.train(was_training)
    theirs = logits[:, half - 1 : -1].gather(-1, ids[:, half:, None].to(logits.device)).reshape(-1)
    gap = float((ours - theirs).abs().max())
    limit = 1e-3 if weight.dtype == torch.float32 else 0.75
    if not gap <= limit:
        problem = f"the packed forward differs from the model's own by {gap:.3g} nats"
        raise InputError("model.path", type(causal).__name__, problem, _FAMILIES)
    return gap
