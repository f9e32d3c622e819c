"""The native engine: continuous batching over a transformers module.

One call of ``poll`` admits what fits, prefills it (a prompt shared by several requests once), and decodes one
token for every running row. Finished rows leave at once and waiting ones take their place.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import nn

from posttrain.errors import InputError, NonFiniteError
from posttrain.model.forward import cost_model, forward_hidden, output_weight, target_hidden, to_device
from posttrain.model.head import HeadSettings, token_logprobs
from posttrain.model.packing import TrainSequence, build_blocks, pack, plan_micro_batches
from posttrain.model.weights import WeightSet
from posttrain.rollout.native.cache import CacheShape, DecodeLayout, KVCache, PrefillLayout, round_up
from posttrain.rollout.native.lanes import Lanes
from posttrain.rollout.native.prompts import common_prefix, prompt_blocks, prompt_places
from posttrain.rollout.native.replica import Replica
from posttrain.rollout.native.sampler import NonFiniteLogitsError, Sampled, Sampler
from posttrain.rollout.protocol import Capabilities, Completion, EngineStats, Request
from posttrain.trajectory import FinishReason, FloatArray, IntArray, Origin, Segment


@dataclass(frozen=True, slots=True)
class NativeSettings:
    """Limits of the engine. ``kv_bytes`` bounds the cache; ``prefill_tokens`` one prefill pass.

    ``share_prompts`` off prefills a prompt once for every request that has it: what sharing is worth is measured so.
    """

    context_length: int
    kv_bytes: int
    max_running: int
    prefill_tokens: int = 2048
    prefill_pairs: int = 1 << 22
    share_prompts: bool = True


@dataclass(slots=True)
class _Row:
    """A running request. ``length`` tokens are cached; ``last`` is sampled but not yet cached."""

    request: Request
    submitted: float
    seed: np.uint64
    stop_ids: frozenset[int]
    version: int
    budget: int
    length: int = 0
    last: int = -1
    first_token: float = 0.0
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)

    @property
    def generated(self) -> int:
        return sum(len(s) for s in self.segments) + len(self.tokens)

    def close_segment(self) -> None:
        """End the current segment: what follows is of another policy version, or nothing follows."""
        if self.tokens:
            ids, logprobs = np.array(self.tokens, np.int32), np.array(self.logprobs, np.float32)
            self.segments.append(Segment(Origin.MODEL, ids, logprobs, self.version))
            self.tokens, self.logprobs = [], []


@dataclass(slots=True)
class _Counters:
    generated: int = 0
    prefilled: int = 0
    shared: int = 0
    steps: int = 0


class NativeEngine:
    """See ``rollout.protocol.Engine``. Not thread-safe: one caller submits and polls."""

    capabilities = Capabilities(in_flight_weight_update=False, prefix_sharing=True)

    def __init__(self, source: nn.Module, dtype: torch.dtype, settings: NativeSettings) -> None:
        """``source`` gives the architecture; weights come by ``load_weights`` before the first request."""
        config = source.config.get_text_config()  # pyright: ignore
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.settings = settings
        self.replica = Replica(source, dtype)
        self._device = self.replica.device
        kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        self._cache = KVCache(CacheShape(config.num_hidden_layers, kv_heads, width, dtype), self._device)
        self._cost = cost_model(source)
        self._vocabulary = output_weight(source).shape[0]
        self._samplers = [Sampler(self._vocabulary, self._device)]
        self._lanes = Lanes(self._device)
        self._waiting: deque[tuple[Request, float]] = deque()
        self._rows: list[_Row] = []
        self._paused = False
        self._done: list[Completion] = []
        self._counters = _Counters()

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests. Raises InputError for one that can never run; then none is queued."""
        for request in requests:
            self._check(request)
        now = time.time()
        self._waiting.extend((request, now) for request in requests)

    def _check(self, request: Request) -> None:
        sampling, prompt = request.sampling, len(request.token_ids)
        if sampling.top_p != 1.0 or sampling.top_k != 0:
            problem = "the native engine samples from the whole distribution"
            raise InputError("rollout.top_p/top_k", (sampling.top_p, sampling.top_k), problem, "Use 1.0 and 0")
        if prompt == 0 or sampling.max_new_tokens < 1:
            raise InputError(request.request_id, (prompt, sampling.max_new_tokens), "nothing to do", "Give a prompt")
        if prompt >= self.settings.context_length:
            problem = f"the prompt fills the context of {self.settings.context_length} tokens"
            raise InputError("prompt tokens", prompt, problem, "Shorten the prompt of this task or drop the task")
        need = round_up(prompt + self._budget(request)) * self._cache.shape.bytes_per_token
        if need > self.settings.kv_bytes:
            problem = f"one request needs {need / 2**20:.1f} MiB of KV cache"
            fix = "Raise rollout.kv_memory_mb or lower rollout.max_new_tokens"
            raise InputError("rollout.kv_memory_mb", self.settings.kv_bytes / 2**20, problem, fix)

    def _budget(self, request: Request) -> int:
        return min(request.sampling.max_new_tokens, self.settings.context_length - len(request.token_ids))

    def poll(self, timeout_s: float | None = None) -> list[Completion]:
        """Admit, prefill and decode one token per running row; return what finished."""
        if not self._paused:
            if self.replica.version < 0:
                raise RuntimeError("the engine has no weights yet: call load_weights first")
            with torch.inference_mode():
                self._admit()
                if self._rows:
                    self._decode()
        done, self._done = self._done, []
        return done

    def run(self, requests: Sequence[Request]) -> list[Completion]:
        """Submit and poll until all of these are finished, in the order given."""
        self.submit(requests)
        wanted = {r.request_id for r in requests}
        found: dict[str, Completion] = {}
        while len(found) < len(wanted):
            for completion in self.poll():
                if completion.request_id in wanted:
                    found[completion.request_id] = completion
                else:
                    self._done.append(completion)
        return [found[r.request_id] for r in requests]

    # Admission ---------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Take waiting requests while the rows they would need, at the longest length, fit the memory."""
        chosen: list[_Row] = []
        longest = max((r.length + r.budget - r.generated for r in self._rows), default=0)
        prompts: set[bytes] = set()
        prompt_tokens, previous = 0, np.empty(0, np.int32)
        while self._waiting and len(self._rows) + len(chosen) < self.settings.max_running:
            request, submitted = self._waiting[0]
            key = self._prompt_key(request)
            fresh = 0 if key in prompts else len(request.token_ids) - self._shared(previous, request)
            need = max(longest, len(request.token_ids) + self._budget(request))
            rows = len(self._rows) + len(chosen) + 1
            if rows * round_up(need) * self._cache.shape.bytes_per_token > self.settings.kv_bytes:
                break
            if chosen and prompt_tokens + fresh > self.settings.prefill_tokens:
                break
            self._waiting.popleft()
            longest, prompt_tokens = need, prompt_tokens + fresh
            prompts.add(key)
            previous = request.token_ids
            sampling = request.sampling
            stop = frozenset(() if sampling.ignore_stop else sampling.stop_token_ids)
            seed = np.uint64(sampling.seed & 0xFFFF_FFFF_FFFF_FFFF)
            chosen.append(_Row(request, submitted, seed, stop, self.replica.version, self._budget(request)))
        if chosen:
            self._prefill(chosen)

    def _prompt_key(self, request: Request) -> bytes:
        """Requests of equal key are prefilled together."""
        return request.token_ids.tobytes() if self.settings.share_prompts else request.request_id.encode()

    def _shared(self, previous: IntArray, request: Request) -> int:
        """Tokens of a prompt that need not be computed after ``previous``."""
        return common_prefix(previous, request.token_ids) if self.settings.share_prompts else 0

    def _prefill(self, fresh: list[_Row]) -> None:
        """Run each distinct prompt once, for every row that has it, and sample first tokens."""
        first = len(self._rows)
        tokens = max(len(r.request.token_ids) for r in fresh) + 1
        self._cache.reserve(first + len(fresh), max(tokens, self._needed_capacity()), first)
        owners: dict[bytes, list[int]] = {}
        for offset, row in enumerate(fresh):
            owners.setdefault(self._prompt_key(row.request), []).append(first + offset)
        self._rows.extend(fresh)
        rows_of = list(owners.values())
        blocks = prompt_blocks(
            [self._rows[rows[0]].request.token_ids for rows in rows_of], self._cost, self.settings.share_prompts
        )
        last: list[torch.Tensor] = []
        row_order: list[int] = []
        computed = 0
        for batch in plan_micro_batches(blocks, self.settings.prefill_tokens, self.settings.prefill_pairs):
            packed = pack(batch)
            layout = PrefillLayout(batch, rows_of, self._cache, self._device)
            ids = torch.from_numpy(packed.token_ids).to(self._device)
            positions = torch.from_numpy(packed.position_ids).to(self._device)
            hidden = forward_hidden(self.replica.model, ids, positions, layout)
            computed += packed.num_tokens
            for index, places in prompt_places(batch):
                last.append(hidden[places[-1]].expand(len(rows_of[index]), -1))
                row_order += rows_of[index]
        for row in fresh:
            row.length = len(row.request.token_ids)
        self._counters.prefilled += computed
        self._counters.shared += sum(row.length for row in fresh) - computed
        sampled = self._draw(torch.cat(last), [self._rows[i] for i in row_order], self._samplers[0])
        self._take([(row_order, sampled)])

    def _needed_capacity(self) -> int:
        return max((r.length + 1 for r in self._rows), default=0)

    # Decoding ----------------------------------------------------------------------------------------------------

    def _decode(self) -> None:
        rows = len(self._rows)
        self._cache.reserve(rows, self._needed_capacity(), rows)
        lengths = torch.tensor([r.length for r in self._rows], device=self._device)
        ids = torch.tensor([r.last for r in self._rows], device=self._device)
        while len(self._samplers) < self._lanes.count(rows):
            self._samplers.append(Sampler(self._vocabulary, self._device))

        def step(lane: int, part: slice) -> tuple[list[int], Sampled]:
            layout = DecodeLayout(self._cache, part, lengths[part])
            hidden = forward_hidden(self.replica.model, ids[part], lengths[part], layout)
            drawn = self._draw(hidden, self._rows[part], self._samplers[lane])
            return list(range(part.start, part.stop)), drawn

        drawn = self._lanes.map(step, rows)
        for row in self._rows:
            row.length += 1
        self._counters.steps += 1
        self._take(drawn)

    def _draw(self, hidden: torch.Tensor, rows: Sequence[_Row], sampler: Sampler) -> Sampled:
        """One token for each row from its last hidden state."""
        try:
            return sampler.sample(
                self.replica.logits(hidden),
                np.array([r.request.sampling.temperature for r in rows], np.float32),
                np.array([r.seed for r in rows], np.uint64),
                np.array([r.generated for r in rows], np.uint64),
            )
        except NonFiniteLogitsError as error:
            bad = rows[error.row]
            raise NonFiniteError(
                f"the logits for token {bad.generated} of {bad.request.request_id} are not finite "
                f"under policy version {bad.version}"
            ) from None

    def _take(self, drawn: Sequence[tuple[Sequence[int], Sampled]]) -> None:
        """Append what was drawn for the rows of these indices, and retire the rows that end with it."""
        now = time.time()
        finished: list[int] = []
        for indices, sampled in drawn:
            tokens, logprobs = sampled.token_ids.tolist(), sampled.logprobs.tolist()
            for index, token, logprob in zip(indices, tokens, logprobs, strict=True):
                row = self._rows[index]
                row.first_token = row.first_token or now
                row.tokens.append(token)
                row.logprobs.append(logprob)
                row.last = token
                if token in row.stop_ids or row.generated >= row.budget:
                    finished.append(index)
            self._counters.generated += len(indices)
        for index in sorted(finished, reverse=True):
            self._retire(index, self._finish_reason(self._rows[index]))

    def _finish_reason(self, row: _Row) -> FinishReason:
        if row.last in row.stop_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if row.budget == row.request.sampling.max_new_tokens else FinishReason.CONTEXT

    def _retire(self, index: int, reason: FinishReason) -> None:
        """Hand a row's completion out, and move the last row into its place."""
        row = self._rows[index]
        row.close_segment()
        self._done.append(
            Completion(row.request.request_id, tuple(row.segments), reason, row.submitted, row.first_token, time.time())
        )
        last = len(self._rows) - 1
        if index != last:
            self._cache.move(last, index)
            self._rows[index] = self._rows[last]
        self._rows.pop()

    # Control -----------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def abort(self, request_ids: Sequence[str]) -> list[Completion]:
        """Stop requests, waiting or running; unknown ids are ignored (they may just have finished)."""
        ids = set(request_ids)
        now = time.time()
        kept: deque[tuple[Request, float]] = deque()
        aborted: list[Completion] = []
        for request, submitted in self._waiting:
            if request.request_id in ids:
                aborted.append(Completion(request.request_id, (), FinishReason.ABORTED, submitted, 0.0, now))
            else:
                kept.append((request, submitted))
        self._waiting = kept
        before = len(self._done)
        for index in range(len(self._rows) - 1, -1, -1):
            if self._rows[index].request.request_id in ids:
                self._retire(index, FinishReason.ABORTED)
        aborted += self._done[before:]
        del self._done[before:]
        return aborted

    def load_weights(self, weights: WeightSet) -> int:
        """Take a version's weights. Raises RuntimeError while rows are running: their cache is of the old version."""
        if self._rows:
            raise RuntimeError(f"{len(self._rows)} requests are running; finish or abort them before new weights")
        return self.replica.load(weights)

    def pause(self, mode: Literal["keep", "abort"] = "keep") -> None:
        """Stop decoding; with ``abort`` running and waiting requests end and come out of the next ``poll``."""
        self._paused = True
        if mode == "abort":
            ids = [r.request.request_id for r in self._rows] + [r.request_id for r, _ in self._waiting]
            self._done += self.abort(ids)

    def resume(self) -> None:
        """Decode again."""
        self._paused = False

    @torch.inference_mode()
    def score(self, sequences: Sequence[np.ndarray], temperature: float = 1.0) -> list[FloatArray]:
        """Log-probs of given ids under the engine's weights, float32 (T,) each; NaN at position 0."""
        items: list[TrainSequence] = []
        for index, ids in enumerate(sequences):
            mask = np.arange(len(ids)) > 0
            items.append(TrainSequence(index, ids.astype(np.int32), mask, 1, f"{index}"))
        out = [np.full(len(ids), np.nan, np.float32) for ids in sequences]
        blocks = build_blocks(items, self._cost)
        for batch in plan_micro_batches(blocks, self.settings.prefill_tokens, self.settings.prefill_pairs):
            device_batch = to_device(batch, self._device)
            hidden = target_hidden(self.replica.model, device_batch)
            weight = self.replica.output_weight()
            logprobs, _ = token_logprobs(
                hidden, weight, device_batch.target_ids, temperature, HeadSettings(), with_entropy=False
            )
            packed = device_batch.packed
            for item, offset, value in zip(
                packed.target_sequence.tolist(), packed.target_offset.tolist(), logprobs.tolist(), strict=True
            ):
                out[item][offset] = value
        return out

    def stats(self) -> EngineStats:
        """Counters and memory now."""
        c = self._counters
        return EngineStats(
            running=len(self._rows),
            waiting=len(self._waiting),
            preempted=0,
            kv_bytes_used=sum(r.length for r in self._rows) * self._cache.shape.bytes_per_token,
            kv_bytes_allocated=self._cache.nbytes,
            kv_bytes_peak=self._cache.peak_nbytes,
            kv_bytes_limit=self.settings.kv_bytes,
            generated_tokens=c.generated,
            prefilled_tokens=c.prefilled,
            shared_prompt_tokens=c.shared,
            decode_steps=c.steps,
            policy_version=self.replica.version,
        )

    def close(self) -> None:
        """Drop requests, free the cache and end the threads."""
        self._waiting.clear()
        self._rows.clear()
        self._cache.reserve(0, 0, 0)
        self._lanes.close()
