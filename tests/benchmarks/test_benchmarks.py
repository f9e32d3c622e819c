"""The benchmarks run, their ratios are paired, and a broken side is heard."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def run_quick(name: str, out: Path) -> dict[str, Any]:
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), "--quick", "--threads", "1", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-3000:]
    last = json.loads(done.stdout.splitlines()[-1])
    assert last == json.loads(out.read_text())
    return last


def test_group_sizes_run_and_leave_a_complete_record(tmp_path: Path) -> None:
    result = run_quick("groups", tmp_path / "result.json")
    assert {"command", "commit", "machine", "versions", "settings", "measurements"} <= result.keys()
    assert result["settings"]["batch"] == 32
    assert [len(facts) for facts in result["measurements"].values()] == [1, 1, 1, 1]
    assert all(f["sampled"]["tokens"] > 0 for facts in result["measurements"].values() for f in facts)


def test_all_ways_to_log_probs_agree(tmp_path: Path) -> None:
    result = run_quick("head", tmp_path / "result.json")
    for size in result["measurements"].values():
        ours, *others = (facts[0] for facts in size["runs"].values())
        assert len(others) == 2
        for name in ("logprob_mean", "entropy_mean", "hidden_grad_norm", "weight_grad_norm"):
            assert [other[name] for other in others] == pytest.approx([ours[name]] * 2, rel=0.01)


@pytest.mark.long
@pytest.mark.parametrize("name", ["rollout", "training", "step"])
def test_quick_benchmark_runs(name: str, tmp_path: Path) -> None:
    result = run_quick(name, tmp_path / "result.json")
    assert result["ratios"]
    assert all(ratio["value"] > 0 for ratio in result["ratios"])


@pytest.mark.long
def test_both_training_sides_compute_the_same_gradient(tmp_path: Path) -> None:
    result = run_quick("training", tmp_path / "result.json")
    for rows in ("grouped", "distinct"):
        ours, theirs = (
            result["measurements"][rows][s][0]["grad_norm"] for s in ("posttrain", "plain transformers loop")
        )
        assert ours == pytest.approx(theirs, rel=0.05)


def test_quick_makes_sizes_small_unless_they_are_given() -> None:
    from harness.options import Size, options_of

    sizes = {"prompts": Size(128, 16), "group_size": Size(8), "seeds": Size((0, 1, 2), (0,))}

    def options(*given: str) -> dict[str, Any]:
        return vars(options_of("name", "What?", repeats=5, sizes=sizes, given=given))

    normal = options()
    assert {name: normal[name] for name in sizes} == {"prompts": 128, "group_size": 8, "seeds": [0, 1, 2]}
    assert normal["repeats"] == 5
    assert normal["out"] == BENCHMARKS / "results" / "name.json"
    quick = options("--quick", "--group-size", "4")
    assert {name: quick[name] for name in sizes} == {"prompts": 16, "group_size": 4, "seeds": [0]}
    assert (quick["model"], quick["repeats"], quick["out"]) == ("tiny:llama", 1, None)
    assert options("--quick", "--prompts", "32", "--seeds", "3", "4")["prompts"] == 32


def test_a_rival_that_is_not_there_ends_the_program_unless_it_is_left_out(tmp_path: Path) -> None:
    from harness.options import Rival, options_of

    rival = Rival("nobody", "Nobody")

    def python(*given: str) -> str:
        return options_of("name", "What?", repeats=5, rivals=[rival], given=given).nobody_python

    assert python("--nobody-python", "") == python("--quick") == ""
    assert python("--nobody-python", sys.executable) == sys.executable
    for given in ([], ["--quick", "--nobody-python", str(tmp_path / "python")]):
        with pytest.raises(SystemExit, match="make nobody"):
            python(*given)


def test_turns_rotate_and_the_warm_up_does_not_count() -> None:
    from harness.sides import take_turns

    order: list[tuple[str, int]] = []

    def run(name: str, repeat: int) -> dict[str, Any]:
        order.append((name, repeat))
        return {"seconds": 1.0, "repeat": repeat}

    found = take_turns({"a": lambda i: run("a", i), "b": lambda i: run("b", i)}, 2)
    assert [f["repeat"] for f in found["a"]] == [0, 1]
    assert order[2:] == [("a", 0), ("b", 0), ("b", 1), ("a", 1)]


def test_a_ratio_is_the_median_of_pairs_and_not_the_pair_of_medians() -> None:
    from harness.record import Ratio

    ratio = Ratio.of("ours / theirs", [10.0, 100.0, 30.0], [5.0, 50.0, 20.0], aim=2.5)
    assert (ratio.value, ratio.low, ratio.high) == (2.0, 1.5, 2.0)
    assert ratio.verdict == "missed by 20 %"


def test_a_side_that_dies_says_why() -> None:
    from harness.sides import Side

    with pytest.raises(RuntimeError, match="tiny:none"):
        Side("gemm", {"model": "tiny:none"}, threads=1)


def test_the_page_shows_every_ratio_and_table() -> None:
    from harness.document import page

    result = {
        "benchmark": "step",
        "question": "How fast?\n\nDetails.",
        "command": "python benchmarks/step.py",
        "commit": "abc",
        "date": "2026-01-01",
        "machine": {"processor": "P", "cores": 2, "memory_gib": 4},
        "versions": {"posttrain": {"torch": "1"}},
        "settings": {"rows": {"what": "x"}},
        "tables": [{"title": "T", "columns": ["side", "s"], "rows": [["ours", "1.5"]]}],
        "ratios": [{"name": "r", "value": 3.0, "low": 2.0, "high": 4.0, "aim": 4.0, "verdict": "missed by 25 %"}],
        "notes": ["a note"],
        "measurements": {},
    }
    text = page([result])
    for part in (
        "## Step: How fast?",
        "| r | 3.00 (2.00 to 4.00) | 4 | missed by 25 % |",
        "| ours | 1.5 |",
        "- a note",
        "torch 1",
    ):
        assert part in text


@pytest.mark.long
def test_every_way_of_distillation_trains_the_tokens_it_was_given(tmp_path: Path) -> None:
    runs = run_quick("distillation", tmp_path / "result.json")["measurements"]["runs"]
    assert len({run["way"] for run in runs}) == 4
    assert all(run["tokens"] >= 60 and run["steps"] >= 1 for run in runs if run["way"] != "untrained")
    # The teacher is the untrained student itself here: nothing is to be learnt from it.
    assert all(abs(run["reverse_kl"]) < 1e-3 for run in runs)


def test_baselines_are_compared_on_the_same_batches(tmp_path: Path) -> None:
    measured = run_quick("baselines", tmp_path / "result.json")["measurements"]
    for baselines in [record["baselines"] for record in (*measured["toy"], measured["demo"])]:
        # At equal expectation the group's mean is leave-one-out.
        assert baselines["group mean"]["mean_square"] == pytest.approx(baselines["leave-one-out"]["mean_square"])
        assert baselines["mean of the batch"]["mean_square"] <= baselines["none"]["mean_square"] + 1e-12
    toy = measured["toy"][0]
    assert toy["baselines"]["none"]["variance"] > 0
    assert toy["memory"]["critic weights"] > 0
    assert all(seconds > 0 for seconds in toy["seconds"].values())
