"""What an environment asks of an answer: judged by what its prompt and settings declare, not by what we would like."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from posttrain.settings.environments import (
    ArithmeticSettings,
    EnvironmentSettings,
    FunctionSettings,
    ReasoningGymSettings,
    RewardModelSettings,
    RowsSettings,
)
from posttrain.trajectory import Task


class Form(StrEnum):
    """How an answer is to be written."""

    FREE = "free"
    """The prompt does not say."""
    BARE = "bare"
    """Nothing but the answer."""
    BOXED = "boxed"
    TAG = "tag"
    MARKER = "marker"
    """Behind ``####``."""

    def state(self, answer: str, tag: str = "answer") -> str:
        """An answer written in this form, and nothing else."""
        match self:
            case Form.BOXED:
                return rf"\boxed{{{answer}}}"
            case Form.TAG:
                return f"<{tag}>{answer}</{tag}>"
            case Form.MARKER:
                return f"#### {answer}"
            case Form.FREE | Form.BARE:
                return answer


@dataclass(frozen=True, slots=True)
class Contract:
    """What is declared.

    ``exact``: the settings compare the text as it stands, so no other spelling of the answer is promised.
    ``first_counts``: of several answers the settings take the first. ``numbers_only``: only the number of the gold
    is compared. ``unasked``: the settings read a form that the prompt does not mention.
    """

    form: Form
    tag: str = "answer"
    exact: bool = False
    first_counts: bool = False
    numbers_only: bool = False
    unasked: bool = False

    def state(self, answer: str) -> str:
        """An answer written as asked."""
        return self.form.state(answer, self.tag)


_TAG = re.compile(r"<\s*((?:final_?)?(?:answer|solution|result))\s*>", re.IGNORECASE)
_BARE = re.compile(
    r"\b(?:reply|answer|respond|output|return|give|write|state)\b[^.\n]{0,40}\b(?:only|just|nothing (?:but|else))\b"
    r"|\b(?:only|just) (?:the|a|one|your)\b[^.\n]{0,30}\b(?:answer|number|integer|letter|word|option|result|value)\b"
    r"|\bnothing else\b",
    re.IGNORECASE,
)


def contract_of(section: EnvironmentSettings, task: Task) -> Contract:
    """What a task's prompt and its environment's settings ask for together."""
    prompt = "\n".join(message.content for message in task.messages)
    form, tag = asked_form(prompt)
    match section:
        case ArithmeticSettings():
            exact = section.grading == "exact"
            return Contract(Form.BARE if exact else form, tag, exact, section.grading == "first_integer", True)
        case ReasoningGymSettings():
            if section.extract == "answer_tag":
                return Contract(Form.TAG, "answer", unasked=form is not Form.TAG or tag != "answer")
            whole = section.extract == "whole"
            return Contract(Form.BARE if whole else form, tag, exact=whole)
        case RowsSettings():
            exact = section.verifier == "exact"
            numbers = section.verifier == "last_number"
            return Contract(
                Form.BARE if exact else form, tag, exact, numbers_only=numbers, unasked=exact and _other(form)
            )
        case FunctionSettings() | RewardModelSettings():
            return Contract(form, tag)


def asked_form(prompt: str) -> tuple[Form, str]:
    """The form a prompt asks for, and the name of the tag if it is one."""
    if r"\boxed" in prompt:
        return Form.BOXED, "answer"
    if match := _TAG.search(prompt):
        return Form.TAG, match[1]
    if "####" in prompt:
        return Form.MARKER, "answer"
    return (Form.BARE if _BARE.search(prompt) else Form.FREE), "answer"


def _other(form: Form) -> bool:
    return form in (Form.BOXED, Form.TAG, Form.MARKER)
