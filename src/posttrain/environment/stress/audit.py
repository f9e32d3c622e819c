"""The audit check ``environment``: the stress test of every environment of the settings."""

from __future__ import annotations

from collections.abc import Iterator

from posttrain.environment.build import build_environments
from posttrain.environment.stress.findings import findings_of, works
from posttrain.environment.stress.result import StressResult, Tally
from posttrain.environment.stress.spellings import Standing
from posttrain.environment.stress.stress import stress
from posttrain.settings.tree import Settings
from posttrain.signals.audit import AuditFinding, AuditOptions, AuditOutcome, AuditTable


def audit_environments(settings: Settings, options: AuditOptions) -> AuditOutcome:
    """Stress the reward of every environment. Raises InputError if one cannot be built."""
    environments = build_environments(settings.environments)
    try:
        results = [
            stress(environment, settings.environments[environment.name], options.tasks) for environment in environments
        ]
    finally:
        for environment in environments:
            environment.close()
    findings: list[AuditFinding] = [finding for result in results for finding in findings_of(result)]
    return AuditOutcome(
        findings=tuple(findings),
        tables=(_overview(results), *(table for result in results for table in _details(result))),
        data={"environments": [result.to_json() for result in results]},
    )


def _overview(results: list[StressResult]) -> AuditTable:
    rows: dict[str, list[str]] = {}
    for result in results:
        measured = {
            "tasks tried": f"{result.num_sampled} of {result.num_tasks}",
            "texts sent": str(result.num_texts),
            "answer asked for": str(result.contract.form) + (", text as it stands" if result.contract.exact else ""),
            "attacks that are paid": str(sum(works(attack, result) for attack in result.attacks)),
            "wrong texts paid": _share(result.false_positives),
            **{f"right answers refused, {standing}": _share(result.false_negatives(standing)) for standing in Standing},
            "paid for the commonest answer": _share(result.baselines.constant),
            "paid by chance": _share(result.baselines.chance),
        }
        for name, value in measured.items():
            rows.setdefault(name, []).append(value)
    columns = ("measure", *(result.environment for result in results))
    return AuditTable("Rewards", columns, tuple((name, *values) for name, values in rows.items()))


def _details(result: StressResult) -> Iterator[AuditTable]:
    exploits = [attack for attack in result.attacks if works(attack, result)]
    if exploits:
        yield AuditTable(
            f"{result.environment}: attacks that are paid",
            ("attack", "needs", "paid", "reward", "text sent"),
            tuple(
                (
                    f"{attack.family}: {attack.name}",
                    str(attack.knowledge),
                    f"{attack.tally.paid}/{attack.tally.judged}",
                    "" if attack.best is None else f"{attack.best:g}",
                    "" if attack.sample is None else attack.sample.text,
                )
                for attack in sorted(exploits, key=lambda a: (-a.tally.rate, a.family))
            ),
        )
    refused = [s for s in result.spellings if s.tally.paid < s.tally.judged]
    if refused:
        order = list(Standing)
        yield AuditTable(
            f"{result.environment}: right answers that are refused",
            ("spelling", "standing", "refused", "text sent"),
            tuple(
                (
                    s.name,
                    str(s.standing),
                    f"{s.tally.judged - s.tally.paid}/{s.tally.judged}",
                    "" if s.sample is None else s.sample.text,
                )
                for s in sorted(refused, key=lambda s: (order.index(s.standing), s.tally.rate))
            ),
        )
    yield AuditTable(
        f"{result.environment}: what could be judged",
        ("category", "judged", "paid", "ungradable", "failed"),
        tuple(
            (name, str(tally.judged), str(tally.paid), str(tally.ungradable), str(tally.failed))
            for name, tally in result.coverage.items()
        ),
    )


def _share(tally: Tally) -> str:
    return "-" if not tally.judged else f"{tally.paid}/{tally.judged} ({100 * tally.rate:.0f} %)"
