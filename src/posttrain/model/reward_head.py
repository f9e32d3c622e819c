"""A reward model: a decoder and one linear map from the last token's hidden state to a number.

On disk it is what transformers calls ``...ForSequenceClassification`` with one label, so that other tools load it.

Legend: ``n`` sequences of a micro-batch, ``h`` hidden size.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from posttrain.errors import InputError
from posttrain.model.attention import ATTENTION_NAME, register_attention
from posttrain.model.forward import base_model, forward_hidden, prepare_model, to_device
from posttrain.model.load import load_tokenizer
from posttrain.model.lora import merged_state
from posttrain.model.packing import Block, last_tokens
from posttrain.model.quiet import quiet_transformers

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

HEAD = "score"
"""Name of the head, as in transformers."""


def attach_reward_head(model: PreTrainedModel, seed: int = 0) -> None:
    """Put a head (1, h) in float32 on a causal language model, in place; its own head is used no more.

    Weights are normal with deviation 1/sqrt(h + 1); the same seed gives the same, and the global random state stays.
    """
    module: Any = base_model(model)
    hidden = int(module.config.get_text_config().hidden_size)
    weight = torch.randn(1, hidden, generator=torch.Generator().manual_seed(seed)) / math.sqrt(hidden + 1)
    head = nn.Linear(hidden, 1, bias=False, dtype=torch.float32)
    head.weight.data.copy_(weight)
    module.add_module(HEAD, head.to(module.get_input_embeddings().weight.device))
    unused = module.get_output_embeddings().weight
    if unused is not module.get_input_embeddings().weight:
        unused.requires_grad_(False)


def block_rewards(model: nn.Module, blocks: list[Block]) -> tuple[npt.NDArray[np.int64], torch.Tensor]:
    """Index and reward of each sequence, int64 (n,) ascending and float64 (n,) with gradient: of its last token."""
    module: Any = base_model(model)
    head: nn.Linear = getattr(module, HEAD)
    batch = to_device(blocks, head.weight.device)
    hidden = forward_hidden(model, batch.token_ids, batch.position_ids, batch.layout)
    rows, ends = last_tokens(batch.packed)
    order = np.argsort(rows)
    last = torch.from_numpy(ends[order]).to(hidden.device)
    rewards = head(hidden.index_select(0, last).float()).squeeze(1)
    return rows[order], rewards.double()


def save_reward_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, directory: Path) -> None:
    """Write model (adapters merged, if any), head and tokenizer as one folder of safetensors.

    transformers takes the last token that is no padding, so padding must not be an end of sequence: another special
    token is named in the configuration where the tokenizer's own is one.
    """
    from transformers import AutoModelForSequenceClassification

    module: Any = base_model(model)
    config: Any = module.config.__class__.from_dict(module.config.to_dict())
    config.num_labels = 1
    config.pad_token_id = _padding(tokenizer, module)
    with torch.device("meta"), quiet_transformers():
        shell: Any = AutoModelForSequenceClassification.from_config(config)
    wanted = set(shell.state_dict())
    shell.load_state_dict({n: t for n, t in merged_state(model).items() if n in wanted}, strict=True, assign=True)
    with quiet_transformers():
        shell.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def _padding(tokenizer: PreTrainedTokenizerBase, module: Any) -> int | None:
    declared: Any = module.generation_config.eos_token_id if getattr(module, "generation_config", None) else None
    eos: Any = tokenizer.eos_token_id
    ends = {eos, *(declared if isinstance(declared, list) else [declared])}
    own: Any = tokenizer.pad_token_id
    candidates: list[int] = [own] if own is not None else []
    return next((token for token in [*candidates, *tokenizer.all_special_ids] if token not in ends), None)


def load_reward_model(setting: str, path: str, device: str = "cpu") -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A reward model ready for :func:`block_rewards`, and its tokenizer: bfloat16 on a GPU, float32 on a CPU.

    Raises InputError, naming ``setting``, for what is not a folder with a complete ...ForSequenceClassification of one
    label in safetensors.
    """
    from transformers import AutoConfig, AutoModelForSequenceClassification

    directory = Path(path).expanduser()
    fix = 'Give model/ of a run with policy.algorithm = "reward_model".'
    if not (directory / "config.json").is_file():
        raise InputError(setting, path, "is no model folder", fix)
    try:
        config: Any = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        declared = " ".join(config.architectures or ())
        if "ForSequenceClassification" not in declared or config.num_labels != 1:
            raise InputError(setting, path, f"holds {declared or 'a model'} and not a reward model of one label", fix)
        register_attention()
        with quiet_transformers():
            loaded: Any = AutoModelForSequenceClassification.from_pretrained(
                directory,
                config=config,
                dtype=torch.bfloat16 if device == "cuda" else torch.float32,
                attn_implementation=ATTENTION_NAME,
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
    except (OSError, ValueError, RuntimeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(setting, path, f"cannot be loaded ({str(error).splitlines()[0][:200]})", fix) from error
    model, info = loaded
    if info["missing_keys"]:
        raise InputError(setting, path, f"lacks weights, first {sorted(info['missing_keys'])[0]}", "Copy it again.")
    getattr(model, HEAD).float()
    prepare_model(model)
    model.to(torch.device(device)).eval().requires_grad_(False)
    return model, load_tokenizer(directory, setting)
