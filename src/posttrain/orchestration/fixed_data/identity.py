"""The policy-identity table of a run on fixed data."""

from __future__ import annotations

from posttrain.orchestration.fixed_data.methods import Method
from posttrain.rundir.info import PolicyIdentity
from posttrain.settings.fixed import FixedSettings


def fixed_identity(settings: FixedSettings, compute_dtype: str, method: Method) -> tuple[PolicyIdentity, ...]:
    """What is on, and whether the objective is still the row's."""
    cast = compute_dtype != settings.model.master_dtype
    return (
        PolicyIdentity(
            "fixed data: the rows of a file",
            on=True,
            sampled_by="whoever wrote the file, not the policy being trained",
            logprob_trusted=False,
            same_objective=True,
            corrected_by="nothing has to: these objectives take the rows as given and use no log-prob of their sampler",
        ),
        PolicyIdentity(
            "packing: rows lie side by side in one pass, and each sees its own tokens alone",
            on=True,
            sampled_by="",
            logprob_trusted=True,
            same_objective=True,
            corrected_by="",
        ),
        PolicyIdentity(
            "shared prompt: both answers of a pair are computed behind one copy of their prompt, where that is cheaper",
            on=method.answers == 2,
            sampled_by="",
            logprob_trusted=True,
            same_objective=True,
            corrected_by="",
        ),
        PolicyIdentity(
            "reference log-probs computed once, with the initial weights",
            on=method.reference,
            sampled_by="",
            logprob_trusted=True,
            same_objective=True,
            corrected_by="",
        ),
        PolicyIdentity(
            f"cast copy: the model computes with {compute_dtype}, the optimizer moves {settings.model.master_dtype}",
            on=cast,
            sampled_by="",
            logprob_trusted=True,
            same_objective=True,
            corrected_by="",
        ),
    )
