"""GRPO in one file: draw, grade, compare within groups, update. Each step returns what it measured."""

from __future__ import annotations

import copy
import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from tests.injection.independent import grading, tasks
from tests.injection.independent.engine import Engine, Replies
from tests.injection.independent.faults import Conditions
from tests.injection.independent.policy import Policy
from tests.injection.independent.tasks import TASKS
from torch import Tensor

EVALUATION_PROMPTS = 128
LARGEST_GRADIENT = 1.0


@dataclass(frozen=True, slots=True)
class Recipe:
    """A clean run: task, policy, algorithm."""

    task: str
    policy: str = "recurrent"
    biased: bool = False  # the base believes in wrong answers
    seed: int = 0
    steps: int = 120
    prompts: int = 8
    group: int = 8
    loss: str = "dapo"  # grpo: mean of row means; dapo: mean over tokens; dr_grpo: over rows times cap; gspo
    scale: bool = True  # advantages divided by the group's standard deviation
    format_weight: float = 0.0  # of a second reward, for a well-formed reply
    epsilon: float = 0.2
    logs_sampling: bool = True
    evaluate_every: int = 10
    log_every: int = 1
    conditions: Conditions = field(default_factory=Conditions)


@dataclass(frozen=True, slots=True)
class Batch:
    """Replies with their prompts' kinds, and grades, each by row."""

    replies: Replies
    grades: grading.Grades
    drawn_at: int


@dataclass(frozen=True, slots=True)
class Update:
    """Statistics of one optimizer step. ``low`` and ``high`` are rows' shares of clipped tokens."""

    loss: float
    policy_loss: float
    grad_norm: float
    entropy: float
    kl: float
    moved: float  # mean of old minus new log-probs
    low: Tensor
    high: Tensor


@dataclass(frozen=True, slots=True)
class Step:
    """Everything a step measured, for the writers."""

    number: int
    conditions: Conditions
    batch: Batch
    advantages: Tensor
    updates: list[Update]
    sampled: Tensor  # log-probs of the trained tokens as the sampler had them
    scored: Tensor  # the same from the trainer, before its first update on them
    seconds: float
    evaluation: Batch | None


def train(recipe: Recipe, base: Policy, conditions_at: Callable[[int], Conditions]) -> Iterator[Step]:
    """Run all steps, the first of which is number 1."""
    torch.manual_seed(recipe.seed)
    noise = torch.Generator().manual_seed(recipe.seed + 1)
    rng = random.Random(recipe.seed + 2)
    evaluation_noise = torch.Generator().manual_seed(recipe.seed + 3)
    policy, reference = base, copy.deepcopy(base)
    engine = Engine(base)
    optimizer = torch.optim.Adam(policy.parameters(), betas=(0.9, 0.99))
    waiting: deque[Batch] = deque()
    for number in range(1, recipe.steps + 1):
        started = time.perf_counter()
        conditions = conditions_at(number)
        if conditions.sync_every and number % conditions.sync_every == 0:
            engine.load(policy, conditions.engine_bits)
        waiting.append(_draw(recipe, engine, conditions, number, rng, noise))
        drawn = waiting[-1]
        while len(waiting) - 1 > conditions.lag:
            waiting.popleft()
        batch = waiting[0]
        advantages = batch.grades.advantages(recipe.group, recipe.scale)
        for group in optimizer.param_groups:
            group["lr"] = conditions.learning_rate
        _freeze(policy, conditions.frozen_share)
        scored, updates = _update(recipe, conditions, number, policy, reference, optimizer, batch, advantages)
        evaluation = None
        if number % recipe.evaluate_every == 0:
            held_out = random.Random(recipe.seed + 4)
            evaluation = _evaluate(recipe, engine, conditions, number, held_out, evaluation_noise)
        seconds = time.perf_counter() - started
        # Reward and lengths are logged of what was drawn, the rest of what was trained on.
        seen = Batch(drawn.replies, drawn.grades, batch.drawn_at)
        sampled = batch.replies.logprobs[batch.replies.mask]
        yield Step(number, conditions, seen, advantages, updates, sampled, scored, seconds, evaluation)


def _draw(
    recipe: Recipe, engine: Engine, c: Conditions, number: int, rng: random.Random, noise: torch.Generator
) -> Batch:
    task = TASKS[recipe.task]
    kinds = [
        tasks.HARD if u < c.hard_share else tasks.EASY if u >= 1 - c.easy_share else tasks.USUAL
        for u in (rng.random() for _ in range(recipe.prompts))
    ]
    digits = [task.draw(kind, rng) for kind in kinds]
    prompts = torch.tensor([tasks.prompt_tokens(d) for d in digits]).repeat_interleave(recipe.group, 0)
    replies = engine.draw(prompts, c.completion_cap, c.sampler_temperature, noise, c.copies)
    answers = [task.answer(d) for d in digits for _ in range(recipe.group)]
    return Batch(replies, grading.grade(replies, answers, recipe.group, recipe.format_weight, c, rng), number)


