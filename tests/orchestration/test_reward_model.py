"""A reward model: the same number in training, on disk under transformers, and as an environment's reward."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixed_runs import fixed_rows, fixed_settings, write_jsonl
from policies import write_toml
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from posttrain.cli.main import run_command
from posttrain.environment.build import build_environments
from posttrain.environment.protocol import Attempt
from posttrain.errors import InputError
from posttrain.orchestration.reward_scorer import RewardScorer, reward_scorers
from posttrain.rundir.reading import load_run
from posttrain.settings import settings_from_mapping
from posttrain.settings.chosen import SOFT_ANCHOR_WEIGHT, anchor_weights
from posttrain.trajectory import FinishReason, GradeStatus, Message


def trained(folder: Path, kind: str = "llama", **sections: Any) -> Path:
    settings = fixed_settings(folder / "data", "reward_model", **sections)
    settings["model"]["path"] = f"tiny:{kind}"
    assert run_command(["train", str(write_toml(folder / "rm.toml", settings)), "--run", str(folder / "rm")]) == 0
    return folder / "rm" / "model"


@pytest.fixture(scope="module")
def reward_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("reward"))


CONVERSATIONS = [
    ((Message("user", "u3"),), "333x"),
    ((Message("user", "u3"),), "777x"),
    ((Message("user", "v5"),), "5"),
    ((Message("system", "be brief"), Message("user", "v5")), "555z"),
]


@pytest.mark.parametrize(
    ("kind", "sections"),
    [
        ("llama", {}),
        ("qwen3", {"model": {"lora": {"rank": 4}}}),
        ("gemma3", {}),
        ("qwen3_moe", {"model": {"compute_dtype": "bfloat16"}}),
    ],
)
def test_transformers_gives_the_same_rewards_in_a_padded_batch(
    tmp_path: Path, kind: str, sections: dict[str, Any]
) -> None:
    folder = trained(tmp_path, kind, run={"steps": 3}, **sections)
    assert {file.suffix for file in folder.iterdir()} <= {".json", ".safetensors", ".jinja"}
    ours = reward_scorers("cpu")("reward", str(folder)).score(CONVERSATIONS)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    texts = [
        tokenizer.apply_chat_template(
            [*({"role": m.role, "content": m.content} for m in messages), {"role": "assistant", "content": answer}],
            tokenize=False,
        )
        for messages, answer in CONVERSATIONS
    ]
    batch = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
    batch.pop("token_type_ids", None)
    with torch.no_grad():
        theirs = model(**batch).logits[:, 0]
    np.testing.assert_allclose(np.array(ours), theirs.numpy(), rtol=0, atol=2e-5)
    assert model.config.pad_token_id != tokenizer.eos_token_id


def test_it_prefers_right_answers_to_prompts_it_never_saw(reward_model: Path) -> None:
    scorer = reward_scorers("cpu")("reward", str(reward_model))
    rows = fixed_rows("mnop", "pairs", 3)
    prompts = [(Message("user", row["prompt"]),) for row in rows]
    chosen = scorer.score([(p, row["chosen"]) for p, row in zip(prompts, rows, strict=True)])
    rejected = scorer.score([(p, row["rejected"]) for p, row in zip(prompts, rows, strict=True)])
    right = np.array(chosen) > np.array(rejected)
    assert right.mean() - 0.5 > 3 * 0.5 / np.sqrt(len(rows))
    shuffled = np.random.default_rng(0).permutation(len(rows))
    conversations = [(prompts[i], rows[i]["chosen"]) for i in shuffled]
    np.testing.assert_allclose(np.array(scorer.score(conversations)), np.array(chosen)[shuffled], rtol=0, atol=1e-5)


def environment_mapping(folder: Path, reward_model: Path, **sections: Any) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"prompt": f"{letter}{digit}"} for letter in "abcdefgh" for digit in range(10)]
    return {
        "run": {"steps": 3, "threads": 1, "device": "cpu"},
        "model": {"path": "tiny:llama", "compute_dtype": "float32"},
        "environments": {
            "liked": {
                "kind": "reward_model",
                "reward_model": str(reward_model),
                "path": str(write_jsonl(folder / "prompts.jsonl", rows)),
            }
        },
        "rollout": {"prompts_per_step": 4, "group_size": 4, "max_new_tokens": 4},
        "policy": {"algorithm": "grpo", "learning_rate": 1e-3},
        "evaluation": {"samples": 2, "k": [1], "max_tasks": 4},
        "rundir": {"trackers": []},
    } | sections


def test_a_policy_trains_on_its_reward_with_an_anchor(tmp_path: Path, reward_model: Path) -> None:
    mapping = environment_mapping(tmp_path, reward_model)
    assert anchor_weights(settings_from_mapping(mapping)) == {"liked": SOFT_ANCHOR_WEIGHT}
    run = tmp_path / "run"
    assert run_command(["train", str(write_toml(tmp_path / "rl.toml", mapping)), "--run", str(run)]) == 0
    loaded = load_run(run)
    assert loaded.metrics.last("reward/ungradable_share") == 0.0
    assert (loaded.metrics.last("policy/anchor_kl") or -1.0) >= 0.0
    scorer = reward_scorers("cpu")("reward", str(reward_model))
    for stored in loaded.trajectories(2):
        grade = stored.trajectory.grade
        assert grade is not None
        (again,) = scorer.score([(stored.trajectory.task.messages, stored.completion or "")])
        assert grade.reward == pytest.approx(again, abs=1e-4)


def test_without_an_anchor_it_is_refused(
    tmp_path: Path, reward_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_toml(tmp_path / "rl.toml", environment_mapping(tmp_path, reward_model))
    command = ["train", str(file), "--run", str(tmp_path / "run"), "--policy.anchor.weight", "0"]
    assert run_command(command) == 2
    assert "can be farmed without bound" in capsys.readouterr().err


def test_what_it_cannot_judge_has_no_reward(tmp_path: Path, reward_model: Path) -> None:
    mapping = environment_mapping(tmp_path, reward_model)
    settings = settings_from_mapping(mapping)
    (environment,) = build_environments(settings.environments, reward_scorers("cpu"))
    task = environment.tasks().train[0]

    def attempt(text: str) -> Attempt:
        return Attempt(task, text, (*task.messages, Message("assistant", text)), FinishReason.STOP, 1)

    grades = environment.grade([attempt("111x"), attempt("9" * 600), attempt("")])
    assert [g.status for g in grades] == [GradeStatus.GRADED, GradeStatus.UNGRADABLE, GradeStatus.GRADED]
    assert "more than the reward model's context" in grades[1].reason
    assert environment.counts.ungradable == 1


def test_a_model_that_says_nan_gives_no_reward(reward_model: Path, tmp_path: Path) -> None:
    mapping = environment_mapping(tmp_path, reward_model)

    class Broken:
        def score(self, conversations: Any) -> list[float | str]:
            return [float("nan")] * len(conversations)

        def close(self) -> None: ...

    (environment,) = build_environments(settings_from_mapping(mapping).environments, lambda *_: Broken())
    task = environment.tasks().train[0]
    (grade,) = environment.grade([Attempt(task, "1", task.messages, FinishReason.STOP, 1)])
    assert grade.status is GradeStatus.UNGRADABLE
    assert "nan" in grade.reason


def test_what_is_no_reward_model_is_refused_by_name(tmp_path: Path, reward_model: Path) -> None:
    load = reward_scorers("cpu")
    with pytest.raises(InputError, match="is no model folder"):
        load("environments.liked.reward_model", str(tmp_path))
    config = json.loads((reward_model / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["LlamaForCausalLM"]}))
    with pytest.raises(InputError, match="and not a reward model of one label"):
        load("environments.liked.reward_model", str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="cannot be loaded"):
        load("environments.liked.reward_model", str(tmp_path))
    mapping = environment_mapping(tmp_path / "rows", reward_model)
    with pytest.raises(InputError, match="runs without models"):
        build_environments(settings_from_mapping(mapping).environments)
    assert isinstance(load("x", str(reward_model)), RewardScorer)
