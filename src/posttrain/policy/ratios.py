"""Policy ratios: how much more likely the policy makes tokens than the policy it is compared with."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from posttrain.logprobs.corrections import Sequences
from posttrain.settings.objective import LOG_RATIO_CLAMP, Ratio

LOGPROB_FLOOR = -1000.0
"""Log-probs enter a loss by themselves no lower than this: an impossible token keeps it finite and has no gradient."""


@dataclass(frozen=True, slots=True)
class PolicyRatio:
    """Of the trained tokens, (m,) each.

    ``token_log``: log ratio of each token within +-20, with gradient; ``raw_log``: the same unbounded, detached.
    ``value``: the ratio at the row's level, with gradient; ``clamped``: its log was beyond +-20, so it has none.
    """

    token_log: torch.Tensor
    raw_log: torch.Tensor
    value: torch.Tensor
    clamped: torch.Tensor


def policy_ratio(logprobs: torch.Tensor, denominator: torch.Tensor, sequences: Sequences, spec: Ratio) -> PolicyRatio:
    """The ratio at the row's level.

    - ``token`` (and ``none``, for the statistics): ``exp(lp - denominator)``
    - ``sequence``: ``exp(mean over the sequence)``: the geometric mean; arXiv 2507.18071
    - ``sequence_token``: the same value, differentiated as if it were the token's own; arXiv 2507.18071
    - ``product``: ``exp(sum over the sequence)``

    Logs are held within +-20, which keeps ``exp`` finite in fp32 (it overflows above 88). Beyond it the gradient is 0
    and the token is counted in ``policy/ratio_clamped_share``.
    """
    difference = torch.nan_to_num(logprobs - denominator, nan=0.0, posinf=float("inf"), neginf=float("-inf"))
    token_log = difference.clamp(-LOG_RATIO_CLAMP, LOG_RATIO_CLAMP)
    if spec.level in ("none", "token"):
        clamped = difference.detach().abs() > LOG_RATIO_CLAMP
        return PolicyRatio(token_log, difference.detach(), torch.exp(token_log), clamped)
    total = sequences.sums(difference) if spec.level == "product" else sequences.means(difference)
    clamped = (total.detach().abs() > LOG_RATIO_CLAMP)[sequences.index]
    value = torch.exp(total.clamp(-LOG_RATIO_CLAMP, LOG_RATIO_CLAMP))[sequences.index]
    if spec.level == "sequence_token":
        floored = logprobs.clamp(min=LOGPROB_FLOOR)
        own = torch.where(clamped, 0.0, floored - floored.detach())
        value = value.detach() * torch.exp(own)
    return PolicyRatio(token_log, difference.detach(), value, clamped)
