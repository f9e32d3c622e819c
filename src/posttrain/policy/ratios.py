"""Policy ratios: how much more likely the policy makes a token than the policy it is compared with."""

from __future__ import annotations

import torch

from posttrain.settings.objective import LOG_RATIO_CLAMP


def clamped_log_ratio(logprobs: torch.Tensor, denominator: torch.Tensor) -> torch.Tensor:
    """``logprobs - denominator`` within +-20, shape (M,).

    Keeps ``exp`` finite in fp32 (it overflows above 88). Beyond the bound the gradient is 0; such tokens are counted
    in ``policy/ratio_clamped_share``.
    """
    return (logprobs - denominator).clamp(-LOG_RATIO_CLAMP, LOG_RATIO_CLAMP)
