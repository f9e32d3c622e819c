"""The trainer: weights, gradients, optimizer.

``begin(totals)`` -> ``accumulate(...)`` for each micro-batch -> ``step()`` -> ``export()``. Forward and backward run
on weights of the compute dtype, the very bits the engine samples with; the optimizer keeps fp32 masters and every
micro-batch's gradient is added to an fp32 sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from posttrain.errors import NonFiniteError
from posttrain.logprobs.scoring import Scores, score_blocks
from posttrain.model.forward import cost_model, output_weight
from posttrain.model.head import HeadSettings
from posttrain.model.lora import LoraPolicy, merged_state
from posttrain.model.packing import Block
from posttrain.model.weights import WeightSet
from posttrain.policy.batch import StepTotals, TokenBatch
from posttrain.policy.divergence_head import HeadInput
from posttrain.policy.objective import ObjectiveResult, objective
from posttrain.policy.optimizer_state import load_state, save_state
from posttrain.policy.rows import RowTable
from posttrain.policy.statistics import ObjectiveStatistics
from posttrain.policy.terms import DivergenceTerm, TermStatistics, term_losses
from posttrain.settings.objective import ObjectiveSpec


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """AdamW and its schedule; ``total_updates`` is where linear and cosine schedules end."""

    learning_rate: float
    total_updates: int
    warmup_updates: int = 0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    gradient_clip: float = 1.0

    def rate_at(self, update: int) -> float:
        """Learning rate of update number ``update``, counted from 0."""
        if update < self.warmup_updates:
            return self.learning_rate * (update + 1) / self.warmup_updates
        if self.schedule == "constant":
            return self.learning_rate
        span = max(1, self.total_updates - self.warmup_updates)
        left = max(0.0, 1.0 - (update - self.warmup_updates) / span)
        return self.learning_rate * (left if self.schedule == "linear" else 0.5 - 0.5 * math.cos(math.pi * left))


@dataclass(frozen=True, slots=True)
class StepResult:
    """``grad_norm`` is the global L2 norm before clipping; ``learning_rate`` the one used."""

    grad_norm: float
    learning_rate: float
    policy_version: int


class Trainer:
    """Trains one model. ``version`` counts the optimizer steps applied."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: OptimizerSettings,
        head: HeadSettings,
        temperature: float,
        master_dtype: torch.dtype = torch.float32,
        lora: LoraPolicy | None = None,
        checkpointing: bool = False,
        with_entropy: bool = True,
    ) -> None:
        """``model`` is prepared (see ``model.forward.prepare_model``) and in its compute dtype."""
        self.model, self.settings, self.head, self.temperature = model, optimizer, head, temperature
        self.lora, self.with_entropy = lora, with_entropy
        self.version = 0
        self.cost = cost_model(model)
        self.device = output_weight(model).device
        self.compute_dtype = output_weight(model).dtype
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})  # pyright: ignore[reportCallIssue]
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._masters = {
            name: p if p.dtype == master_dtype else nn.Parameter(p.detach().to(master_dtype))
            for name, p in self._parameters.items()
        }
        for name, parameter in self._parameters.items():
            if self._masters[name] is not parameter:
                parameter.register_post_accumulate_grad_hook(self._fold_gradient(self._masters[name]))
        self._optimizer = torch.optim.AdamW(
            list(self._masters.values()),
            lr=optimizer.learning_rate,
            betas=(optimizer.beta1, optimizer.beta2),
            eps=optimizer.eps,
            weight_decay=optimizer.weight_decay,
            fused=True,
        )
        self._totals: StepTotals | None = None
        self._spec: ObjectiveSpec | None = None
        self._terms: Sequence[DivergenceTerm] = ()
        self._term_statistics = TermStatistics.empty()

    @staticmethod
    def _fold_gradient(master: nn.Parameter) -> Any:
        """Add a parameter's gradient to its master's in the master's precision, and free it."""

        def fold(parameter: torch.Tensor) -> None:
            assert parameter.grad is not None
            if master.grad is None:
                master.grad = parameter.grad.to(master.dtype)
            else:
                master.grad += parameter.grad
            parameter.grad = None

        return fold

    def begin(self, totals: StepTotals, spec: ObjectiveSpec, terms: Sequence[DivergenceTerm] = ()) -> None:
        """Start an optimizer step with its global denominators; ``terms`` are added to the objective."""
        self._optimizer.zero_grad(set_to_none=True)
        self._totals, self._spec, self._terms = totals, spec, terms
        self._term_statistics = TermStatistics.empty()

    @property
    def term_statistics(self) -> TermStatistics:
        """What the terms measured since ``begin``."""
        return self._term_statistics

    def accumulate(self, blocks: list[Block], table: RowTable) -> ObjectiveStatistics:
        """Forward and backward of one micro-batch.

        Log-probs not in the table yet are recorded there, so that they stay the policy before the batch's first
        update; the proximal log-prob of such a token is its own detached value. Raises NonFiniteError naming the first
        bad token.
        """
        result = self._evaluate(blocks, table)
        if result.loss.requires_grad:
            result.loss.backward()
        return result.statistics

    @torch.no_grad()
    def observe(self, blocks: list[Block], table: RowTable) -> ObjectiveStatistics:
        """As ``accumulate``, without a backward pass: for rows whose gradient is known to be exactly 0."""
        return self._evaluate(blocks, table).statistics

    def _evaluate(self, blocks: list[Block], table: RowTable) -> ObjectiveResult:
        assert self._totals is not None, "begin() comes first"
        assert self._spec is not None
        self.model.train()
        scores = score_blocks(self.model, blocks, self.temperature, self.head, self.with_entropy)
        where = table.at(scores.batch.packed)
        table.record(where, scores.logprobs.detach().cpu().numpy(), scores.entropy.cpu().numpy())
        policy = HeadInput(scores.hidden, scores.weight, self.temperature)
        extra, statistics = term_losses(
            self._terms, blocks, policy, scores.batch.target_ids, where, table.loss_mask, self.head.chunk_tokens
        )
        self._term_statistics = self._term_statistics + statistics
        return objective(self._token_batch(scores, table, where, extra), self._totals, self._spec)

    def _token_batch(
        self, scores: Scores, table: RowTable, where: npt.NDArray[np.int64], extra: torch.Tensor | None
    ) -> TokenBatch:
        def column(values: npt.NDArray[Any]) -> torch.Tensor:
            return torch.from_numpy(values[where]).to(self.device)

        anchored = bool((table.anchor_weight[where] != 0).any())
        return TokenBatch(
            logprobs=scores.logprobs,
            old_logprobs=column(table.trainer_logprob),
            advantages=column(table.advantage),
            mask=column(table.loss_mask),
            sequence_index=scores.batch.target_sequence,
            sampler_logprobs=column(table.sampler_logprob),
            reference_logprobs=column(table.reference_logprob) if anchored else None,
            anchor_weights=column(table.anchor_weight),
            entropies=scores.entropy if self.with_entropy else None,
            extra_losses=extra,
        )

    @torch.no_grad()
    def score(self, plan: Sequence[list[Block]], table: RowTable) -> None:
        """Fill ``trainer_logprob`` and ``entropy`` of the planned micro-batches under the current weights."""
        for blocks in plan:
            scores = score_blocks(self.model, blocks, self.temperature, self.head, self.with_entropy)
            where = table.at(scores.batch.packed)
            table.record(where, scores.logprobs.cpu().numpy(), scores.entropy.cpu().numpy())

    def step(self) -> StepResult:
        """Clip, apply, count. A step whose gradient is absent or exactly zero changes no weight and is not counted.

        Raises NonFiniteError and changes nothing if the gradient is not finite.
        """
        grads = [m.grad for m in self._masters.values() if m.grad is not None]
        if not grads:
            return StepResult(0.0, self.settings.rate_at(self.version), self.version)
        norm = torch.nn.utils.get_total_norm(grads)
        if float(norm) == 0.0:
            # Rows without advantage may be left out or computed: the optimizer's momentum moves in neither case.
            self._optimizer.zero_grad(set_to_none=True)
            return StepResult(0.0, self.settings.rate_at(self.version), self.version)
        if not bool(torch.isfinite(norm)):
            bad = next(n for n, m in self._masters.items() if m.grad is not None and not m.grad.isfinite().all())
            raise NonFiniteError(f"the gradient of {bad} is not finite at policy version {self.version}")
        torch.nn.utils.clip_grads_with_norm_(list(self._masters.values()), self.settings.gradient_clip, norm)
        rate = self.settings.rate_at(self.version)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._cast_masters()
        self.version += 1
        return StepResult(float(norm), rate, self.version)

    @torch.no_grad()
    def _cast_masters(self) -> None:
        for name, parameter in self._parameters.items():
            if self._masters[name] is not parameter:
                parameter.copy_(self._masters[name])

    def export(self) -> WeightSet:
        """The current weights in the compute dtype, adapters merged, each tied tensor once."""
        state = merged_state(self.lora.model, self.compute_dtype) if self.lora else dict(self.model.named_parameters())
        seen: set[int] = set()
        tensors: dict[str, torch.Tensor] = {}
        names = self.engine_names
        for name, tensor in state.items():
            if name in names and tensor.data_ptr() not in seen:
                seen.add(tensor.data_ptr())
                tensors[name] = tensor.detach()
        return WeightSet.of(self.version, tensors)

    @property
    def engine_names(self) -> frozenset[str]:
        """Names of the parameters a model without adapters has."""
        return frozenset(n.replace(".base_layer", "") for n, _ in self.model.named_parameters() if ".lora_" not in n)

    def save(self, directory: Path) -> None:
        """Write masters, optimizer state and counters as safetensors and JSON into an existing folder."""
        save_state(directory, self._masters, self._optimizer, self.version)

    def load(self, directory: Path) -> None:
        """Read what ``save`` wrote. Raises InputError if names or shapes do not fit this model."""
        self.version = load_state(directory, self._masters, self._optimizer)
        self._cast_masters()
