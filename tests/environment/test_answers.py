"""Reading answers out of text: one case per way a plausible pattern goes wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.environment.answers import (
    first_integer,
    is_ambiguous,
    last_boxed,
    last_integer,
    last_line,
    last_tag,
    only_integer,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("640.", 640),
        ("+640", 640),
        ("640.0", 640),
        ("Answer: $640$", 640),
        (r"\text{640}", 640),
        ("#### $1,250", 1250),
        (r"1{,}250", 1250),
        ("1, 250", 250),
        ("12,34", 34),
        ("-7", -7),
        ("The answer is \u22127.", -7),
        (r"\boxed{-7}", -7),
        (r"\boxed{7}", 7),
        ("17 - 9 = 8", 8),
        ("17-9", 9),
        ("8 = 17-9", 9),
        ("x-9", 9),
        ("= -8", -8),
        ("8.5", None),
        ("2.50", None),
        ("...8", 8),
        ("nothing", None),
        ("", None),
        ("3*9=27\n#### 27\n" + "So that checks out nicely. " * 14, 27),
        (r"\boxed{42} and then \boxed{41}", 41),
        ("9" * 5000, None),
    ],
)
def test_last_integer(text: str, value: int | None) -> None:
    assert last_integer(text) == value


@given(
    st.integers(-(10**12), 10**12),
    st.sampled_from(["{}", "{}.", "{}.0", "so it is {} !", "a\n\n{}\n", "**{}**", "${}$"]),
)
def test_last_integer_reads_back_every_integer(value: int, template: str) -> None:
    assert last_integer("17 - 9 is " + template.format(value)) == value
    assert last_integer("17 - 9 is " + template.format(f"{value:,}")) == value


def test_first_and_only_integer() -> None:
    assert first_integer("17 - 9 = 8") == 17
    assert only_integer(" 8.\n") == 8
    assert only_integer("-8") == -8
    assert only_integer("It is 8") is None
    assert only_integer("8 9") is None


@pytest.mark.parametrize(
    ("text", "ambiguous"),
    [
        ("1 or 2", True),
        ("$1$ or $2$.", True),
        ("2 or 2.0", False),
        ("1 or so, then 2", False),
        ("1, 2", False),
        ("2", False),
    ],
)
def test_alternatives_are_no_answer(text: str, ambiguous: bool) -> None:
    assert is_ambiguous(text) is ambiguous


def test_tags_span_lines_and_the_last_one_counts() -> None:
    text = "<think>one\ntwo</think>\n<answer>11</answer> no:\n<answer>\n12\n</answer>"
    assert last_tag(text, "answer") == "12"
    assert last_tag(text, "think") == "one\ntwo"
    assert last_tag("<answer>12", "answer") is None
    assert last_tag("12</answer>", "answer") is None


def test_boxed_balances_braces_and_takes_the_last() -> None:
    assert last_boxed(r"\boxed{41} \boxed{\frac{1}{2}} done") == r"\frac{1}{2}"
    assert last_boxed(r"\boxed{1") is None


def test_last_line_drops_labels_and_blank_lines() -> None:
    assert last_line("work\nFinal answer: 5 6 7\n\n") == "5 6 7"
    assert last_line("The answer is 12") == "12"
    assert last_line(" \n") is None
