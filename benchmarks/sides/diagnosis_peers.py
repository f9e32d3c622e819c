"""rl-doctor and rlprobe, each on one log a command; and the logs of their own simulators.

Runs in the interpreter that ``scripts/diagnosis_peers.sh`` makes. Both tools are called as their documentation says.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

from harness.runlogs import read_rows, write_until
from harness.worker import Action, serve

SHARES = [i / 20 for i in range(1, 21)]
SEEDS = (0, 1, 2)

# What rlprobe's adapter for TRL does not know, by the names of verl's file logger.
VERL_TO_RLPROBE = {
    "critic/score/mean": "reward_mean",
    "critic/score/max": "reward_max",
    "critic/score/min": "reward_min",
    "actor/kl_loss": "kl_mean",
    "actor/entropy": "entropy_mean",
    "actor/entropy_loss": "entropy_mean",
    "actor/pg_clipfrac": "clip_fraction",
    "actor/pg_loss": "loss",
    "actor/grad_norm": "grad_norm",
    "actor/lr": "lr",
    "response_length/mean": "completion_len_mean",
    "response_length/max": "completion_len_max",
    "response_length/clip_ratio": "truncation_rate",
    "critic/vf_loss": "value_loss",
    "critic/vf_explained_var": "value_explained_variance",
    "critic/vf_clipfrac": "value_clip_fraction",
    "timing_s/step": "step_time_s",
}

RL_DOCTOR_FAULTS = {
    "healthy": None,
    "entropy_collapse": "entropy_collapse",
    "saturated_groups": "saturation",
    "too_hard": "tasks_too_hard",
    "reward_hacking": "hackable_reward",
    "length_hacking": "length_hack",
    "truncation": "truncation_cap",
    "kl_blowup": "kl_runaway",
    "clip_saturation": "clip_saturation",
    "grad_spikes": "gradient_spikes",
    "plateau": "plateau",
    "format_domination": "reward_part_dominates",
}
RLPROBE_FAULTS = {
    "kl_blowup": "kl_runaway",
    "entropy_collapse": "entropy_collapse",
    "reward_hack_length": "length_hack",
    "format_gaming": "reward_part_dominates",
    "clip_saturation": "clip_saturation",
    "degenerate_groups": "constant_groups",
    "value_divergence": "value_divergence",
    "grad_pathology": "non_finite_gradient",
    "truncation_starve": "truncation_cap",
    "reward_std_death": "constant_groups",
    "throughput_rot": "step_time_grows",
}
# Their signals have no name in TRL's or verl's logs: only a recording of rlprobe shows them.
RLPROBE_ONLY = ("adv_collapse", "repetition_spiral", "ref_drift_asymmetry")

RLPROBE_TO_LOG = {
    "reward_mean": "reward",
    "reward_std": "reward_std",
    "zero_variance_group_frac": "frac_reward_zero_std",
    "kl_mean": "kl",
    "entropy_mean": "entropy",
    "clip_fraction": "clip_ratio/region_mean",
    "loss": "loss",
    "lr": "learning_rate",
    "grad_norm": "grad_norm",
    "completion_len_mean": "completions/mean_length",
    "completion_len_max": "completions/max_length",
    "truncation_rate": "completions/clipped_ratio",
    "step_time_s": "step_time",
    "value_loss": "critic/vf_loss",
    "value_explained_variance": "critic/vf_explained_var",
    "value_clip_fraction": "critic/vf_clipfrac",
}


def rl_doctor(command: dict[str, Any]) -> dict[str, Any]:
    """Findings, worst first. It gives no onset: the first of twenty prefixes from which on it warned stands for it."""
    path = Path(command["path"])
    findings = _rl_doctor(path)
    if command.get("onsets"):
        warned_since: dict[str, int] = {}
        last = read_rows(path)[-1]["step"]
        with tempfile.TemporaryDirectory() as folder:
            for share in SHARES:
                step = math.ceil(share * last)
                found = _rl_doctor(write_until(path, step, Path(folder)))
                warned = {f["name"] for f in found if f["severity"] != "info"}
                warned_since = {name: warned_since.get(name, step) for name in warned}
        for finding in findings:
            finding["onset_step"] = warned_since.get(finding["name"])
    return {"findings": findings}


def _rl_doctor(path: Path) -> list[dict[str, Any]]:
    from rl_doctor import diagnose, load_run

    severities = {"INFO": "info", "WARNING": "warn", "CRITICAL": "critical"}
    problems = diagnose(load_run(str(path))).problems
    return [
        {"name": f.detector, "severity": severities[f.severity.name], "onset_step": None, "text": f.summary}
        for f in problems
    ]


def rlprobe(command: dict[str, Any]) -> dict[str, Any]:
    """Findings, most severe first, of a recording, or of a log recorded row by row as its callback for TRL does it."""
    from rlprobe.doctor import diagnose

    path = Path(command["path"])
    with tempfile.TemporaryDirectory() as folder:
        recording = path if path.is_dir() else _record(path, Path(folder) / "recording")
        found = diagnose(recording)
    return {
        "findings": [
            {"name": f.signature_id, "severity": f.severity, "onset_step": f.first_step, "text": f.explanation}
            for f in found
        ]
    }


def _record(path: Path, out: Path) -> Path:
    # The adapter's own table of keys is wanted, not its callback, which needs transformers.
    if "transformers" not in sys.modules:
        stand_in = types.ModuleType("transformers")
        stand_in.TrainerCallback = object  # type: ignore[attr-defined]
        sys.modules["transformers"] = stand_in
    from rlprobe.integrations.trl import _map_logs
    from rlprobe.recorder import Recorder

    rows = read_rows(path)
    with Recorder(out, algorithm="grpo", capture_env=False, install_handlers=False) as recorder:
        for row in rows:
            logs = {k: v for k, v in row.items() if k != "step" and v is not None}
            fields = _map_logs(logs)
            for key, name in VERL_TO_RLPROBE.items():
                if isinstance(logs.get(key), int | float) and not math.isnan(logs[key]):
                    fields.setdefault(name, float(logs[key]))
            recorder.log_step(int(row["step"]), **fields)
    return out


def simulate(command: dict[str, Any]) -> dict[str, Any]:
    """Write the logs of both simulators with their truth, as the independent runs have it."""
    out = Path(command["out"])
    names = [*_rl_doctor_scenarios(out), *_rlprobe_pathologies(out)]
    return {"names": names}


def _rl_doctor_scenarios(out: Path) -> list[str]:
    from rl_doctor.simulate import SCENARIOS
    from rl_doctor.simulate import simulate as scenario_records

    names = []
    for scenario in SCENARIOS:
        for seed in SEEDS:
            records, _ = scenario_records(scenario, seed=seed)
            name = f"rl-doctor.{scenario}.{seed}"
            fault = RL_DOCTOR_FAULTS[scenario]
            _write(out / name, "rl-doctor", records, fault, None, "info" if fault == "saturation" else "finding")
            names.append(name)
    return names


def _rlprobe_pathologies(out: Path) -> list[str]:
    from rlprobe.doctor import RunView
    from rlprobe.testing.synth import PATHOLOGIES, generate_run

    names = []
    for pathology in [None, *PATHOLOGIES]:
        for seed in SEEDS:
            name = f"rlprobe.{pathology or 'healthy'}.{seed}"
            recording = out / name / "recording"
            shutil.rmtree(out / name, ignore_errors=True)
            generate_run(recording, pathology, seed=seed)
            records = _records_of(RunView.load(recording))
            fault = pathology if pathology in RLPROBE_ONLY else RLPROBE_FAULTS.get(pathology or "")
            expected = "unseen" if pathology in RLPROBE_ONLY else "info" if fault == "step_time_grows" else "finding"
            _write(out / name, "rlprobe", records, fault, 250 if fault else None, expected, recording="recording")
            names.append(name)
    return names


def _records_of(view: Any) -> list[dict[str, Any]]:
    """Rows under the names of TRL (of verl for the critic). A step with gradients that are not finite has that norm."""
    records: list[dict[str, Any]] = [{"step": view.step_at(i)} for i in range(view.n)]
    for field, key in RLPROBE_TO_LOG.items():
        if view.has(field):
            for record, value in zip(records, view.series(field), strict=True):
                record[key] = float(value)
    for part in view.component_names:
        for record, value in zip(records, view.component(part), strict=True):
            record[f"rewards/{part}/mean"] = float(value)
    for record, count in zip(records, view.series("nan_count"), strict=True):
        if count > 0:
            record["grad_norm"] = math.nan
    return records


def _write(
    directory: Path,
    source: str,
    records: list[dict[str, Any]],
    fault: str | None,
    onset: int | None,
    expected: str,
    recording: str | None = None,
) -> None:
    log = directory / "trl" / "trainer_state.json"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(json.dumps({"global_step": records[-1]["step"], "log_history": records}) + "\n")
    truth = {
        "name": directory.name,
        "source": source,
        "logs": {"trl": "trl/trainer_state.json"} | ({"rlprobe": recording} if recording else {}),
        "steps": len(records),
        "fault": fault,
        "onset_step": onset,
        "expected": expected if fault else "none",
    }
    (directory / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")


def load(_: dict[str, Any]) -> dict[str, Action]:
    """What can be asked."""
    return {"rl-doctor": _surviving(rl_doctor), "rlprobe": _surviving(rlprobe), "simulate": simulate}


def _surviving(action: Action) -> Action:
    """A tool that fails on one log is asked about the next."""

    def act(command: dict[str, Any]) -> dict[str, Any]:
        try:
            return action(command)
        except Exception as error:
            return {"findings": [], "failure": f"{type(error).__name__}: {error}"}

    return act


if __name__ == "__main__":
    serve(load)
