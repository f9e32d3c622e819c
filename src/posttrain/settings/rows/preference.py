"""DPO and its relatives.

Legend of the formulas: ``c`` chosen and ``r`` rejected answer, ``lp`` summed log-prob (has gradient), ``ref`` the
initial weights' one, ``s = lp - ref``, ``D = s_c - s_r``, ``|y|`` tokens of an answer, ``P`` pairs of the step.
"""

from __future__ import annotations

from posttrain.settings.parts.preference import Preference
from posttrain.settings.rows.fixed import FixedRow

_BOTH_FALL = (
    "Only the difference is trained: both log-probs may fall. Watch preference/chosen_logprob; "
    "policy.preference.chosen_nll_weight = 1 holds the chosen one."
)
_LENGTH = (
    "If chosen answers are longer, length is learnt: watch preference/length_auc and "
    "preference/length_margin_correlation."
)
_OFF_POLICY = "Pairs sampled by another model teach less: an answer the policy never gives need not be made rarer."

_DPO = FixedRow(
    name="dpo",
    title="DPO",
    part=Preference(),
    learning_rate=1e-6,
    formula=("loss = -(1/P) sum log sigmoid(beta D)", "gradient = -beta sigmoid(-beta D) (grad lp_c - grad lp_r)"),
    source="arXiv 2305.18290",
    assumes="labels mostly right; pairs sampled by a policy near the initial weights",
    addresses="a reward model and a sampling loop, where pairs are all there is",
    pitfalls=(
        _BOTH_FALL,
        _LENGTH,
        _OFF_POLICY,
        "With labels that never contradict each other nothing bounds D but beta: one or two passes over the data.",
    ),
    differences=(
        (
            "TRL DPOTrainer",
            "the same loss (loss_type = 'sigmoid', beta 0.1, learning rate 1e-6); rows longer than "
            "max_length are cut there and left out here",
        ),
        ("OpenRLHF", "beta 0.1 and learning rate 5e-7"),
    ),
)

_CDPO = FixedRow(
    name="cdpo",
    title="Conservative DPO (smoothed labels)",
    part=Preference(label_noise=0.1),
    learning_rate=1e-6,
    formula=("loss = (1/P) sum [ -(1-e) log sigmoid(beta D) - e log sigmoid(-beta D) ]",),
    source="Mitchell 2023, a note on DPO with noisy preferences",
    assumes="a share e of swapped labels, spread evenly",
    addresses="overconfidence: the loss has its minimum at sigmoid(beta D) = 1 - e",
    pitfalls=("Biased: even with the right e it is not the loss of the clean labels.", _BOTH_FALL, _LENGTH),
    differences=(
        (
            "TRL DPOTrainer",
            "its 'sigmoid' loss does not read label_smoothing in 1.16; older releases gave this loss with it",
        ),
    ),
)

_ROBUST_DPO = FixedRow(
    name="robust_dpo",
    title="Robust DPO (unbiased under label noise)",
    part=Preference(label_noise=0.1, noise_correction="robust"),
    learning_rate=1e-6,
    formula=("loss = (1/P) sum [ -(1-e) log sigmoid(beta D) + e log sigmoid(-beta D) ] / (1-2e)",),
    source="arXiv 2403.00409",
    assumes="a known share e of swapped labels, spread evenly",
    addresses="swapped labels: in expectation over the noise it is DPO's loss of the clean ones",
    pitfalls=(
        "Not bounded below: a pair fitted the wrong way round is pushed on without end.",
        "Its variance grows as e nears 0.5.",
        _BOTH_FALL,
    ),
    differences=(("TRL DPOTrainer", "loss_type = 'robust' with label_smoothing e: the same loss"),),
)

_IPO = FixedRow(
    name="ipo",
    title="IPO",
    part=Preference(link="squared"),
    learning_rate=1e-6,
    formula=("loss = (1/P) sum (D - 1/(2 beta))^2",),
    source="arXiv 2310.12036",
    assumes="labels that are near to deterministic, where DPO's differences grow without bound",
    addresses="overfitting: the difference is pulled to 1/(2 beta) and not beyond",
    pitfalls=(
        "The target 1/(2 beta) is in nats of whole answers: with score = 'token_mean' it is per token, and beta has "
        "another meaning.",
        "The gradient grows with the distance from the target: outliers weigh most.",
        _BOTH_FALL,
    ),
    differences=(
        ("TRL DPOTrainer", "loss_type = 'ipo' takes token means: policy.preference.score = 'token_mean' here"),
        ("the paper, OpenRLHF", "sums, as here"),
    ),
)

_SIMPO = FixedRow(
    name="simpo",
    title="SimPO (no reference)",
    part=Preference(beta=2.0, score="token_mean", reference=False, margin=1.0),
    learning_rate=5e-7,
    formula=("loss = -(1/P) sum log sigmoid(beta (lp_c/|c| - lp_r/|r|) - margin)",),
    source="arXiv 2405.14734",
    assumes="beta 2 to 10, margin about half of beta, a batch of 128 pairs, one pass",
    addresses="the reference's memory, and the gap between DPO's score and what sampling goes by",
    pitfalls=(
        "Nothing keeps the policy near where it started but a small learning rate.",
        "The result depends much on learning rate, beta and margin.",
        _BOTH_FALL,
    ),
    differences=(("TRL CPOTrainer", "loss_type = 'simpo', simpo_gamma 0.5, and cpo_alpha = 0 for this loss"),),
)

_KTO = FixedRow(
    name="kto",
    title="KTO (labelled answers instead of pairs)",
    part=Preference(link="kto"),
    learning_rate=1e-6,
    formula=(
        "desirable:   w_D (1 - sigmoid(beta (s - z0)))",
        "undesirable: w_U (1 - sigmoid(beta (z0 - s)))",
        "z0 = max(0, mean of s over answers put after other rows' prompts), without gradient;  loss = mean over rows",
    ),
    source="arXiv 2402.01306",
    assumes="answers of both labels in every step; w_D n_D / (w_U n_U) between 1 and 4/3",
    addresses="data without pairs: thumbs up, thumbs down",
    pitfalls=(
        "z0 needs rows with different prompts in a step.",
        "Where sigmoid saturates the gradient dies: badly misjudged answers are given up, which is the point.",
        "Counts far out of balance need other weights.",
    ),
    differences=(
        (
            "TRL KTOTrainer",
            "puts each answer after its neighbour's prompt within a micro-batch, and takes z0 over it; here after the "
            "next row's prompt that is another one, and over the whole step, whatever the micro-batches",
        ),
    ),
)

ROWS = (_DPO, _CDPO, _ROBUST_DPO, _IPO, _SIMPO, _KTO)