def _evaluate(
    recipe: Recipe, engine: Engine, c: Conditions, number: int, rng: random.Random, noise: torch.Generator
) -> Batch:
    """The same held-out prompts each time, as the engine now answers them, under the grader that is right."""
    task = TASKS[recipe.task]
    digits = [task.draw(tasks.USUAL, rng) for _ in range(EVALUATION_PROMPTS)]
    prompts = torch.tensor([tasks.prompt_tokens(d) for d in digits])
    replies = engine.draw(prompts, c.completion_cap, c.sampler_temperature, noise)
    grades = grading.grade(replies, [task.answer(d) for d in digits], 1, 0.0, Conditions(), rng)
    return Batch(replies, grades, number)


def _freeze(policy: Policy, share: float) -> None:
    """Take the first ``share`` of the parameter tensors out of training."""
    parameters = list(policy.parameters())
    frozen = round(share * len(parameters))
    for i, parameter in enumerate(parameters):
        parameter.requires_grad_(i >= frozen)
        if i < frozen:
            parameter.grad = None


def _update(
    recipe: Recipe,
    c: Conditions,
    number: int,
    policy: Policy,
    reference: Policy,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    advantages: Tensor,
) -> tuple[Tensor, list[Update]]:
    """All updates on one batch. Also returns the trainer's log-probs before the first."""
    mask = batch.replies.mask
    with torch.no_grad():
        old, _ = _score(policy, batch.replies)
        anchor = _score(reference, batch.replies)[0] if c.beta else old
    updates = []
    for turn in range(c.updates_per_batch):
        new, entropy = _score(policy, batch.replies)
        ratio = (new - old).clamp(-20, 20).exp()
        if recipe.loss == "gspo":
            mean = ((new - old) * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)
            ratio = mean.clamp(-20, 20).exp().expand_as(new)
        weight = advantages[:, None]
        kept = ratio.clamp(1 - recipe.epsilon, 1 + recipe.epsilon) if c.clipped else ratio
        policy_loss = _aggregate(-torch.minimum(ratio * weight, kept * weight), mask, recipe.loss, c.completion_cap)
        kl = (anchor - new).clamp(-20, 20).exp() - (anchor - new) - 1
        loss = policy_loss + c.beta * _aggregate(kl, mask, recipe.loss, c.completion_cap)
        loss = loss - c.entropy_bonus * _mean(entropy, mask)
        optimizer.zero_grad()
        norm = _backward(loss, policy)
        broken = c.infinite_gradient_every and number % c.infinite_gradient_every == 0 and turn == 0
        if broken or c.poisoned:
            norm = float("inf") if broken else float("nan")
        if c.poisoned:
            for parameter in policy.parameters():
                parameter.data.fill_(float("nan"))
        elif not broken and norm == norm and norm != float("inf"):
            optimizer.step()
        with torch.no_grad():
            low = ((ratio < 1 - recipe.epsilon) & (weight < 0) & mask).sum(1) / mask.sum(1).clamp(min=1)
            high = ((ratio > 1 + recipe.epsilon) & (weight > 0) & mask).sum(1) / mask.sum(1).clamp(min=1)
            values = [float(x) for x in (loss, policy_loss)]
            of_tokens = [float(_mean(x, mask)) for x in (entropy, kl, old - new)]
        updates.append(Update(*values, norm, *of_tokens, low * c.clipped, high * c.clipped))
    return old[mask], updates


def _backward(loss: Tensor, policy: Policy) -> float:
    """Gradient norm before clipping; 0 where nothing is trained."""
    trained = [p for p in policy.parameters() if p.requires_grad]
    if not trained:
        return 0.0
    loss.backward()
    return float(torch.nn.utils.clip_grad_norm_(trained, LARGEST_GRADIENT))


def _score(policy: Policy, replies: Replies) -> tuple[Tensor, Tensor]:
    """Log-probs of the reply tokens at temperature 1, and entropies, both (rows, tokens)."""
    logits = policy(replies.ids[:, :-1])[:, replies.prompt_width - 1 :]
    logprobs = logits.log_softmax(-1)
    chosen = logprobs.gather(-1, replies.ids[:, replies.prompt_width :, None])[..., 0]
    return chosen, -(logprobs.exp() * logprobs).sum(-1)


def _aggregate(tokens: Tensor, mask: Tensor, loss: str, cap: int) -> Tensor:
    kept = tokens * mask
    if loss in ("grpo", "gspo"):
        return (kept.sum(1) / mask.sum(1).clamp(min=1)).mean()
    if loss == "dr_grpo":
        return kept.sum() / (len(mask) * cap)
    return _mean(tokens, mask)


def _mean(tokens: Tensor, mask: Tensor) -> Tensor:
    return (tokens * mask).sum() / mask.sum().clamp(min=1)
