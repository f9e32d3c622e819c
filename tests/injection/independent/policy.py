"""The policies: a recurrent one and a small transformer, and the base each run starts from."""

from __future__ import annotations

import random
from pathlib import Path

import torch
from tests.injection.independent import tasks
from tests.injection.independent.tasks import PAD, PROMPT_WIDTH, TASKS, VOCABULARY
from torch import Tensor, nn
from torch.nn import functional

LONGEST = PROMPT_WIDTH + 16
BASE_STEPS = 800
BASE_SEED = 0
WRONG_SHARE = 0.6
BIASED_WRONG_SHARE = 0.65
EASY_SHARE = 0.15
SHORTCUT_SHARE = 0.04


class Recurrent(nn.Module):
    """Embedding, GRU, head."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.body = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits ``(rows, tokens, vocabulary)`` of the next token."""
        return self.head(self.body(self.embed(ids))[0])

    def start(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Logits after the prompt, and the state to go on from."""
        out, state = self.body(self.embed(ids))
        return self.head(out[:, -1]), state

    def advance(self, token: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Logits after one more token."""
        out, state = self.body(self.embed(token[:, None]), state)
        return self.head(out[:, -1]), state


class Transformer(nn.Module):
    """Two layers of causal attention with learned positions. Its state is the tokens so far."""

    def __init__(self, width: int = 64, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.place = nn.Parameter(0.02 * torch.randn(LONGEST, width))
        layer = {"dim_feedforward": 2 * width, "dropout": 0.0, "batch_first": True, "norm_first": True}
        self.body = nn.ModuleList(nn.TransformerEncoderLayer(width, heads, **layer) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits ``(rows, tokens, vocabulary)`` of the next token."""
        length = ids.shape[1]
        hidden = self.embed(ids) + self.place[:length]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        for layer in self.body:
            hidden = layer(hidden, src_mask=mask, is_causal=True)
        return self.head(self.norm(hidden))

    def start(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Logits after the prompt, and the state to go on from."""
        return self(ids)[:, -1], ids

    def advance(self, token: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Logits after one more token."""
        state = torch.cat([state, token[:, None]], 1)
        return self(state)[:, -1], state


Policy = Recurrent | Transformer
KINDS: dict[str, type[Policy]] = {"recurrent": Recurrent, "transformer": Transformer}


def base_policy(task: str, kind: str, cache: Path, steps: int = BASE_STEPS, biased: bool = False) -> Policy:
    """A policy trained on examples of which many are wrong: it knows the format and is right some of the time.

    Errors are at random, so that its likeliest reply is right; with ``biased`` it makes one error all the time, so that
    its likeliest reply is wrong. Kept in ``cache``, for the runs that start from the same one.
    """
    torch.manual_seed(BASE_SEED)
    policy = KINDS[kind]()
    path = cache / f"{task}-{kind}{'-biased' * biased}.pt"
    if path.exists():
        policy.load_state_dict(torch.load(path, weights_only=True))
        return policy
    rng = random.Random(BASE_SEED)
    optimizer = torch.optim.Adam(policy.parameters(), 3e-3)
    for _ in range(steps):
        ids = torch.tensor([_example(task, rng, biased) for _ in range(96)])
        logits = policy(ids[:, :-1])[:, PROMPT_WIDTH - 1 :]
        targets = ids[:, PROMPT_WIDTH:]
        loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    cache.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    torch.save(policy.state_dict(), part)
    part.rename(path)
    return policy


def _example(name: str, rng: random.Random, biased: bool) -> list[int]:
    """Prompt and reply, padded on the right. Replies to easy prompts are always right."""
    task = TASKS[name]
    kind = tasks.EASY if rng.random() < EASY_SHARE else tasks.USUAL
    digits = task.draw(kind, rng)
    answer = list(task.answer(digits))
    if biased:
        if kind == tasks.USUAL and rng.random() < BIASED_WRONG_SHARE:
            answer[0] = (answer[0] + 1) % task.alphabet
    elif kind == tasks.USUAL and rng.random() < WRONG_SHARE:
        answer[rng.randrange(len(answer))] = rng.randrange(task.alphabet)
    fillers = [tasks.FILLER] * rng.randint(0, tasks.MOST_FILLERS)
    if rng.random() < SHORTCUT_SHARE:
        fillers.append(tasks.SHORTCUT)
    reply = tasks.reply_tokens(answer, fillers)
    return tasks.prompt_tokens(digits) + reply + [PAD] * (task.longest_answer + tasks.MOST_FILLERS + 3 - len(reply))
