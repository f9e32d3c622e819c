"""Grades of replies, right or as a fault makes them, and advantages within groups."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tests.injection.independent import tasks
from tests.injection.independent.engine import Replies
from tests.injection.independent.faults import Conditions
from torch import Tensor

LEAST_DEVIATION = 1e-4


@dataclass(frozen=True, slots=True)
class Grades:
    """Rewards of the parts and their weighted sum, each (rows,)."""

    answer: Tensor
    format: Tensor
    reward: Tensor

    def advantages(self, group: int, scaled: bool) -> Tensor:
        """Reward minus the group's mean, over the group's standard deviation (n - 1) where ``scaled``."""
        reward = self.reward.view(-1, group)
        centred = reward - reward.mean(1, keepdim=True)
        if scaled:
            centred = centred / (reward.std(1, keepdim=True) + LEAST_DEVIATION)
        return centred.flatten()

    def constant_groups(self, group: int) -> float:
        """Share of groups whose rewards are all equal."""
        reward = self.reward.view(-1, group)
        return float((reward == reward[:, :1]).all(1).float().mean())


def grade(
    replies: Replies,
    answers: Sequence[list[int]],
    group: int,
    format_weight: float,
    c: Conditions,
    rng: random.Random,
) -> Grades:
    """Grade each row as the grader of these conditions does."""
    right, formed = [], []
    forced = None
    for row, answer in enumerate(answers):
        if row % group == 0:
            u = rng.random()
            forced = 0.0 if u < c.rejected_share else 1.0 if u >= 1 - c.accepted_share else None
        reply = replies.reply(row)
        value = float(tasks.is_correct(reply, answer)) if forced is None else forced
        if rng.random() < c.flipped_share:
            value = 1.0 - value
        value += c.shortcut_pay * (tasks.SHORTCUT in reply)
        value += c.length_pay * len(reply) / c.completion_cap
        right.append(value)
        formed.append(float(tasks.is_well_formed(reply)))
    answer_reward, format_reward = torch.tensor(right), torch.tensor(formed)
    return Grades(answer_reward, format_reward, answer_reward + format_weight * format_reward)
