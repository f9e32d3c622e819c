"""Trained reward models as the scorers that environments ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from posttrain.environment.scorer import Scorer, Scorers
from posttrain.model.forward import cost_model
from posttrain.model.packing import TrainSequence, build_blocks, plan_micro_batches
from posttrain.model.reward_head import block_rewards, load_reward_model
from posttrain.orchestration.fixed_data.records import Record, UnusableRowError
from posttrain.orchestration.fixed_data.render import Renderer
from posttrain.orchestration.loading import PAIRS_PER_TOKEN
from posttrain.trajectory import Message

_MOST_TOKENS = 8192


class RewardScorer:
    """Scores answers exactly as their model was trained on them: its own chat template, its own tokens, the end."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self._model: Any = model
        self._cost = cost_model(model)
        self._context = int(model.config.get_text_config().max_position_embeddings)
        declared: Any = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
        ends = declared if isinstance(declared, list) else [declared] if isinstance(declared, int) else []
        self._renderer = Renderer(tokenizer, ends, "chat" if tokenizer.chat_template else "text")

    @torch.no_grad()
    def score(self, conversations: Sequence[tuple[tuple[Message, ...], str]]) -> list[float | str]:
        """A reward for each prompt and answer, or why there is none. Answers to one prompt share its computation."""
        results: list[float | str] = [""] * len(conversations)
        sequences: list[TrainSequence] = []
        for index, (messages, answer) in enumerate(conversations):
            try:
                (rendered,) = self._renderer.answers(Record(f"attempt {index}", messages, (answer,)))
            except UnusableRowError as error:
                results[index] = str(error)
                continue
            if len(rendered) > self._context:
                results[index] = f"{len(rendered)} tokens are more than the reward model's context of {self._context}"
                continue
            key = rendered.token_ids[: rendered.prefix].tobytes().hex()
            sequences.append(TrainSequence(index, rendered.token_ids, rendered.target_mask, rendered.prefix, key))
        plan = plan_micro_batches(build_blocks(sequences, self._cost), _MOST_TOKENS, _MOST_TOKENS * PAIRS_PER_TOKEN)
        for blocks in plan:
            rows, rewards = block_rewards(self._model, blocks)
            for row, reward in zip(rows.tolist(), rewards.tolist(), strict=True):
                results[row] = reward
        return results

    def close(self) -> None:
        """Free the model."""
        self._model = None


def reward_scorers(device: str) -> Scorers:
    """Loads reward models onto ``device``."""

    def load(setting: str, path: str) -> Scorer:
        return RewardScorer(*load_reward_model(setting, path, device))

    return load
