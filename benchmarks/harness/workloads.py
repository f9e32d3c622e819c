"""The same work for every side: prompts as token ids, and trajectories of known lengths."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from posttrain.environment.arithmetic import arithmetic_environment
from posttrain.model.load import load_policy, load_tokenizer, resolve_directory
from posttrain.model.tiny import TINY_PREFIX
from posttrain.rollout.turns import Turns
from posttrain.trajectory import Message, Task


@contextmanager
def model_directory(path: str) -> Iterator[Path]:
    """A folder in Hugging Face format that every side can load; models built in code are saved for the while."""
    if not path.startswith(TINY_PREFIX):
        yield resolve_directory(path)
        return
    with TemporaryDirectory() as folder:
        loaded = load_policy(path)
        loaded.model.save_pretrained(folder)
        loaded.tokenizer.save_pretrained(folder)
        yield Path(folder)


def questions(count: int) -> list[str]:
    """Distinct differences of numbers under 20."""
    tasks = (
        arithmetic_environment("bench", ["difference"], held_out_pairs=1, prompt="What is {question}?").tasks().train
    )
    if count > len(tasks):
        raise ValueError(f"there are {len(tasks)} different questions, asked for {count}")
    chosen = np.random.default_rng(0).permutation(len(tasks))[:count]
    return [tasks[int(i)].messages[0].content for i in chosen]


def prompt_ids(directory: Path, texts: list[str]) -> list[list[int]]:
    """Ids of the chat prompts."""
    turns = Turns(load_tokenizer(directory), context_length=4096)
    tasks = [Task(text, (Message("user", text),), None, "bench") for text in texts]
    return [turns.prompt_ids(task).tolist() for task in tasks]


@dataclass(frozen=True, slots=True)
class Rows:
    """Trajectories to train on, as plain data: one prompt, completion, group and advantage each."""

    name: str
    rows: list[dict[str, Any]]

    @property
    def completion_tokens(self) -> int:
        """Tokens that enter the loss."""
        return sum(len(row["completion"]) for row in self.rows)

    @property
    def all_tokens(self) -> int:
        """Tokens of prompts and completions, each row by itself, without padding."""
        return self.completion_tokens + sum(len(row["prompt"]) for row in self.rows)


def grouped_rows(prompts: list[list[int]], size: int, vocabulary: int, low: int, high: int) -> Rows:
    """``size`` completions of random ids for each prompt; lengths log-normal, cut to ``low`` to ``high``."""
    random = np.random.default_rng(0)
    lengths = np.clip(random.lognormal(np.log(22), 0.6, len(prompts) * size), low, high).astype(int)
    return Rows(
        f"{len(prompts)} prompts x {size}, {low} to {high} tokens",
        [
            _row(prompts[i // size], int(length), f"group {i // size}", vocabulary, random)
            for i, length in enumerate(lengths)
        ],
    )


def distinct_rows(prompts: list[list[int]], vocabulary: int, length: int) -> Rows:
    """One completion of ``length`` random ids for each of many prompts, all of one length."""
    random = np.random.default_rng(1)
    shortest = min(len(p) for p in prompts)
    return Rows(
        f"{len(prompts)} distinct prompts x 1, {length} tokens",
        [_row(p[-shortest:], length, f"group {i}", vocabulary, random) for i, p in enumerate(prompts)],
    )


def _row(prompt: list[int], length: int, group: str, vocabulary: int, random: np.random.Generator) -> dict[str, Any]:
    completion = random.integers(0, vocabulary, length).tolist()
    advantage = float(random.choice([-1.0, 1.0]) * random.uniform(0.5, 1.5))
    return {"prompt": prompt, "completion": completion, "group": group, "advantage": advantage}
