from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from synthetic_run import Synthetic, build_run, run_info

from posttrain.errors import InputError
from posttrain.faultmap.printable import printable
from posttrain.faultmap.view import print_view
from posttrain.rundir.directory import RunDirectory


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Synthetic:
    return build_run(tmp_path_factory.mktemp("view") / "run", steps=6, groups=4, size=4)


def shown(path: Path, **options: object) -> str:
    output = io.StringIO()
    print_view(path, console=Console(file=output, width=80, highlight=False), **options)  # type: ignore[arg-type]
    return output.getvalue()


def test_metrics_evaluation_and_trajectories_fit_80_columns(run: Synthetic) -> None:
    text = shown(run.path)
    assert max(map(len, text.splitlines())) <= 80
    for part in ("reward/zero_variance_groups", "held out, arithmetic", "pass@1", "1 not finite", "Step 6: the 3 best"):
        assert part in text
    assert "…" not in text.split("held out")[0]


def test_the_ungradable_one_is_shown_with_its_reason_as_plain_text(run: Synthetic) -> None:
    text = " ".join(shown(run.path, step=5, show="ungradable").split())
    assert "Step 5: 1 of 1 ungradable of 17 trajectories" in text
    assert "ungradable planted/0/0/0" in text
    assert run.reason in text
    assert "window.pwned=1</script>" in text


def test_limit_and_worst(run: Synthetic) -> None:
    text = shown(run.path, step=1, show="worst", limit=1)
    assert text.count("\n  model: ") == 1
    assert "\n0 task-1-" in text


def test_a_step_without_trajectories_is_refused(run: Synthetic) -> None:
    with pytest.raises(InputError, match="Steps 1 to 6"):
        shown(run.path, step=99)


def test_a_new_run_and_a_damaged_one(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "new", run_info(5))
    assert "No metrics yet" in shown(directory.path)
    made = build_run(tmp_path / "run", steps=2, groups=2, size=2)
    (made.path / "trajectories" / "step_000002.parquet").write_bytes(b"")
    text = shown(made.path)
    assert "Could not be read" in text
    assert "trajectories/step_000002.parquet" in text


def test_sampled_text_cannot_steer_the_terminal() -> None:
    assert printable("a\x1b[31mb\x07\n\u202e") == "a\\x1b[31mb\\x07\n\\u202e"
    assert printable("[red]") == "[red]"
