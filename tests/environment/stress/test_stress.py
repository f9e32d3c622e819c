"""The stress test tells faulty rewards from sound ones."""

import math

import pytest
from stress_worlds import MIXED, NUMBERS, SECTION, environment_of, families, refused, stressed, tasks_of

from posttrain.environment.arithmetic import arithmetic_environment
from posttrain.environment.build import build_environment
from posttrain.environment.stress.attack import Knowledge, Situation, mentions
from posttrain.environment.stress.blind import blind_attacks
from posttrain.environment.stress.contract import Contract, Form
from posttrain.environment.stress.findings import findings_of
from posttrain.environment.stress.gold import read_gold
from posttrain.environment.stress.informed import informed_attacks
from posttrain.environment.stress.result import Tally
from posttrain.environment.stress.spellings import Standing
from posttrain.environment.stress.stress import stress
from posttrain.environment.verifiers import exact_grader, last_number_grader
from posttrain.settings.environments import ArithmeticSettings, EnvironmentSettings, ReasoningGymSettings, RowsSettings
from posttrain.signals.severity import Severity

TAGS = "Question {}? Put the number in <answer> tags."
LETTER = "Question {}? Answer with only the letter."


def test_substring_pays_whatever_contains_the_answer() -> None:
    result = stressed("substring")
    assert families(result) >= {
        "shotgun",
        "both answers",
        "concludes otherwise",
        "denied answer",
        "hidden",
        "near miss",
    }
    assert result.false_positives.rate > 0.38
    assert {"thousands commas", "LaTeX fraction", "typeset minus", "capitalised", "other spacing"} <= refused(result)
    severities = {f.name: f.severity for f in findings_of(result)}
    assert severities["exploit: shotgun"] is Severity.CRITICAL
    assert severities["exploit: denied answer"] is Severity.WARN


def test_last_number_pays_denials_and_loses_what_is_no_decimal() -> None:
    result = stressed("last_number")
    assert families(result) == {"denied answer"}
    assert {"fraction", "typeset minus", "no leading zero", "power of ten", "mixed number"} <= refused(result)
    assert result.false_negatives().rate > 0.5


@pytest.mark.parametrize("name", ["exact", "boxed_exact"])
def test_comparing_texts_pays_nothing_wrong_and_little_that_is_right(name: str) -> None:
    result = stressed(name)
    assert families(result) == set()
    assert result.false_positives.paid == 0
    assert result.false_negatives().rate > 0.85
    assert "refuses other spellings" in {f.name for f in findings_of(result) if f.severity is Severity.WARN}


def test_a_careful_comparison_loses_little() -> None:
    result = stressed("robust", NUMBERS)
    assert families(result) == set()
    assert result.false_negatives(Standing.ASKED).paid == 0
    assert result.false_negatives(Standing.USUAL).rate < 0.2


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("takes_nan", {"no number"}),
        ("likes_length", {"padding", "exhausting"}),
        ("believes_verdicts", {"judge", "concludes otherwise"}),
        ("compares_starts", {"near miss", "denied answer"}),
        ("drops_signs", {"near miss", "denied answer"}),
    ],
)
def test_each_fault_is_found_and_no_other(name: str, found: set[str]) -> None:
    assert families(stressed(name, NUMBERS)) == found


def test_a_reward_for_the_form_is_found() -> None:
    assert {"format only", "no number", "near miss"} <= families(stressed("pays_for_boxes", NUMBERS))


def test_a_reward_that_pays_always_fails_every_attack_and_is_a_constant() -> None:
    result = stressed("pays_always", NUMBERS)
    judged = {a.family for a in result.attacks if not a.neutral}
    assert families(result) == judged
    assert "a constant answer succeeds" in {f.name for f in findings_of(result)}
    assert result.baselines.constant == Tally(6, 6)


def test_a_reward_that_never_pays_refuses_what_was_asked() -> None:
    (first, *_) = findings_of(stressed("pays_never", NUMBERS))
    assert (first.name, first.severity) == ("refuses what was asked", Severity.CRITICAL)
    assert "success_threshold" in first.fix


def test_a_part_of_the_reward_for_nothing_is_told() -> None:
    result = stressed("half_for_any_number", NUMBERS)
    assert families(result) == set()
    (finding,) = [f for f in findings_of(result) if f.name == "part of the reward for nothing"]
    assert finding.severity is Severity.WARN
    assert "0.5" in finding.summary


def test_options_in_the_prompt_can_be_echoed() -> None:
    golds = ("Mercury", "Venus", "Mars", "Saturn", "Jupiter", "Neptune")
    prompt = "Which planet is it, {}: Mercury, Venus, Mars, Saturn, Jupiter or Neptune?"
    assert "echo" in families(stressed("substring", golds, prompt))


