"""The trainer: weights, gradients, optimizer.

``begin(totals)`` -> ``accumulate(...)`` for each micro-batch -> ``step()`` -> ``export()``. Forward and backward run
on weights of the compute dtype, the very bits the engine samples with; the optimizer keeps fp32 masters and every
micro-batch's gradient is added to an fp32 sum.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from posttrain.logprobs.scoring import Scores, score_blocks
from posttrain.model.forward import cost_model, output_weight
from posttrain.model.head import HeadSettings
from posttrain.model.lora import LoraPolicy, merged_state
from posttrain.model.packing import Block
from posttrain.model.weights import WeightSet
from posttrain.policy.batch import StepTotals, TokenBatch
from posttrain.policy.divergence_head import HeadInput
from posttrain.policy.masters import Masters, OptimizerSettings, StepResult
from posttrain.policy.objective import ObjectiveResult, objective
from posttrain.policy.rows import RowTable
from posttrain.policy.statistics import ObjectiveStatistics
from posttrain.policy.terms import DivergenceTerm, TermStatistics, term_losses
from posttrain.policy.value_term import ValueTerm
from posttrain.settings.objective import ObjectiveSpec

_TRUST_REGION = "trust_region.json"


class Trainer:
    """Trains one model. ``kl_weight`` is the trust region's present weight where it adapts, kept in checkpoints."""

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
        self.model, self.head, self.temperature = model, head, temperature
        self.lora, self.with_entropy = lora, with_entropy
        self.cost = cost_model(model)
        self.device = output_weight(model).device
        self.compute_dtype = output_weight(model).dtype
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})  # pyright: ignore[reportCallIssue]
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.masters = Masters(trained, optimizer, master_dtype)
        self.kl_weight: float | None = None
        self._totals: StepTotals | None = None
        self._spec: ObjectiveSpec | None = None
        self._terms: Sequence[DivergenceTerm] = ()
        self._term_statistics = TermStatistics.empty()
        self._value_term: ValueTerm | None = None

    @property
    def version(self) -> int:
        """Optimizer steps applied."""
        return self.masters.updates

    def begin(
        self,
        totals: StepTotals,
        spec: ObjectiveSpec,
        terms: Sequence[DivergenceTerm] = (),
        value_term: ValueTerm | None = None,
    ) -> None:
        """Start an optimizer step with its global denominators; ``terms`` are added to the objective's token losses,
        ``value_term`` (of a critic that shares the backbone) to its value."""
        self.masters.zero_grad()
        self._totals, self._spec, self._terms, self._value_term = totals, spec, terms, value_term
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

    def loss(self, blocks: list[Block], table: RowTable) -> torch.Tensor:
        """This micro-batch's part of the step's loss, with gradient; nothing is accumulated."""
        return self._evaluate(blocks, table).loss

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
        result = objective(self._token_batch(scores, table, where, extra), self._totals, self._spec)
        values = self._value_term(scores, where) if self._value_term else None
        return result if values is None else replace(result, loss=result.loss + values)

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
            covariance_chosen=column(table.covariance_chosen),
            extra_losses=extra,
        )

    @torch.no_grad()
    def score(self, plan: Sequence[list[Block]], table: RowTable) -> None:
        """Fill ``trainer_logprob`` and ``entropy`` of the planned micro-batches under the current weights."""
        for blocks in plan:
            scores = score_blocks(self.model, blocks, self.temperature, self.head, self.with_entropy)
            where = table.at(scores.batch.packed)
            table.record(where, scores.logprobs.cpu().numpy(), scores.entropy.cpu().numpy())

    @torch.no_grad()
    def logprobs_of(self, plan: Sequence[list[Block]], table: RowTable) -> npt.NDArray[np.float32]:
        """Log-probs (T,) of the planned micro-batches under the current weights, NaN elsewhere; records nothing."""
        values = np.full(len(table.trainer_logprob), np.nan, np.float32)
        for blocks in plan:
            scores = score_blocks(self.model, blocks, self.temperature, self.head, False)
            values[table.at(scores.batch.packed)] = scores.logprobs.cpu().numpy()
        return values

    def step(self) -> StepResult:
        """Clip, apply, count. A step whose gradient is absent or exactly zero changes no weight and is not counted.

        Raises NonFiniteError and changes nothing if the gradient is not finite.
        """
        return self.masters.step("policy")

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
        self.masters.save(directory)
        (directory / _TRUST_REGION).write_text(json.dumps({"kl_weight": self.kl_weight}) + "\n")

    def load(self, directory: Path) -> None:
        """Read what ``save`` wrote. Raises InputError if names or shapes do not fit this model."""
        self.masters.load(directory)
        stored = directory / _TRUST_REGION
        self.kl_weight = json.loads(stored.read_text())["kl_weight"] if stored.exists() else None
