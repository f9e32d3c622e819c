"""Log-probs, loss and their gradient from hidden states, posttrain's way or the naive one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from harness.head_work import Work, work_of
from harness.worker import Action, serve
from posttrain.model.head import HeadSettings, token_logprobs
from posttrain.model.runtime import set_threads, tune_allocator

CHUNK_BYTES = 64 << 20
"""Float32 logits of one chunk: what `logprobs.head_chunk_tokens = "auto"` takes."""


def load(spec: dict[str, Any]) -> dict[str, Action]:
    """``spec["method"]``: ``chunked`` or ``naive``."""
    tune_allocator()
    set_threads(spec["threads"])
    chunk = max(1, CHUNK_BYTES // (4 * spec["vocabulary"]))
    settings = HeadSettings(chunk_tokens=chunk, keep_bytes=spec["keep_bytes"])
    methods: dict[str, Callable[[Work], tuple[torch.Tensor, torch.Tensor]]] = {
        "chunked": lambda work: token_logprobs(work.hidden, work.weight, work.targets, 1.0, settings),
        "naive": naive,
    }
    method = methods[spec["method"]]

    def run(_: dict[str, Any]) -> dict[str, Any]:
        return work_of(spec).measure(method)

    return {"run": run}


def naive(work: Work) -> tuple[torch.Tensor, torch.Tensor]:
    """Full logits in float32, log-softmax, gather."""
    logprobs = (work.hidden @ work.weight.t()).float().log_softmax(-1)
    entropy = -(logprobs.detach().exp() * logprobs.detach()).sum(-1)
    return logprobs.gather(1, work.targets[:, None]).squeeze(1), entropy


if __name__ == "__main__":
    serve(load)
