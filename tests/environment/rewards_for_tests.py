"""Reward functions that behave and misbehave; run in real processes by the tests beside this file."""

import os
import time


def length(completions, **columns):
    return [float(len(c)) for c in completions]


def same_for_both_shapes(completions, gold):
    texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
    return [float(text == str(g)) for text, g in zip(texts, gold, strict=True)]


def reads_messages(completions, **columns):
    return [1.0 if "8" in c[0]["content"] else 0.0 for c in completions]


def columns_seen(prompts, completions, level, task_id, finish_reason, num_tokens):
    return [
        float(lv * 100 + n) if p.startswith("What") and t.startswith("t") and f == "stop" else -1.0
        for p, lv, t, f, n in zip(prompts, level, task_id, finish_reason, num_tokens, strict=True)
    ]


def on_request(completions, **columns):
    """Does what the completion asks for."""
    return [_obey(c) for c in completions]


def _obey(text):
    print("noise on standard output", flush=True)
    if text == "sleep":
        time.sleep(60)
    if text == "sleep holding the lock":
        sum(range(10**12))
    if text == "exit":
        os._exit(7)
    if text == "sysexit":
        raise SystemExit(3)
    if text == "segfault":
        import ctypes

        ctypes.string_at(0)
    if text == "raise":
        raise ConnectionRefusedError("sandbox is down")
    values = {"nan": float("nan"), "inf": float("inf"), "none": None, "text": "much", "huge": 10**400, "true": True}
    return values.get(text, 1.0)


def not_always(completions, **columns):
    return [None if c == "none" else 0.5 for c in completions]


def numpy_scores(completions, **columns):
    import numpy as np

    return np.ones(len(completions), np.float32) / 2


async def awaited(completions, **columns):
    return [0.25 for _ in completions]


def one_number(completions, **columns):
    return 1.0


def too_few(completions, **columns):
    return [1.0]


def text_scores(completions, **columns):
    return ["good" for _ in completions]


def needs_token_ids(completions, completion_ids):
    return [0.0 for _ in completions]


def misspelt(completions, levle):
    return [0.0 for _ in completions]


def positional(completions, /):
    return [0.0 for _ in completions]


def no_completions(texts=()):
    return [0.0 for _ in texts]


def always_raises(completions, **columns):
    raise KeyError("answer")


def always_sleeps(completions, **columns):
    time.sleep(60)


not_callable = 3
