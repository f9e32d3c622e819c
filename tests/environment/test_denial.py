"""Numbers named only to deny them."""

import pytest

from posttrain.environment.denial import is_denied, unclear


@pytest.mark.parametrize(
    "text",
    [
        "The answer is not 42.",
        "It isn't 42",
        "It isn\u2019t **42**",
        "It can't be 42.",
        "I cannot solve it. It is certainly not 42, though.",
        "x \u2260 42",
        r"x \neq 42",
        "It is anything but $42$.",
        "We can rule out 42.",
        "42 is wrong.",
        "**42** is not the answer.",
        r"\boxed{not 42}",
        "<answer>not 42</answer>",
        "It does not equal 42",
        "not 1/2",
        r"It is not \frac{1}{2}",
    ],
)
def test_denied(text: str) -> None:
    assert is_denied(text)
    assert unclear(text) == "the number is denied"


@pytest.mark.parametrize(
    "text",
    [
        "42",
        "It is not 41 but 42.",
        "That is not hard: 42",
        "I was not sure at first. The answer is 42.",
        "It is not 41. It is 42.",
        "not a number",
        "Why not? 42",
        "knot 42",
        "42 is right.",
        "42 is not hard to find.",
        "",
    ],
)
def test_claimed(text: str) -> None:
    assert not is_denied(text)
    assert unclear(text) is None


def test_the_number_that_counts_is_looked_at() -> None:
    text = "It is 8, not 9"
    assert is_denied(text)
    assert not is_denied(text, "first")
    assert is_denied("not 8 but 9", "first")
