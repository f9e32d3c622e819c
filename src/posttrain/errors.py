"""Errors every layer raises for its users."""

from __future__ import annotations


class PosttrainError(Exception):
    """Base of the project's own errors. ``exit_code`` is what the command line returns."""

    exit_code = 3


class InputError(PosttrainError, ValueError):
    """Unusable input or settings. One line: the setting, the value given, what is allowed or how to fix it."""

    exit_code = 2

    def __init__(self, setting: str, value: object, problem: str, fix: str) -> None:
        self.setting, self.value, self.problem, self.fix = setting, value, problem, fix
        super().__init__(f"{setting} = {value!r}: {problem}. {fix}")


class NonFiniteError(PosttrainError, ArithmeticError):
    """A NaN or infinity where a number is needed; the step was not applied."""
