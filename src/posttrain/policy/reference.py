"""The reference policy an anchor pulls towards: the initial weights, another model, or one that follows the policy."""

from __future__ import annotations

import contextlib
import copy
import json
import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from posttrain.errors import InputError
from posttrain.logprobs.scoring import score_blocks
from posttrain.model.forward import output_weight, target_hidden, to_device
from posttrain.model.head import HeadSettings
from posttrain.model.lora import LoraPolicy
from posttrain.model.packing import Block
from posttrain.policy.adaptive import adapted_weight
from posttrain.policy.divergence_head import HeadInput
from posttrain.policy.rows import RowTable
from posttrain.settings.objective import Anchor

_TENSORS, _STATE = "reference.safetensors", "reference.json"


@dataclass(slots=True)
class ReferenceState:
    """What a checkpoint keeps beside the weights: by what the anchor's weights are multiplied, resets so far, and the
    best held-out reward since the last one with the evaluations that have not beaten it."""

    factor: float = 1.0
    resets: int = 0
    best: float = -math.inf
    without_gain: int = 0


class Reference:
    """Scores rows under the reference.

    ``initial`` is a frozen copy of the model, and under LoRA the model itself with its adapters off, without a copy;
    after a reset the adapters of that moment take their place. ``ema`` is ``rate x policy + (1 - rate) x reference``
    in float32 after every ``ema_every``-th batch, cast to the compute dtype.
    """

    def __init__(
        self,
        model: nn.Module,
        lora: LoraPolicy | None,
        temperature: float,
        head: HeadSettings,
        spec: Anchor | None = None,
        other: nn.Module | None = None,
    ) -> None:
        """``other`` is the model of a path, prepared and frozen. Raises InputError for an average under LoRA."""
        self._spec = spec or Anchor()
        self._temperature, self._head = temperature, head
        if lora is not None and self._spec.reference == "ema":
            raise InputError(
                "policy.anchor.reference",
                "ema",
                "the average of adapters is not the adapter of averaged weights",
                'Use "initial" with reset_every under LoRA, or train all weights.',
            )
        self._lora = None if other is not None else lora
        self._model = other if other is not None else (model if lora else copy.deepcopy(model).requires_grad_(False))
        self._moved: dict[str, torch.Tensor] = {}
        self.state = ReferenceState()

    @torch.no_grad()
    def score(self, plan: Sequence[list[Block]], table: RowTable) -> None:
        """Fill ``reference_logprob`` of the planned micro-batches."""
        with self._in_place():
            for blocks in plan:
                scores = score_blocks(self._model, blocks, self._temperature, self._head, with_entropy=False)
                table.reference_logprob[table.at(scores.batch.packed)] = scores.logprobs.cpu().numpy()

    @torch.no_grad()
    def head_input(self, blocks: Sequence[Block]) -> HeadInput:
        """Hidden states and head for the targets of blocks, for a divergence over the whole vocabulary."""
        with self._in_place():
            weight = output_weight(self._model).detach()
            hidden = target_hidden(self._model, to_device(list(blocks), weight.device))
        return HeadInput(hidden, weight, self._temperature)

    @contextlib.contextmanager
    def _in_place(self) -> Generator[None]:
        """Under LoRA: the model holds the reference's adapters inside, and the policy's again after."""
        if self._lora is None:
            yield
        elif not self._moved:
            with self._lora.peft.disable_adapter():
                yield
        else:
            adapters = self._lora.trainable
            mine = {name: p.detach().clone() for name, p in adapters.items()}
            _fill(adapters, self._moved)
            try:
                yield
            finally:
                _fill(adapters, mine)

    @torch.no_grad()
    def follow(self, step: int, masters: Mapping[str, torch.Tensor]) -> bool:
        """After batch ``step`` (counted from 1): move as the settings say. ``masters`` are the policy's weights by
        parameter name (the adapters under LoRA). Returns True if the reference is another one now."""
        spec = self._spec
        if spec.reference == "ema" and step % spec.ema_every == 0:
            self._average(masters)
            return True
        if spec.reset_every and step % spec.reset_every == 0:
            self._reset(masters)
            return True
        return False

    @torch.no_grad()
    def judge(self, reward: float, masters: Mapping[str, torch.Tensor]) -> bool:
        """After an evaluation with mean held-out ``reward``: reset if it is the ``reset_on_stagnation``-th in a row
        that does not beat the best since the last reset. Returns True if it was."""
        patience, state = self._spec.reset_on_stagnation, self.state
        if not patience:
            return False
        if reward > state.best:
            state.best, state.without_gain = reward, 0
            return False
        state.without_gain += 1
        if state.without_gain < patience:
            return False
        self._reset(masters)
        return True

    def adapt(self, divergence: float) -> None:
        """After a batch with mean ``divergence`` in nats per token: move the weights of the next one to the target."""
        target = self._spec.target_kl
        if target is not None:
            self.state.factor = adapted_weight(self.state.factor, divergence, target)

    def _average(self, masters: Mapping[str, torch.Tensor]) -> None:
        rate, own = self._spec.ema_rate, self._own()
        for name, parameter in own.items():
            if name not in self._moved:
                # A float32 reference holds its own average; one of a narrower type needs it beside.
                self._moved[name] = parameter.detach().float()
            self._moved[name].lerp_(masters[name].detach().float(), rate)
        _fill(own, self._moved)

    def _reset(self, masters: Mapping[str, torch.Tensor]) -> None:
        self._moved = {name: masters[name].detach().clone() for name in self._own()}
        if self._lora is None:
            _fill(self._own(), self._moved)
            # The frozen copy holds them; kept twice they would cost a second one.
            self._moved = {}
        self.state = ReferenceState(self.state.factor, self.state.resets + 1)

    def _own(self) -> dict[str, Any]:
        return dict(self._model.named_parameters()) if self._lora is None else dict(self._lora.trainable)

    def save(self, directory: Path) -> None:
        """Write what moved, and the counters, into an existing folder."""
        moved = self._moved
        if not moved and self.state.resets:
            moved = {name: p.detach() for name, p in self._own().items()}
        if moved:
            save_file({name: t.contiguous() for name, t in moved.items()}, directory / _TENSORS)
        best = self.state.best if math.isfinite(self.state.best) else None
        state = self.state
        document = {
            "factor": state.factor,
            "resets": state.resets,
            "best": best,
            "without_gain": state.without_gain,
        }
        (directory / _STATE).write_text(json.dumps(document) + "\n")

    @torch.no_grad()
    def load(self, directory: Path) -> None:
        """Read what ``save`` wrote. Raises InputError if the folder has no reference, or one of another model."""
        if not (directory / _STATE).is_file():
            problem = "it holds no reference, though the run is anchored"
            raise InputError("checkpoint", str(directory), problem, "Resume with the settings the run was started with")
        stored = json.loads((directory / _STATE).read_text())
        best = -math.inf if stored["best"] is None else float(stored["best"])
        self.state = ReferenceState(float(stored["factor"]), int(stored["resets"]), best, int(stored["without_gain"]))
        if not (directory / _TENSORS).is_file():
            return
        own = self._own()
        with safe_open(directory / _TENSORS, framework="pt") as tensors:
            if set(tensors.keys()) != set(own):
                problem = "its reference is not of this model"
                raise InputError("checkpoint", str(directory), problem, "Resume with the model the run began with")
            found = {name: tensors.get_tensor(name).to(p.device) for name, p in own.items()}
        if self._lora is None:
            _fill(own, found)
        if self._lora is not None or self._spec.reference == "ema":
            self._moved = found


def _fill(parameters: Mapping[str, Any], values: Mapping[str, torch.Tensor]) -> None:
    for name, parameter in parameters.items():
        parameter.data.copy_(values[name])
