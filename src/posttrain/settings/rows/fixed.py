"""What a row that trains on fixed data holds, and the rows of supervised training and reward models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from posttrain.settings.parts.needs import Distribution
from posttrain.settings.parts.preference import Preference
from posttrain.settings.parts.supervised import RewardModelling, Supervised

RowKind = Literal["pairs", "answers", "conversations"]
"""What one row of the data is: two answers to a prompt, one labelled answer, or something to imitate."""


@dataclass(frozen=True, slots=True)
class FixedRow:
    """One algorithm on fixed data. ``part`` is its only part; ``learning_rate`` is for full fine-tuning.

    ``differences`` pairs another framework's setting with how this row differs from it.
    """

    name: str
    title: str
    part: Preference | Supervised | RewardModelling
    learning_rate: float
    formula: tuple[str, ...]
    source: str
    assumes: str
    addresses: str
    pitfalls: tuple[str, ...]
    differences: tuple[tuple[str, str], ...]

    @property
    def distribution(self) -> Distribution:
        """Where the data comes from."""
        return Distribution.FIXED

    @property
    def part_name(self) -> Literal["preference", "supervised", "reward_model"]:
        """Name of the table under ``[policy]``."""
        if isinstance(self.part, Preference):
            return "preference"
        return "supervised" if isinstance(self.part, Supervised) else "reward_model"

    @property
    def row_kind(self) -> RowKind:
        """What one row of the data is."""
        if isinstance(self.part, Supervised):
            return "conversations"
        return "pairs" if not isinstance(self.part, Preference) or self.part.pairs else "answers"

    @property
    def needs(self) -> tuple[str, ...]:
        """What the row cannot run without."""
        data = {
            "pairs": "pairs of a chosen and a rejected answer",
            "answers": "answers labelled desirable or not, of both kinds",
            "conversations": "answers to imitate",
        }[self.row_kind]
        reference = isinstance(self.part, Preference) and self.part.reference
        return (data, "reference log-probs (of the initial weights, computed once)") if reference else (data,)


_SFT = FixedRow(
    name="sft",
    title="Supervised fine-tuning",
    part=Supervised(),
    learning_rate=2e-5,
    formula=("loss = -(1/N) sum_i sum_t m_it lp_it,  N = trained tokens of the step",),
    source="maximum likelihood",
    assumes="answers worth imitating; the chat template that will be used for sampling",
    addresses="a policy that never does what is wanted: reinforcement cannot raise what is not sampled",
    pitfalls=(
        "Data of another distribution teaches what its states look like, not what the policy's own states need.",
        "It lowers entropy: long supervised training leaves less for reinforcement to choose from.",
        "With `data.train_on = 'all'` prompts are imitated, too.",
        "An answer without its end-of-sequence token teaches not to stop; the token is always trained here.",
    ),
    differences=(
        (
            "TRL SFTTrainer",
            "packs by cutting rows at the block size or by best fit; here rows are never cut and never "
            "see each other. TRL trains what the template writes after the end-of-sequence token (a newline); here not",
        ),
        ("token mean", "over the whole optimizer step, as TRL with num_items_in_batch"),
    ),
)

_REWARD_MODEL = FixedRow(
    name="reward_model",
    title="Bradley-Terry reward model",
    part=RewardModelling(),
    learning_rate=1e-5,
    formula=(
        "r = w . h(last token of the answer)",
        "loss = (1/P) sum_i [ -log sigmoid(r_c - r_r - margin) + c (r_c + r_r)^2 ],  P = pairs of the step",
    ),
    source="Bradley and Terry 1952; arXiv 2203.02155; margins arXiv 2307.09288",
    assumes="pairs whose labels mostly agree with what is wanted",
    addresses="a reward where nothing can be verified",
    pitfalls=(
        "Only differences are trained: rewards of different prompts do not compare.",
        "It learns what predicts the label, length and style included: watch preference/length_auc and "
        "preference/length_margin_correlation, and the accuracy on held-out pairs against preference/style_accuracy.",
        "More than one or two passes over the data overfit.",
        "A policy finds what it overrates: keep an anchor, and look at samples.",
    ),
    differences=(
        (
            "TRL RewardTrainer",
            "the same loss; learning rate 1e-4 there. The format on disk is the same "
            "(ForSequenceClassification with one label)",
        ),
        ("the margin", "from a column of the data; Llama 2 maps ratings to it"),
    ),
)

ROWS = (_SFT, _REWARD_MODEL)
