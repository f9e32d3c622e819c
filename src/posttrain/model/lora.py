"""Low-rank adapters through peft, attached in place.

The model keeps its class and its forward, so trainer, engine and scorer run it as they run any model. The sampler
gets the merged weights of ``merged_state``: W + (alpha / rank) B A, computed beside the trainer's weights, which
stay as they are.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from posttrain.errors import InputError
from posttrain.model.quiet import quiet_transformers

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

ADAPTER = "default"
_BASE = ".base_layer"


@dataclass(frozen=True, slots=True)
class LoraPolicy:
    """A model with adapters inside. ``model`` is the plain model to run, ``peft`` the wrapper that saves adapters."""

    model: PreTrainedModel
    peft: PeftModel

    @property
    def trainable(self) -> dict[str, torch.nn.Parameter]:
        """The adapters' parameters by name, in a fixed order."""
        module: Any = self.model
        return {name: p for name, p in module.named_parameters() if p.requires_grad}


def attach_lora(
    model: PreTrainedModel,
    *,
    rank: int,
    alpha: float,
    targets: Literal["all-linear"] | Sequence[str] = "all-linear",
    dropout: float = 0.0,
    seed: int = 0,
) -> LoraPolicy:
    """Put adapters into ``model`` and freeze everything else; a fresh adapter changes no output.

    ``targets`` are names of linear layers (``q_proj``...), never the embedding or the head, or all of them; in
    mixture-of-experts models that peft knows, stacked experts and router count among them. The same seed gives the
    same adapters, and the global random state is left as it was. Raises InputError for unknown targets, and for
    dropout, with which the trainer would be another policy than the sampler.
    """
    from peft import LoraConfig, get_peft_model

    if dropout != 0.0:
        raise InputError(
            "model.lora.dropout", dropout, "with dropout the trainer is another policy than the sampler", "Set it to 0."
        )
    if not isinstance(targets, str):
        _check_targets(model, targets)
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,  # pyright: ignore[reportArgumentType] # peft's own formula takes any number
        target_modules=targets if isinstance(targets, str) else list(targets),
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )
    try:
        # peft warns about its own defaults for experts when a pattern of theirs finds nothing.
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(seed)
            wrapped: Any = get_peft_model(model, config)
    except ValueError as error:
        raise InputError(
            "model.lora.targets",
            targets,
            f"no adapter can be attached ({str(error).splitlines()[0][:200]})",
            f"Use all-linear, or some of {', '.join(linear_names(model))}.",
        ) from error
    return LoraPolicy(model, wrapped)


def _check_targets(model: PreTrainedModel, targets: Sequence[str]) -> None:
    """Refuse embedding and head: both read their weights directly, so an adapter would reach one policy alone."""
    module: Any = model
    outer = {id(module.get_input_embeddings()), id(module.get_output_embeddings())}
    names = [f".{name}" for name, m in module.named_modules() if id(m) in outer]
    for target in targets:
        if any(name.endswith(f".{target}") for name in names):
            raise InputError(
                "model.lora.targets",
                target,
                "embedding and head cannot carry an adapter",
                f"Use all-linear, or some of {', '.join(linear_names(model))}.",
            )


def linear_names(model: PreTrainedModel) -> list[str]:
    """Last name components of all linear layers except the head, sorted: what ``targets`` may list."""
    module: Any = model
    head = module.get_output_embeddings()
    linear = [name for name, m in module.named_modules() if isinstance(m, torch.nn.Linear) and m is not head]
    return sorted({name.rsplit(".", 1)[-1] for name in linear})


@torch.no_grad()
def merged_state(model: PreTrainedModel, dtype: torch.dtype | None = None) -> dict[str, torch.Tensor]:
    """Full weights with the adapters added, under the names the model has without adapters.

    The sum is made in fp32 and cast once, to ``dtype`` or each weight's own. Adapted weights are new tensors; the
    others are the trainer's own where no cast is needed. A model without adapters gives its weights. A tied head
    is listed under both names, as in ``state_dict``.
    """
    from peft.tuners.lora import LoraLayer, ParamWrapper

    module: Any = model
    deltas: dict[int, Any] = {}
    for layer in module.modules():
        if isinstance(layer, LoraLayer):
            adapted: Any = layer
            weight = adapted.get_param() if isinstance(layer, ParamWrapper) else adapted.get_base_layer().weight
            deltas[id(weight)] = adapted
    merged: dict[str, torch.Tensor] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        if ".lora_" in name:
            continue
        weight = tensor.detach()
        if id(tensor) in deltas:
            weight = weight.float() + deltas[id(tensor)].get_delta_weight(ADAPTER).float()
        # Wrappers nest where several parameters of one module are adapted (stacked experts).
        merged[name.replace(_BASE, "")] = weight.to(dtype or tensor.dtype)
    return merged


def save_adapter(policy: LoraPolicy, directory: Path) -> None:
    """Write the adapter in peft's format (safetensors); ``PeftModel.from_pretrained(base, directory)`` loads it."""
    policy.peft.save_pretrained(str(directory), safe_serialization=True)


def save_merged(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, directory: Path) -> None:
    """Write model (adapters merged, if any) and tokenizer as one folder that plain transformers loads."""
    module: Any = model
    with torch.device("meta"):
        shell: Any = type(model)(module.config)
    shell.load_state_dict(merged_state(model), strict=True, assign=True)
    shell.tie_weights()
    shell.generation_config = module.generation_config
    with quiet_transformers():
        shell.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
