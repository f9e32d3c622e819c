"""The JSON of the doctor: strict, complete, and as its page says."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path

from fakes import detector, finding
from series import history

from posttrain.faultmap.diagnosis import diagnose
from posttrain.faultmap.doctor_json import diagnosis_json
from posttrain.faultmap.finding import Observation, Severity
from posttrain.rundir.files import strict_json
from posttrain.signals.framework import Framework

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "doctor.md"


def made() -> dict[str, object]:
    log = history({"policy/entropy": [1.0] * 20}, framework=Framework.VERL)
    root = finding("root", 3, Severity.CRITICAL, cause="reward_hacked")
    root = dataclasses.replace(root, evidence=(Observation("policy/entropy", 3, math.inf, "not finite"),))
    lacking = detector("gap", needs=(("logprobs/mismatch_mean", "logprobs/mismatch_k3"),), symptom="mismatch_jump")
    asked = [detector("root", [root]), detector("late", [finding("late", 9)], yields_to=("root",)), lacking]
    text = strict_json(diagnosis_json(diagnose(log, [*asked, detector("bad", judge=lambda _: [][0])])))
    return json.loads(text, parse_constant=lambda name: (_ for _ in ()).throw(ValueError(name)))


def test_a_root_carries_its_consequences_and_what_the_map_knows() -> None:
    document = made()
    (root,) = document["findings"]  # pyright: ignore
    assert (root["detector"], root["symptom_layer"], root["cause_layer"]) == ("root", 2, 1)
    assert (root["severity"], root["onset_step"], root["last_step"]) == ("critical", 3, None)
    assert root["evidence"][0]["value"] is None
    assert root["remedy_in_framework"].startswith("Set `trainer.rollout_data_dir`")
    assert [c["detector"] for c in root["consequences"]] == ["late"]
    assert [c["verdict"] for c in root["differential"]] == ["supported", "cannot be judged", "ruled out"]
    assert document["severity"] == "critical"
    assert [row["state"] for row in document["rows"]][:3] == ["critical", "critical", "cannot be judged"]  # pyright: ignore
    assert document["unjudged"][0]["missing"] == [["logprobs/mismatch_mean", "logprobs/mismatch_k3"]]  # pyright: ignore
    assert document["failures"][0]["detector"] == "bad"  # pyright: ignore


def test_the_page_describes_every_field_and_no_other() -> None:
    document = made()
    section = PAGE.read_text().split("## JSON")[1].split("\n## ")[0]
    described = set(re.findall(r"^- `(\w+)`", section, flags=re.M))
    (root,) = document["findings"]  # pyright: ignore
    assert described == set(document) | set(root)
