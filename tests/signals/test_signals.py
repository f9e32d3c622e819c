"""The registry: names, templates, and how values combine."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.signals.reference import DEFAULT_PATH, main, metrics_reference
from posttrain.signals.registry import SIGNALS, UnknownSignalError, parameters_of, signal_for
from posttrain.signals.signal import Evidence, HealthyRange, Measured, Reduction, combine

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("name", "template"),
    [
        ("reward/mean", "reward/mean"),
        ("reward/part/correct/mean", "reward/part/{part}/mean"),
        ("rollout/finish/length", "rollout/finish/{reason}"),
        ("evaluation/sums of two/pass@16", "evaluation/{environment}/pass@{k}"),
        ("evaluation/sums/pass@16_low", "evaluation/{environment}/pass@{k}_low"),
        ("policy/advantage_share/25-50", "policy/advantage_share/{bin}"),
    ],
)
def test_a_concrete_name_finds_its_signal(name: str, template: str) -> None:
    assert signal_for(name).name == template


@pytest.mark.parametrize(
    "name",
    [
        "reward/meen",
        "reward/part//mean",
        "reward/part/a/b/mean",
        "evaluation/sums/pass@0",
        "evaluation/sums/pass@16_middle",
        "policy/advantage_share/30-40",
        "reward/mean\n",
        "",
    ],
)
def test_a_name_nobody_defined_is_refused(name: str) -> None:
    with pytest.raises(UnknownSignalError):
        signal_for(name)


def test_the_error_names_the_nearest_signal() -> None:
    with pytest.raises(UnknownSignalError, match=re.escape("did you mean 'reward/mean'")):
        signal_for("reward/meen")


def test_parameters_are_read_out_of_a_name() -> None:
    assert parameters_of("evaluation/sums/majority@8") == {"environment": "sums", "k": "8"}
    assert parameters_of("reward/mean") == {}


def test_every_signal_is_defined_and_no_name_matches_two() -> None:
    for name, signal in SIGNALS.items():
        assert signal.definition.endswith("."), name
        assert signal.unit, name
        concrete = name.replace("{k}", "4").replace("{bin}", "0-25").replace("{quarter}", "2")
        concrete = re.sub(r"\{\w+\}", "x", concrete)
        assert signal_for(concrete) is signal


def test_shares_have_a_range_within_zero_and_one() -> None:
    for signal in SIGNALS.values():
        if signal.reduction is Reduction.SHARE and signal.healthy is not None:
            assert signal.healthy.low is None or signal.healthy.low >= 0.0
            assert signal.healthy.high is None or signal.healthy.high <= 1.0


@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=0, max_size=7), min_size=1, max_size=6))
def test_a_mean_of_parts_is_the_mean_of_everything(parts: list[list[float]]) -> None:
    measured = [Measured("reward/mean", sum(p) / len(p) if p else math.nan, len(p)) for p in parts]
    everything = [value for part in parts for value in part]
    result = combine(measured, Reduction.MEAN)
    assert result.count == len(everything)
    if everything:
        assert result.value == pytest.approx(sum(everything) / len(everything), rel=1e-9, abs=1e-6)
    else:
        assert math.isnan(result.value)


def test_uneven_parts_are_not_averaged_as_equals() -> None:
    parts = [Measured("reward/mean", 1.0, 1), Measured("reward/mean", 0.0, 99)]
    assert combine(parts, Reduction.MEAN).value == pytest.approx(0.01)


def test_each_reduction() -> None:
    parts = [Measured("x", 3.0, 2), Measured("x", 1.0, 4), Measured("x", 2.0, 1)]
    assert combine(parts, Reduction.SUM).value == 6.0
    assert combine(parts, Reduction.MAX).value == 3.0
    assert combine(parts, Reduction.MIN).value == 1.0
    assert combine(parts, Reduction.LAST).value == 2.0


def test_a_broken_part_is_not_averaged_away() -> None:
    parts = [Measured("x", math.nan, 1), Measured("x", 1.0, 1000)]
    for reduction in (Reduction.MEAN, Reduction.MAX, Reduction.MIN, Reduction.SUM):
        assert math.isnan(combine(parts, reduction).value)
        assert math.isnan(combine(parts[::-1], reduction).value)


def test_different_signals_do_not_combine() -> None:
    with pytest.raises(ValueError, match="different signals"):
        combine([Measured("a", 1.0), Measured("b", 1.0)], Reduction.SUM)
    with pytest.raises(ValueError, match="nothing"):
        combine([], Reduction.SUM)


def test_a_healthy_range_never_contains_nan() -> None:
    healthy = HealthyRange(None, 1.0, "s", Evidence.PROPOSED, "a")
    assert healthy.contains(-5.0)
    assert healthy.contains(1.0)
    assert not healthy.contains(1.1)
    assert not healthy.contains(math.nan)


def test_the_page_of_metrics_is_current(tmp_path: Path) -> None:
    page = tmp_path / "metrics.md"
    main([str(page)])
    assert page.read_text(encoding="utf-8") == metrics_reference()
    assert (ROOT / DEFAULT_PATH).read_text(encoding="utf-8") == metrics_reference(), (
        "run: python -m posttrain.signals.reference"
    )


def test_the_page_holds_every_signal() -> None:
    page = metrics_reference()
    for name in SIGNALS:
        assert f"### `{name}`" in page


def test_the_page_says_what_posttrain_does_not_write_and_what_others_call_it() -> None:
    page = metrics_reference()
    entry = page.split("### `policy/anchor_weight`")[1].split("###")[0]
    assert "Not written by posttrain." in entry
    assert "verl `actor/kl_coef`" in entry
    assert "Not written" not in page.split("### `reward/mean`")[1].split("###")[0]
    assert "| `actor/lr(1e-4)` | `policy/learning_rate` | In units of 1e-4; older releases. Times 0.0001. |" in page
