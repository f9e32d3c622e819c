"""What an ablation would run, and what it refuses before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_runs import small_config

from posttrain.errors import InputError
from posttrain.orchestration.ablation.plan import plan_ablation, read_change


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return small_config(tmp_path)


def test_one_change_at_a_time_against_the_base(config: Path) -> None:
    plan = plan_ablation(config, ["policy.algorithm=grpo,dapo", "rollout.group_size=4,8,16"], 2, ["--run.seed", "5"])
    assert [arm.name for arm in plan.arms] == [
        "base",
        "policy.algorithm=dapo",
        "rollout.group_size=8",
        "rollout.group_size=16",
    ]
    assert [(a.settings.policy.algorithm, a.settings.rollout.group_size) for a in plan.arms] == [
        ("grpo", 4),
        ("dapo", 4),
        ("grpo", 8),
        ("grpo", 16),
    ]
    assert plan.seeds == (5, 6)
    jobs = plan.jobs(Path("x"))
    assert len({job.path for job in jobs}) == len(jobs) == 8
    assert [job.seed for job in jobs] == [5] * 4 + [6] * 4
    assert jobs[-1].arm.seeded(6)["run"]["seed"] == 6


def test_a_change_takes_the_place_of_the_bases_override(config: Path) -> None:
    plan = plan_ablation(config, ["policy.algorithm=grpo,dapo"], 1, ["--policy.algorithm", "dapo"])
    assert [(a.name, a.settings.policy.algorithm) for a in plan.arms] == [
        ("base", "dapo"),
        ("policy.algorithm=grpo", "grpo"),
    ]


def test_commas_inside_a_value_do_not_separate() -> None:
    assert read_change("evaluation.k=[1, 4],[1]") == (("evaluation", "k"), ("[1, 4]", "[1]"))
    assert read_change('model.path="a,b",c') == (("model", "path"), ('"a,b"', "c"))
    assert read_change("policy.learning-rate=1e-5") == (("policy", "learning_rate"), ("1e-5",))


def test_folders_tell_apart_what_a_file_name_cannot(config: Path) -> None:
    changes = ["rollout.system_prompt='a/b','a:b'"]
    plan = plan_ablation(config, changes, 1)
    folders = [arm.folder for arm in plan.arms]
    assert len(set(folders)) == 3
    assert not any(set(folder) & set("/:'") for folder in folders)


@pytest.mark.parametrize(
    ("changes", "seeds", "overrides", "says"),
    [
        ([], 1, [], "nothing is changed"),
        (["policy.algorithm=dapo"], 0, [], "--seeds = 0"),
        (["policy.algoritm=dapo"], 1, [], "Did you mean policy.algorithm?"),
        (["policy.algorithm=dpo0"], 1, [], "no such algorithm"),
        (["policy.algorithm"], 1, [], "is no setting with its values"),
        (["algorithm=grpo"], 1, [], "is no setting with its values"),
        (["policy.algorithm=dapo,"], 1, [], "a value is missing"),
        (["policy.algorithm="], 1, [], "a value is missing"),
        (["rollout.group_size=8,zwei"], 1, [], "an integer >= 1"),
        (["rollout.group_size=8,1"], 1, [], "rollout.group_size = 1"),
        (["rollout.group_size=4"], 1, [], "nothing to compare"),
        (["rollout.group_size=8,8"], 1, [], "given twice"),
        (["rollout.group_size=8", "rollout.group_size=16"], 1, [], "changed twice"),
        (["run.seed=1,2"], 1, [], "Use --seeds"),
        (["policy.algorithm=dapo"], 1, ["--evaluation.at_end", "false"], "evaluation.at_end = False"),
        (["evaluation.at_end=false"], 1, [], "evaluation.at_end"),
        (["policy.algorithm=dpo"], 1, [], "trains on fixed data"),
    ],
)
def test_refused_before_anything_runs(
    config: Path, changes: list[str], seeds: int, overrides: list[str], says: str
) -> None:
    with pytest.raises(InputError) as refused:
        plan_ablation(config, changes, seeds, overrides)
    assert says in str(refused.value)
