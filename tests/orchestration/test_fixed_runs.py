"""Every row on fixed data, from a file to a model: what is learnt, what swapped labels do, resume, interruption."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixed_runs import fixed_rows, fixed_settings, write_jsonl
from policies import write_toml
from small_runs import fingerprint, measured

from posttrain.cli.main import run_command
from posttrain.cli.targets import evaluation_settings
from posttrain.errors import InputError
from posttrain.orchestration.fixed_data import run as fixed_run
from posttrain.orchestration.fixed_data import workbench
from posttrain.orchestration.fixed_data.held_out import mean_and_error, read_held_out
from posttrain.orchestration.fixed_data.loop import FixedLoop
from posttrain.rundir.directory import RunDirectory
from posttrain.rundir.reading import load_run
from posttrain.settings.fixed_algorithms import FIXED_ROWS

STEPS = 60


def config(folder: Path, algorithm: str, **options: Any) -> Path:
    return write_toml(folder / "run.toml", fixed_settings(folder / "data", algorithm, **options))


def train(folder: Path, algorithm: str, **options: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    assert run_command(["train", str(config(folder, algorithm, **options)), "--run", str(folder / "run")]) == 0
    return folder / "run"


def outcomes(run: Path, step: int) -> np.ndarray:
    result = read_held_out(RunDirectory.open(run), step)
    assert result is not None
    return result.outcomes


@pytest.mark.parametrize("algorithm", [name for name in FIXED_ROWS if name != "sft"])
def test_preferences_are_learnt_and_swapped_labels_teach_the_contrary(tmp_path: Path, algorithm: str) -> None:
    run = train(tmp_path / "right", algorithm)
    gain, error = mean_and_error(outcomes(run, STEPS) - outcomes(run, 0))
    assert gain > 3 * error
    assert gain > 0.2
    wrong = train(tmp_path / "swapped", algorithm, swapped=True)
    loss, error = mean_and_error(outcomes(wrong, STEPS) - outcomes(wrong, 0))
    assert loss < -3 * error
    summary = json.loads((run / "evaluation" / "summary.json").read_text())
    assert summary["held_out"]["gain"]["mean"] == pytest.approx(gain)


def test_supervised_training_lowers_the_held_out_loss_and_shuffled_answers_do_worse(tmp_path: Path) -> None:
    run = train(tmp_path / "right", "sft")
    gain, error = mean_and_error(outcomes(run, STEPS) - outcomes(run, 0))
    assert gain < -3 * error
    shuffled = train(tmp_path / "shuffled", "sft", swapped=True)  # answers with the digit of another prompt
    worse, error = mean_and_error(outcomes(shuffled, STEPS) - outcomes(run, STEPS))
    assert worse > 3 * error


def quick(folder: Path, algorithm: str, **sections: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    options = {"run": {"steps": 6, "threads": 1, "device": "cpu"}, "checkpoint": {"every": 2}} | sections
    return config(folder, algorithm, **options)


@pytest.mark.parametrize("algorithm", ["dpo", "kto", "sft", "reward_model"])
@pytest.mark.parametrize("lora", [False, True])
def test_an_interrupted_run_goes_on_to_the_same_bits(
    tmp_path: Path, algorithm: str, lora: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = {"model": {"lora": {"rank": 4}}} if lora else {}
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert run_command(["train", str(quick(tmp_path / "a", algorithm, **model)), "--run", str(whole)]) == 0

    step = FixedLoop.train_step

    def interrupted(self: FixedLoop) -> None:
        step(self)
        if self.step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(FixedLoop, "train_step", interrupted)
    assert run_command(["train", str(quick(tmp_path / "a", algorithm, **model)), "--run", str(broken)]) == 130
    monkeypatch.setattr(FixedLoop, "train_step", step)
    assert (broken / "checkpoints" / "step_000003").is_dir(), "Ctrl-C saves between two regular checkpoints"
    assert run_command(["resume", str(broken)]) == 0
    assert fingerprint(broken) == fingerprint(whole)
    rows = [[row for row in measured(run) if row[1] != "data"] for run in (whole, broken)]
    assert rows[0] == rows[1]
    assert run_command(["resume", str(broken)]) == 0, "a finished run says so"


def test_a_step_that_fails_leaves_a_checkpoint_to_go_on_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = FixedLoop.train_step

    def failing(self: FixedLoop) -> None:
        if self.step == 5:
            raise OSError("No space left on device")
        step(self)

    monkeypatch.setattr(FixedLoop, "train_step", failing)
    run = tmp_path / "run"
    assert run_command(["train", str(quick(tmp_path / "a", "dpo")), "--run", str(run)]) == 3
    monkeypatch.setattr(FixedLoop, "train_step", step)
    (run / "reference_logprobs.safetensors").unlink()  # computed again, from the initial weights
    assert run_command(["resume", str(run)]) == 0
    whole = tmp_path / "whole"
    assert run_command(["train", str(quick(tmp_path / "b", "dpo")), "--run", str(whole)]) == 0
    assert fingerprint(run) == fingerprint(whole)


def test_a_run_does_not_go_on_with_other_rows_or_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert run_command(["train", str(quick(tmp_path / "a", "dpo")), "--run", str(run)]) == 0
    (run / "evaluation" / "summary.json").unlink()
    capsys.readouterr()
    assert run_command(["resume", str(run), "--policy.learning_rate", "1.0"]) == 2
    assert "cannot be changed" in capsys.readouterr().err
    write_jsonl(tmp_path / "a" / "data" / "train.jsonl", fixed_rows("abcdefgh", "pairs", 5))
    assert run_command(["resume", str(run)]) == 2
    assert "not those the run began with" in capsys.readouterr().err


@pytest.mark.parametrize("algorithm", ["dpo", "kto", "sft", "reward_model"])
def test_micro_batches_change_nothing_but_rounding(tmp_path: Path, algorithm: str) -> None:
    values = []
    for tokens in (40, 8192):
        run = tmp_path / str(tokens)
        file = quick(tmp_path / "a", algorithm, policy={"micro_batch_tokens": tokens})
        assert run_command(["train", str(file), "--run", str(run)]) == 0
        values.append(measured(run))
    assert values[0][2][3]["train/micro_batches"] > values[1][2][3]["train/micro_batches"] == 1
    for small, large in zip(*values, strict=True):
        for name, value in small[3].items():
            if name != "train/micro_batches" and name != "train/computed_tokens":
                assert large[3][name] == pytest.approx(value, rel=2e-3, abs=2e-4), (small[0], name)


def test_the_order_of_a_file_changes_the_order_of_training_alone(tmp_path: Path) -> None:
    """One step over all rows: any order of the file gives the same step."""
    norms = []
    for seed in (0, 1):
        folder = tmp_path / str(seed)
        settings = fixed_settings(folder / "data", "dpo", run={"steps": 1, "threads": 1}, data={"rows_per_step": 160})
        path = Path(settings["data"]["path"])
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        np.random.default_rng(seed).shuffle(rows)
        write_jsonl(path, rows)
        file = write_toml(folder / "run.toml", settings)
        assert run_command(["train", str(file), "--run", str(folder / "run")]) == 0
        (row,) = [row for row in measured(folder / "run") if row[1] == "train"]
        norms.append(row[3])
    assert norms[0]["policy/grad_norm"] == pytest.approx(norms[1]["policy/grad_norm"], rel=1e-4)
    assert norms[0]["preference/chosen_logprob"] == pytest.approx(norms[1]["preference/chosen_logprob"], rel=1e-6)


def test_everything_that_reads_runs_reads_these(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert run_command(["train", str(quick(tmp_path / "a", "dpo")), "--run", str(run)]) == 0
    for command in (["doctor", str(run)], ["report", str(run)], ["view", str(run)]):
        assert run_command(command) in (0, 1), command
        output = capsys.readouterr()
        assert "cannot be read" not in output.out + output.err, command
    names = load_run(run).metrics.names()
    assert {"data/length_auc", "held_out/style_accuracy", "preference/chosen_logprob_change", "policy/entropy"} <= {
        *names
    }
    with pytest.raises(InputError, match="trains on fixed data"):
        evaluation_settings(str(run), None, ())


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, "are equal (2 such rows)"),
        ({"prompt": "a", "chosen": "b", "rejected": ""}, "an answer is empty"),
        ({"prompt": "a", "chosen": "b"}, "no value in column 'rejected'"),
    ],
)
def test_bad_rows_are_refused_before_anything_is_written_or_left_out_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], row: dict[str, Any], words: str
) -> None:
    file = quick(tmp_path / "a", "dpo")
    data = tmp_path / "a" / "data" / "train.jsonl"
    data.write_text(data.read_text() + f"{json.dumps(row)}\n" * 2)
    assert run_command(["train", str(file), "--run", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert "train.jsonl:161" in error
    assert not (tmp_path / "run").exists()
    if "rejected" in row:
        command = ["train", str(file), "--run", str(tmp_path / "run"), "--data.unusable", "drop"]
        assert run_command(command) == 0
        assert "2 rows were left out" in capsys.readouterr().out
        assert load_run(tmp_path / "run").metrics.last("data/unusable_rows") == 2.0


def test_rows_that_are_too_long_are_left_out_and_counted_or_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = quick(tmp_path / "a", "dpo")
    data = tmp_path / "a" / "data" / "train.jsonl"
    data.write_text(data.read_text() + json.dumps({"prompt": "a" * 600, "chosen": "b", "rejected": "c"}) + "\n")
    command = ["train", str(file), "--run", str(tmp_path / "run")]
    assert run_command([*command, "--data.too_long", "refuse"]) == 2
    assert "train.jsonl:161" in capsys.readouterr().err
    assert run_command(command) == 0
    assert "1 rows were left out because they are longer" in capsys.readouterr().out
    assert load_run(tmp_path / "run").metrics.last("data/too_long_rows") == 1.0


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"data": {"rows_per_step": 1000}}, "only 160 rows are left"),
        ({"data": {"max_tokens": 100000}}, "the model's context holds 512"),
        ({"policy": {"micro_batch_tokens": 10}}, "is never split"),
        ({"data": {"evaluation_path": "nowhere.jsonl"}}, "does not exist"),
    ],
)
def test_what_the_rows_make_impossible_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], sections: dict[str, Any], words: str
) -> None:
    file = quick(tmp_path / "a", "dpo", **sections)
    assert run_command(["train", str(file), "--run", str(tmp_path / "run")]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_held_out_prompts_are_never_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = fixed_settings(tmp_path / "data", "dpo")
    settings["data"]["evaluation_path"] = settings["data"]["path"]
    assert run_command(["train", str(write_toml(tmp_path / "run.toml", settings)), "--run", str(tmp_path / "run")]) == 2
    assert "has the same prompt as" in capsys.readouterr().err


def test_kto_wants_both_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = fixed_settings(tmp_path / "data", "kto")
    path = Path(settings["data"]["path"])
    rows = [json.loads(line) | {"label": True} for line in path.read_text().splitlines()]
    write_jsonl(path, rows)
    assert run_command(["train", str(write_toml(tmp_path / "run.toml", settings)), "--run", str(tmp_path / "run")]) == 2
    assert "every row is desirable" in capsys.readouterr().err


def test_the_reference_is_the_policy_at_the_start(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert run_command(["train", str(quick(tmp_path / "a", "dpo")), "--run", str(run)]) == 0
    result = read_held_out(RunDirectory.open(run), 0)
    assert result is not None
    assert result.values["margin"] == 0.0
    assert result.values["loss"] == pytest.approx(np.log(2.0), abs=1e-12)


@pytest.mark.parametrize("algorithm", ["dpo", "reward_model"])
def test_a_preference_that_is_only_length_shows(
    tmp_path: Path, algorithm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Labels follow length alone: the signals say so, and say nothing of the kind where they follow the content."""
    settings = fixed_settings(tmp_path / "data", algorithm)
    draw = np.random.default_rng(0)

    def text(length: int) -> str:
        return "".join(draw.choice(list("klmnop"), length))

    def rows(letters: str) -> list[dict[str, Any]]:
        return [
            {"prompt": f"{c}{d}", "chosen": text(draw.integers(6, 12)), "rejected": text(draw.integers(1, 6))}
            for c in letters
            for d in range(20)
        ]

    write_jsonl(Path(settings["data"]["path"]), rows("abcdefgh"))
    write_jsonl(Path(settings["data"]["evaluation_path"]), rows("uvwx"))
    file = write_toml(tmp_path / "run.toml", settings)
    assert run_command(["train", str(file), "--run", str(tmp_path / "run")]) == 0
    assert "! the answer with more tokens was chosen in 100% of the pairs" in capsys.readouterr().out
    metrics = load_run(tmp_path / "run").metrics
    assert metrics.last("data/length_auc") == 1.0
    assert (metrics.last("held_out/accuracy") or 0.0) > 0.9
    assert (metrics.last("held_out/style_accuracy") or 0.0) > 0.9, "no more is learnt than the surface"
    assert (metrics.last("held_out/length_margin_correlation") or 0.0) > 0.5

    content = load_run(train(tmp_path / "content", algorithm)).metrics
    assert (content.last("held_out/accuracy") or 0.0) > 0.8
    assert content.last("held_out/style_accuracy") == 0.5
    assert content.last("data/length_auc") == 0.5
    assert "chosen in" not in capsys.readouterr().out


