"""TRL's two ways from logits or hidden states to log-probs. Runs in TRL's own interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from trl.kernels import ChunkedLogProbFunction
from trl.trainer.utils import selective_log_softmax_and_entropy

from harness.head_work import Work, work_of
from harness.worker import Action, serve

VOCABULARY_CHUNK = 32768
"""TRL's own default."""


def load(spec: dict[str, Any]) -> dict[str, Action]:
    """``spec["method"]``: ``chunked`` (its fused head, in torch where there is no GPU) or ``full`` logits."""
    torch.set_num_threads(spec["threads"])
    methods: dict[str, Callable[[Work], tuple[torch.Tensor, torch.Tensor]]] = {"chunked": chunked, "full": full}
    method = methods[spec["method"]]

    def run(_: dict[str, Any]) -> dict[str, Any]:
        return work_of(spec).measure(method)

    return {"run": run}


def chunked(work: Work) -> tuple[torch.Tensor, torch.Tensor]:
    """Its fused language-model head."""
    arguments = (work.hidden, work.weight, None, work.targets, 1.0, VOCABULARY_CHUNK, None, 1.0, ("entropy",))
    logprobs, entropy, *_ = ChunkedLogProbFunction.apply(*arguments)
    return logprobs, entropy


def full(work: Work) -> tuple[torch.Tensor, torch.Tensor]:
    """What its trainers do without the fused head."""
    logits = (work.hidden @ work.weight.t()).unsqueeze(0)
    logprobs, entropy = selective_log_softmax_and_entropy(logits, work.targets[None], entropy_requires_grad=False)
    return logprobs.squeeze(0), entropy.squeeze(0)


if __name__ == "__main__":
    serve(load)
