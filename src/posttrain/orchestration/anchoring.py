"""What a run does with its anchor between batches: the reference moves, the weight adapts, the pull is measured."""

from __future__ import annotations

from collections.abc import Iterable

from posttrain.orchestration.batch import Batch
from posttrain.orchestration.evaluation import Summary
from posttrain.orchestration.workbench import Workbench
from posttrain.policy.anchor_gradient import anchor_gradient
from posttrain.policy.update import plan_blocks


def pull(bench: Workbench, batch: Batch, step: int) -> dict[str, float]:
    """The anchor's gradient against the rest's, before batch ``step`` is trained; nothing where nobody asks for it."""
    every = bench.spec.anchor.gradient_every
    anchored = [s for s in batch.sequences if batch.anchor_weights[s.index] != 0]
    if not every or step % every or not anchored:
        return {}
    blocks = plan_blocks(bench.trainer, anchored, bench.plan)[0]
    rest = batch.table.advantage if batch.unanchored is None else batch.unanchored
    found = anchor_gradient(bench.trainer, blocks, batch.table, rest, bench.spec, batch.terms)
    return {} if found is None else found.signals()


def follow(bench: Workbench, step: int, divergence: float | None) -> dict[str, float]:
    """After batch ``step`` with mean ``divergence`` from the reference: move reference and weight. By signal name."""
    reference = bench.reference
    if reference is None:
        return {}
    values = {"policy/anchor_factor": reference.state.factor}
    if divergence is not None:
        reference.adapt(divergence)
    reference.follow(step, bench.trainer.masters.tensors)
    return values | {"policy/anchor_resets": float(reference.state.resets)}


def judge(bench: Workbench, found: Iterable[Summary]) -> bool:
    """After an evaluation: reset the reference if the mean held-out reward over environments stagnates. True if so."""
    rewards = [summary.reward.value for summary in found if summary.reward is not None]
    if bench.reference is None or not rewards:
        return False
    return bench.reference.judge(sum(rewards) / len(rewards), bench.trainer.masters.tensors)