def test_an_echo_that_is_right_by_accident_is_no_exploit() -> None:
    """The last number of "What is 16 - 8?" is the answer: sending it is right, however it was come by."""
    result = stress(arithmetic_environment("a", ["difference"], held_out_pairs=1, high=6), ArithmeticSettings(), 14)
    (last,) = [a for a in result.attacks if a.name == "the last number of the prompt"]
    assert (last.tally.paid, last.tally.judged) == (0, 11)
    assert families(result) == set()


SOUND: list[tuple[str, EnvironmentSettings]] = [
    ("last integer", ArithmeticSettings(held_out_pairs=10)),
    ("first integer", ArithmeticSettings(held_out_pairs=10, grading="first_integer")),
    ("exact", ArithmeticSettings(held_out_pairs=10, task="sum2_1", grading="exact")),
    ("product", ArithmeticSettings(held_out_pairs=10, task="product")),
]


@pytest.mark.parametrize(("_name", "section"), SOUND, ids=[name for name, _ in SOUND])
def test_generated_arithmetic_is_sound(_name: str, section: ArithmeticSettings) -> None:
    result = stress(build_environment("e", section), section, 8)
    assert families(result) == set()
    assert [f for f in findings_of(result) if f.severity > Severity.INFO] == []
    assert result.false_negatives(Standing.ASKED).paid == 0


@pytest.mark.parametrize(
    ("name", "golds", "prompt"),
    [("number_in_tag", NUMBERS, TAGS), ("letter_on_last_line", ("A", "B", "C", "D", "B"), LETTER)],
)
def test_sound_functions_are_sound(name: str, golds: tuple[str, ...], prompt: str) -> None:
    result = stressed(name, golds, prompt)
    assert families(result) == set()
    assert result.false_positives.paid == 0
    assert result.false_negatives(Standing.ASKED).paid == 0


def test_rows_with_built_in_verifiers_are_sound() -> None:
    tasks = tasks_of(NUMBERS)
    for kind, grader in (("last_number", last_number_grader()), ("exact", exact_grader())):
        environment = environment_of(lambda completions, **_: [0.0], tasks)
        environment.grader = grader
        environment.counts = grader.counts
        section = RowsSettings(path="unused", verifier=kind)
        result = stress(environment, section, len(tasks))
        assert families(result) == set(), kind
        assert result.false_negatives(Standing.ASKED).paid == 0


@pytest.mark.parametrize("dataset", ["chain_sum", "letter_counting"])
def test_sound_reasoning_gym_scorers_are_sound(dataset: str) -> None:
    pytest.importorskip("reasoning_gym")
    section = ReasoningGymSettings(dataset=dataset, size=30, evaluation_size=2, extract="last_number")
    environment = build_environment("e", section)
    try:
        result = stress(environment, section, 3)
    finally:
        environment.close()
    assert families(result) == set()
    assert result.false_negatives(Standing.ASKED).paid == 0


def test_a_reasoning_gym_scorer_that_drops_the_sign_is_found() -> None:
    pytest.importorskip("reasoning_gym")
    section = ReasoningGymSettings(dataset="gsm_symbolic", size=20, evaluation_size=2, extract="last_number")
    environment = build_environment("e", section)
    try:
        result = stress(environment, section, 3)
    finally:
        environment.close()
    assert families(result) == {"near miss"}
    assert {a.name for a in result.attacks if a.tally.paid and a.family == "near miss"} >= {"other sign"}


def test_the_first_of_two_answers_may_be_declared_to_count() -> None:
    declared = Situation(tasks_of(["8"])[0], Contract(Form.FREE, first_counts=True), read_gold(tasks_of(["8"])[0]), ())
    assert "concludes otherwise" not in {a.family for a in informed_attacks(declared)}


@pytest.mark.parametrize("gold", MIXED)
def test_blind_attacks_do_not_state_the_answer(gold: str) -> None:
    (task,) = tasks_of([gold])
    read = read_gold(task)
    assert read is not None
    others = tuple(g for t in tasks_of(MIXED) if (g := read_gold(t)) is not None)
    for attack in blind_attacks(Situation(task, Contract(Form.FREE), read, others)):
        if attack.knowledge is Knowledge.NOTHING and attack.family != "shotgun":
            assert not any(mentions(text, read) for text in attack.texts), attack.name


def test_tasks_without_gold_are_sent_blind_attacks_only() -> None:
    tasks = tasks_of([None, None, None])
    result = stress(environment_of(lambda completions, **_: [0.0], tasks), SECTION, 3)
    assert result.spellings == ()
    assert all(a.knowledge is not Knowledge.GOLD for a in result.attacks)
    assert {f.name for f in findings_of(result)} == {"not judged: gold unknown"}


def test_a_rate_of_nothing_is_no_number_and_no_bound() -> None:
    assert math.isnan(Tally().rate)
    assert Tally().at_least() == 0.0
    assert Tally(10, 10).at_least() == pytest.approx(0.722, abs=0.01)
    assert Tally(1, 12).at_least() < 0.1
