"""Which groups are worth training: dynamic sampling, decided on success and on whole groups."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from posttrain.policy.groups import Groups
from posttrain.settings.objective import GroupFilter


def is_mixed(successes: npt.NDArray[np.bool_]) -> bool:
    """True if some attempts of one group succeed and some fail. ``successes`` bool (gradable members,)."""
    return bool(successes.any() and not successes.all())


def kept_sequences(
    successes: npt.NDArray[np.bool_], group_ids: npt.ArrayLike, spec: GroupFilter, valid: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Sequences whose group passes the filter, bool (S,): all members of a group or none.

    ``successes`` bool (S,) is whether the *unshaped* reward reaches the environment's success threshold. Judging the
    shaped reward instead would keep groups in which everybody failed, with different lengths. ``valid`` bool (S,) is
    false for members without a reward; they decide nothing.
    """
    groups = Groups.of(group_ids, valid)
    if spec.rule == "none":
        return np.ones(successes.shape, np.bool_)
    wins = groups.sums(successes.astype(np.float64))
    return ((wins > 0) & (wins < groups.sizes))[groups.index]
