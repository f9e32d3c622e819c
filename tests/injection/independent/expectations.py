"""What a diagnosis should say of a faulty run: a finding, information, or nothing where the fault does no harm.

The table was filled by comparing each run with its clean twin (``check.py``) and reading the curves, before any
diagnosis saw them.
"""

from __future__ import annotations

from tests.injection.independent.cases import Case

FINDING, INFO, NONE = "finding", "info", "none"

# By the start of the name of a run; the longest that fits counts.
EXPECTED: dict[str, tuple[str, str]] = {
    "non_finite_gradient.start.1": (INFO, "a single step in 25 is skipped, and nothing is lost"),
    "non_finite_gradient.third.1": (INFO, "a single step in 25 is skipped, and nothing is lost"),
    "non_finite_gradient.late.1": (INFO, "a single step in 25 is skipped, and nothing is lost"),
}


def expected_of(case: Case) -> tuple[str, str]:
    """What to expect of a faulty run, and why where it is not a finding."""
    assert case.fault is not None
    fits = [name for name in EXPECTED if case.name.startswith(name)]
    if fits:
        return EXPECTED[max(fits, key=len)]
    return case.fault.expected, "nothing is broken" if case.fault.expected == INFO else ""
