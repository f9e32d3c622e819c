"""The sampler: a copy of the policy that is brought up to date by hand, and draws replies."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from tests.injection.independent.policy import Policy
from tests.injection.independent.tasks import BANG, EOS, PAD
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Replies:
    """``ids`` (rows, prompt + reply tokens), and of the reply tokens ``logprobs`` and ``mask`` (rows, tokens)."""

    ids: Tensor
    logprobs: Tensor
    mask: Tensor
    prompt_width: int

    def reply(self, row: int) -> list[int]:
        """Tokens of one reply, with the end token if it has one."""
        length = int(self.mask[row].sum())
        return self.ids[row, self.prompt_width : self.prompt_width + length].tolist()

    @property
    def lengths(self) -> Tensor:
        """Reply tokens of each row."""
        return self.mask.sum(1)

    @property
    def ended(self) -> Tensor:
        """Whether each row has its end token."""
        return (self.ids[:, self.prompt_width :] == EOS).any(1)


class Engine:
    """Draws from its own copy of the weights."""

    def __init__(self, policy: Policy) -> None:
        self._policy = copy.deepcopy(policy)

    def load(self, policy: Policy, bits: int = 0) -> None:
        """Take the policy's weights, with ``bits`` rounded: 16 is bfloat16, fewer are equal steps of each tensor."""
        state = policy.state_dict()
        self._policy.load_state_dict({name: _rounded(w, bits) for name, w in state.items()} if bits else state)

    @torch.no_grad()
    def draw(self, prompts: Tensor, cap: int, temperature: float, noise: torch.Generator, copies: int = 1) -> Replies:
        """At most ``cap`` tokens a row. Each run of ``copies`` neighbouring rows shares its random numbers."""
        rows = len(prompts)
        logits, state = self._policy.start(prompts)
        done = torch.zeros(rows, dtype=torch.bool)
        tokens, logprobs, mask = [], [], []
        for _ in range(cap):
            token, logprob = _choose(logits / temperature, noise, copies)
            token = torch.where(done, PAD, token)
            tokens.append(token)
            logprobs.append(torch.where(done, 0.0, logprob))
            mask.append(~done)
            done = done | (token == EOS)
            if bool(done.all()):
                break
            logits, state = self._policy.advance(token, state)
        ids = torch.cat([prompts, torch.stack(tokens, 1)], 1)
        return Replies(ids, torch.stack(logprobs, 1), torch.stack(mask, 1), prompts.shape[1])


def _choose(logits: Tensor, noise: torch.Generator, copies: int) -> tuple[Tensor, Tensor]:
    """A token of each row by the inverse of the distribution function. Weights that are not finite give token 0."""
    logprobs = logits.log_softmax(-1)
    rows = len(logits)
    uniform = torch.rand(rows, 1, generator=noise)
    if copies > 1:
        uniform = uniform[torch.arange(rows) // copies * copies]
    token = (logprobs.exp().cumsum(-1) < uniform).sum(-1).clamp(max=logits.shape[-1] - 1)
    token = torch.where(logprobs.isfinite().all(-1), token, BANG)
    return token, logprobs.gather(-1, token[:, None])[:, 0]


def _rounded(weights: Tensor, bits: int) -> Tensor:
    if bits == 16:
        return weights.bfloat16().float()
    step = weights.abs().max() / (2 ** (bits - 1) - 1)
    return (weights / step).round() * step
