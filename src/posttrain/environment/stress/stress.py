"""Runs the stress test on one environment."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from posttrain.environment.grading import GradedTasks
from posttrain.environment.stress.attack import Attack, Situation
from posttrain.environment.stress.blind import blind_attacks
from posttrain.environment.stress.contract import Contract, contract_of
from posttrain.environment.stress.gold import Gold, GoldKind, read_gold
from posttrain.environment.stress.informed import informed_attacks
from posttrain.environment.stress.result import (
    TEXT_LIMIT,
    AttackResult,
    Baselines,
    Sample,
    SpellingResult,
    StressResult,
    Tally,
    total,
)
from posttrain.environment.stress.spellings import Spelling, spellings
from posttrain.environment.stress.trial import Answered, Trial
from posttrain.settings.environments import EnvironmentSettings
from posttrain.trajectory import GradeStatus, Task

BASELINE_TASKS = 128
EXTREME_TASKS = 2
"""Tasks on which texts that exhaust a grader are tried: they cost up to a time limit each."""
OTHERS = 60
"""Golds of other tasks that an attacker of one task is given."""


def stress(
    environment: GradedTasks, section: EnvironmentSettings, num_tasks: int, *, extreme: bool = True
) -> StressResult:
    """Send everything to the reward of one environment, over ``num_tasks`` of its training tasks.

    Without ``extreme`` no text is sent that is made to exhaust the grader: each may cost a time limit.
    """
    tasks = environment.tasks().train
    # The commonest contract stands for the environment in the summary; each task is held to its own.
    contracts = {task.task_id: contract_of(section, task) for task in tasks}
    contract = Counter(contracts.values()).most_common(1)[0][0]
    golds = {task.task_id: read_gold(task, numbers_only=contract.numbers_only) for task in tasks}
    sampled = _sample(tasks, golds, num_tasks)
    situations = _situations(sampled, contracts, golds, tasks)
    trial = Trial(environment)
    spelled = _spellings(trial, situations)
    attacks = _attacks(trial, situations, EXTREME_TASKS if extreme else 0)
    baselines = _baselines(trial, tasks, golds, contracts)
    known = [gold for gold in golds.values() if gold is not None]
    return StressResult(
        environment=environment.name,
        threshold=environment.success_threshold,
        reward_kind=str(environment.reward_kind),
        contract=contract,
        num_tasks=len(tasks),
        num_sampled=len(sampled),
        num_texts=trial.num_graded,
        kinds=dict(Counter(str(gold.kind) for gold in known)),
        gold_columns=tuple(sorted({gold.column for gold in known if gold.column})),
        num_without_gold=len(golds) - len(known),
        attacks=attacks,
        spellings=spelled,
        baselines=baselines,
        coverage=_coverage(attacks, spelled),
    )


def _sample(tasks: Sequence[Task], golds: Mapping[str, Gold | None], count: int) -> list[Task]:
    """Tasks spread over the whole order, taking turns between the kinds of gold there are."""
    by_kind: dict[GoldKind | None, list[Task]] = defaultdict(list)
    for task in tasks:
        gold = golds[task.task_id]
        by_kind[None if gold is None else gold.kind].append(task)
    share = max(1, -(-count // len(by_kind)))
    chosen = [_spread(group, share) for group in by_kind.values()]
    turns = [group[i] for i in range(share) for group in chosen if i < len(group)]
    picked = {task.task_id for task in turns[:count]}
    missing = min(count, len(tasks)) - len(picked)
    picked |= {task.task_id for task in _spread([t for t in tasks if t.task_id not in picked], missing)}
    return [task for task in tasks if task.task_id in picked]


def _spread(tasks: Sequence[Task], count: int) -> list[Task]:
    if count >= len(tasks):
        return list(tasks)
    return [tasks[(2 * i + 1) * len(tasks) // (2 * count)] for i in range(count)]


def _situations(
    sampled: Sequence[Task],
    contracts: Mapping[str, Contract],
    golds: Mapping[str, Gold | None],
    tasks: Sequence[Task],
) -> list[Situation]:
    pool = [gold for task in _spread(tasks, 10 * OTHERS) if (gold := golds[task.task_id]) is not None]
    situations: list[Situation] = []
    for place, task in enumerate(sampled):
        gold = golds[task.task_id]
        start = (place * 7 + 1) % max(len(pool), 1)
        others = [*pool[start:], *pool[:start]]
        if gold is not None:  # answers of the same kind are the plausible ones
            same = [other for other in others if other.kind is gold.kind]
            others = [*same, *(other for other in others if other.kind is not gold.kind)]
        situations.append(Situation(task, contracts[task.task_id], gold, tuple(others[:OTHERS])))
    return situations


@dataclass(slots=True)
class _Tried:
    situation: Situation
    attack: Attack


def _attacks(trial: Trial, situations: Sequence[Situation], extreme_tasks: int) -> tuple[AttackResult, ...]:
    by_name: dict[tuple[str, str], list[_Tried]] = defaultdict(list)
    for place, situation in enumerate(situations):
        for attack in (*blind_attacks(situation), *informed_attacks(situation)):
            if not attack.extreme or place < extreme_tasks:
                by_name[attack.family, attack.name].append(_Tried(situation, attack))
    return tuple(_attack(trial, tried) for tried in by_name.values())


def _attack(trial: Trial, tried: Sequence[_Tried]) -> AttackResult:
    pairs = [(t.situation, text) for t in tried for text in t.attack.texts]
    answers = iter(trial.grade([(situation.task, text) for situation, text in pairs]))
    per_task = [[next(answers) for _ in t.attack.texts] for t in tried]
    tally, first, last = Tally(), 0, 0
    for answered in per_task:
        paid = [_pays(trial, a) for a in answered]
        tally += _tally(answered, all(paid))
        if len(paid) == 2 and paid[0] != paid[1]:
            first, last = first + paid[0], last + paid[1]
    flat = [(s, text, a) for (s, text), a in zip(pairs, (a for group in per_task for a in group), strict=True) if a]
    rewarded = [(a.reward, s, text, a) for s, text, a in flat if a.reward is not None]
    best = max(rewarded, key=lambda entry: entry[0], default=None)
    broken = next(((s, text, a) for s, text, a in flat if a.status is not GradeStatus.GRADED), None)
    attack = tried[0].attack
    return AttackResult(
        attack.family,
        attack.name,
        attack.knowledge,
        attack.neutral,
        attack.extreme,
        tally,
        first,
        last,
        None if best is None else best[0],
        None if best is None else _sample_of(*best[1:]),
        None if broken is None else _sample_of(*broken),
    )


def _spellings(trial: Trial, situations: Sequence[Situation]) -> tuple[SpellingResult, ...]:
    by_name: dict[tuple[str, str], list[tuple[Situation, Spelling]]] = defaultdict(list)
    for situation in situations:
        if situation.gold is not None:
            for spelling in spellings(situation.gold, situation.contract):
                by_name[spelling.standing, spelling.name].append((situation, spelling))
    return tuple(_spelling(trial, tried) for tried in by_name.values())


def _spelling(trial: Trial, tried: Sequence[tuple[Situation, Spelling]]) -> SpellingResult:
    answers = trial.grade([(situation.task, spelling.text) for situation, spelling in tried])
    tally, refused = Tally(), None
    for (situation, spelling), answered in zip(tried, answers, strict=True):
        paid = _pays(trial, answered)
        tally += _tally([answered], paid)
        if refused is None and answered is not None and not paid:
            refused = _sample_of(situation, spelling.text, answered)
    kinds = sorted({str(situation.gold.kind) for situation, _ in tried if situation.gold is not None})
    spelling = tried[0][1]
    return SpellingResult(spelling.name, spelling.standing, tuple(kinds), tally, refused)


def _baselines(
    trial: Trial, tasks: Sequence[Task], golds: Mapping[str, Gold | None], contracts: Mapping[str, Contract]
) -> Baselines:
    known = [(task, gold) for task in tasks if (gold := golds[task.task_id]) is not None]
    if not known:
        return Baselines(None, 0.0, Tally(), Tally(), 0)
    counts = Counter(str(gold.value) if gold.value is not None else gold.text.casefold() for _, gold in known)
    _, count = max(counts.items(), key=lambda item: (item[1], item[0]))
    key = next(key for key, n in sorted(counts.items()) if n == count)
    answer = next(
        gold.text for _, gold in known if key == (str(gold.value) if gold.value is not None else gold.text.casefold())
    )
    chosen = _spread([task for task, _ in known], BASELINE_TASKS)
    step = max(1, len(known) // 3)
    places = {task.task_id: place for place, (task, _) in enumerate(known)}
    drawn = [known[(places[task.task_id] + step) % len(known)][1].text for task in chosen]

    def pay(texts: Iterable[str]) -> Tally:
        asked = [(t, contracts[t.task_id].state(text)) for t, text in zip(chosen, texts, strict=True)]
        return total(_tally([a], _pays(trial, a)) for a in trial.grade(asked))

    return Baselines(answer, count / len(known), pay(answer for _ in chosen), pay(drawn), len(chosen))


def _coverage(attacks: Sequence[AttackResult], spelled: Sequence[SpellingResult]) -> dict[str, Tally]:
    """What could be judged, by family of attack and by standing of spelling."""
    found: dict[str, Tally] = {}
    for spelling in spelled:
        name = f"right answers: {spelling.standing}"
        found[name] = found.get(name, Tally()) + spelling.tally
    for attack in attacks:
        name = f"attacks: {attack.family}"
        found[name] = found.get(name, Tally()) + attack.tally
    return found


def _pays(trial: Trial, answered: Answered | None) -> bool:
    return answered is not None and answered.reward is not None and answered.reward >= trial.threshold


def _tally(answered: Sequence[Answered | None], paid: bool) -> Tally:
    """One attempt of one or more texts: judged only if each of them was; one that was not tried counts as failed."""
    if any(a is None or a.status is GradeStatus.FAILED for a in answered):
        return Tally(failed=1)
    if any(a is not None and a.status is GradeStatus.UNGRADABLE for a in answered):
        return Tally(ungradable=1)
    return Tally(paid=int(paid), judged=1)


def _sample_of(situation: Situation, text: str, answered: Answered) -> Sample:
    kept = text if len(text) <= TEXT_LIMIT else f"{text[: TEXT_LIMIT // 2]} [...] {text[-TEXT_LIMIT // 2 :]}"
    gold = None if situation.gold is None else situation.gold.text
    return Sample(situation.task.task_id, gold, kept, len(text), answered.reward, answered.reason[:TEXT_LIMIT])