@pytest.mark.parametrize(("algorithm", "words"), [("simpo", "its (chosen|rejected) answer"), ("sft", "its answer")])
def test_a_log_prob_that_is_not_finite_names_the_row_in_the_file(
    tmp_path: Path,
    algorithm: str,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An overflow in one token's embedding: nothing is trained on it, and the message leads to the row."""
    prepared = workbench.build_fixed

    def broken(preparation: workbench.FixedPreparation) -> workbench.FixedBench:
        bench = prepared(preparation)
        (token,) = bench.loaded.tokenizer.encode("~", add_special_tokens=False)
        with torch.no_grad():
            bench.loaded.model.get_input_embeddings().weight[token] = float("inf")
        return bench

    sections = {"run": {"steps": 1, "threads": 1}, "data": {"rows_per_step": 161}, "policy": {"learning_rate": 1e-3}}
    settings = fixed_settings(tmp_path / "data", algorithm, evaluation={"at_start": False}, **sections)
    settings["model"]["path"] = "tiny:qwen3"  # its head is not its embedding, so no other row is touched
    data = Path(settings["data"]["path"])
    odd = {"prompt": "q", "chosen": "a", "rejected": "~b", "completion": "~b"}
    data.write_text(data.read_text() + json.dumps(odd) + "\n")
    monkeypatch.setattr(fixed_run, "build_fixed", broken)
    file = write_toml(tmp_path / "run.toml", settings)
    assert run_command(["train", str(file), "--run", str(tmp_path / "run")]) == 3
    message = capsys.readouterr().err
    assert "is not finite" in message
    assert "train.jsonl:161" in message
    assert re.search(words, message)
