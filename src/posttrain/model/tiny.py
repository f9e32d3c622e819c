"""Tiny random models of real transformers classes, with a tokenizer built in code.

They need no download, build in milliseconds and run everything a large model runs: grouped-query attention,
sliding windows, experts, tied and untied heads. Their random policy is close to uniform over the vocabulary,
which is what reinforcement learning from scratch on a toy task wants.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from posttrain.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

TINY_PREFIX = "tiny:"

PAD, EOS, UNKNOWN, SYSTEM, USER, ASSISTANT = "<pad>", "<end>", "<unk>", "<system>", "<user>", "<assistant>"
SPECIAL_TOKENS = (PAD, EOS, UNKNOWN, SYSTEM, USER, ASSISTANT)
CHARACTERS = string.digits + string.ascii_letters + string.punctuation + " \n"

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<' + message['role'] + '>' + message['content'] + '<end>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)

CONTEXT_LENGTH = 512
_PAD_ID, _EOS_ID = SPECIAL_TOKENS.index(PAD), SPECIAL_TOKENS.index(EOS)


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """One token per printable ASCII character, newline and special token; ``decode(encode(text)) == text``."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: index for index, token in enumerate([*SPECIAL_TOKENS, *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        additional_special_tokens=[SYSTEM, USER, ASSISTANT],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=CONTEXT_LENGTH,
    )


def build_tiny(
    kind: str, seed: int = 0, dtype: torch.dtype = torch.float32
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """A random model of one kind (see ``TINY_KINDS``) and its tokenizer.

    The same seed gives the same weights; the global random state is left as it was. Raises InputError for an
    unknown kind.
    """
    build = _BUILDERS.get(kind)
    if build is None:
        raise InputError("model.path", f"{TINY_PREFIX}{kind}", "there is no such tiny model", f"Use one of {_names()}.")
    tokenizer = tiny_tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build(len(tokenizer))
    module: Any = model
    module.to(dtype).eval()
    return model, tokenizer


def _names() -> str:
    return ", ".join(TINY_PREFIX + kind for kind in TINY_KINDS)


def _shared(vocabulary: int) -> dict[str, Any]:
    return {
        "vocab_size": vocabulary,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": CONTEXT_LENGTH,
        "pad_token_id": _PAD_ID,
        "eos_token_id": _EOS_ID,
        "bos_token_id": None,
    }


def _llama(vocabulary: int) -> PreTrainedModel:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**_shared(vocabulary), tie_word_embeddings=True))


def _qwen3(vocabulary: int) -> PreTrainedModel:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(Qwen3Config(**_shared(vocabulary), tie_word_embeddings=False))


def _gemma3(vocabulary: int) -> PreTrainedModel:
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    return Gemma3ForCausalLM(
        Gemma3TextConfig(
            **_shared(vocabulary),
            query_pre_attn_scalar=16,
            layer_types=["sliding_attention", "full_attention"],
            sliding_window=8,
        )
    )


def _qwen3_moe(vocabulary: int) -> PreTrainedModel:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    return Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            **_shared(vocabulary),
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=64,
            norm_topk_prob=True,
        )
    )


_BUILDERS: Mapping[str, Callable[[int], PreTrainedModel]] = MappingProxyType(
    {"llama": _llama, "qwen3": _qwen3, "gemma3": _gemma3, "qwen3_moe": _qwen3_moe}
)

TINY_KINDS = tuple(_BUILDERS)
"""The kinds ``build_tiny`` knows: dense Llama, Qwen3 and Gemma 3 (one sliding-window layer), Qwen3 with experts."""
