"""reasoning-gym datasets in their own process: split, extraction, and scorers that misbehave."""

from typing import Any

import pytest

from posttrain.environment.build import build_environment
from posttrain.environment.grading import GradedTasks
from posttrain.environment.protocol import Attempt
from posttrain.environment.reasoning_gym import EXTRACTIONS, reasoning_gym_environment
from posttrain.errors import InputError
from posttrain.settings.environments import ReasoningGymSettings
from posttrain.trajectory import FinishReason, GradeStatus, Task

pytest.importorskip("reasoning_gym")


def attempt(task: Task, completion: str) -> Attempt:
    return Attempt(task, completion, task.messages, FinishReason.STOP, 1)


def build(dataset: str, **options: Any) -> GradedTasks:
    return reasoning_gym_environment("g", dataset, **{"size": 30, "evaluation_size": 10, **options})


def test_settings_become_tasks_that_their_gold_answers_solve() -> None:
    section = ReasoningGymSettings(dataset="chain_sum", size=20, evaluation_size=5, parameters={"max_terms": 3})
    environment = build_environment("g", section)
    split = environment.tasks()
    assert (len(split.train), len(split.evaluation)) == (20, 5)
    tasks = [split.train[0], split.train[7], split.evaluation[2]]
    grades = environment.grade([attempt(t, f"Let me see.\nAnswer: {t.gold}\n") for t in tasks])
    wrong = environment.grade([attempt(tasks[0], "Answer: 0"), attempt(tasks[0], " ")])
    environment.close()
    assert [g.reward for g in grades] == [1.0, 1.0, 1.0]
    assert [g.reward for g in wrong] == [0.0, 0.0]
    assert [g.parts["parsable"] for g in wrong] == [1.0, 0.0]


def test_a_small_space_of_questions_is_split_without_overlap() -> None:
    # 81 possible questions, far fewer than asked for: overlap is certain unless it is prevented.
    parameters = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    environment = build("chain_sum", size=400, evaluation_size=20, parameters=parameters)
    split = environment.tasks()
    environment.close()
    train, held_out = ({t.messages[0].content for t in part} for part in (split.train, split.evaluation))
    assert not train & held_out
    assert len(train) == len(split.train) < 200
    assert len(held_out) == len(split.evaluation) > 0


def test_tasks_are_the_same_each_time_and_other_with_another_seed() -> None:
    splits = []
    for seed in (3, 3, 4):
        environment = build("chain_sum", seed=seed)
        splits.append(environment.tasks())
        environment.close()
    first, again, other = splits
    assert first == again
    # Generators draw entry i from seed + i: neighbouring seeds share entries, evaluation must not.
    assert {t.messages for t in first.train} & {t.messages for t in other.train}
    assert not {t.messages for t in first.evaluation} & {t.messages for t in other.train}


def test_generators_that_draw_on_are_graded_by_what_they_first_gave() -> None:
    environment = build("list_functions", size=6, evaluation_size=2)
    tasks = environment.tasks().train
    grades = environment.grade([attempt(t, str(t.gold)) for t in reversed(tasks)])
    environment.close()
    assert [g.reward for g in grades] == [1.0] * len(tasks)


def test_a_scorer_that_raises_leaves_only_that_attempt_ungradable() -> None:
    environment = build("prime_factorization", size=5, evaluation_size=1)
    task = environment.tasks().train[0]
    good, bad = environment.grade([attempt(task, str(task.gold)), attempt(task, "not a number")])
    environment.close()
    assert good.reward == 1.0
    assert (bad.status, bad.reward) == (GradeStatus.UNGRADABLE, None)
    assert "ValueError" in bad.reason
    assert (environment.counts.graded, environment.counts.ungradable) == (1, 1)


def test_a_scorer_that_never_ends_fails_only_that_attempt() -> None:
    environment = build("countdown", size=5, evaluation_size=1, timeout_s=2.0)
    task = environment.tasks().train[0]
    good, endless = environment.grade([attempt(task, str(task.gold)), attempt(task, "9**9**9**9**9")])
    environment.close()
    assert good.reward == 1.0
    assert (endless.status, endless.reward) == (GradeStatus.FAILED, None)
    assert environment.counts.timeouts == 1


def test_extraction_policies() -> None:
    text = "Work.\n<answer>4\n5</answer>\nSo: 1,250.0"
    found = {name: extract(text) for name, extract in EXTRACTIONS.items()}
    assert found == {"whole": text, "last_line": "So: 1,250.0", "last_number": "1250", "answer_tag": "4\n5"}
    assert {extract("") for extract in EXTRACTIONS.values()} == {None}


@pytest.mark.parametrize(
    ("dataset", "options", "problem"),
    [
        ("chain_sums", {}, "Nearest: chain_sum"),
        ("chain_sum", {"parameters": {"terms": 3}}, "refuses them.*terms"),
        ("chain_sum", {"parameters": {"min_terms": 9, "max_terms": 2}}, "refuses them"),
        ("chain_sum", {"parameters": {"seed": 3}}, "setting of its own"),
        ("chain_sum", {"extract": "middle"}, "is unknown"),
    ],
)
def test_what_cannot_be_generated_is_refused(dataset: str, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        build(dataset, **options)
