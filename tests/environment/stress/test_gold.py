"""Which kind of answer a gold is, and what near misses and spellings are made of it."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.environment.answers import last_number, only_number
from posttrain.environment.stress.contract import Contract, Form
from posttrain.environment.stress.gold import Gold, GoldKind, read_gold
from posttrain.environment.stress.near_misses import near_misses, wrong_answer
from posttrain.environment.stress.numbers import decimal_text, plain_text
from posttrain.environment.stress.spellings import Standing, spellings
from posttrain.trajectory import Message, Task


def task(gold: object, **metadata: object) -> Task:
    return Task("t", (Message("user", "?"),), gold, "e", metadata)


def gold_of(value: object) -> Gold:
    gold = read_gold(task(value))
    assert gold is not None
    return gold


@pytest.mark.parametrize(
    ("written", "kind", "text", "value"),
    [
        (42, GoldKind.INTEGER, "42", 42),
        ("1,250", GoldKind.INTEGER, "1,250", 1250),
        ("-7", GoldKind.INTEGER, "-7", -7),
        (0.5, GoldKind.DECIMAL, "0.5", Fraction(1, 2)),
        ("3 + 4 = 7\n#### 7", GoldKind.INTEGER, "7", 7),
        (r"so \boxed{5}", GoldKind.INTEGER, "5", 5),
        ("$42$", GoldKind.INTEGER, "42", 42),
        ("-1/2", GoldKind.FRACTION, "-1/2", Fraction(-1, 2)),
        (r"\frac{3}{2}", GoldKind.FRACTION, r"\frac{3}{2}", Fraction(3, 2)),
        (r"50\%", GoldKind.PERCENT, r"50\%", 50),
        ("5 meters", GoldKind.QUANTITY, "5 meters", 5),
        ("(1,2)", GoldKind.COLLECTION, "(1,2)", None),
        (r"2\sqrt{3}", GoldKind.EXPRESSION, r"2\sqrt{3}", None),
        ("B", GoldKind.CHOICE, "B", None),
        (True, GoldKind.YES_NO, "True", None),
        ("Mercury", GoldKind.TEXT, "Mercury", None),
        ([1, 2], GoldKind.STRUCTURED, "[1, 2]", None),
        ("1/0", GoldKind.EXPRESSION, "1/0", None),
    ],
)
def test_kinds(written: object, kind: GoldKind, text: str, value: object) -> None:
    gold = gold_of(written)
    assert (gold.kind, gold.text, gold.value) == (kind, text, value)


def test_a_gold_may_stand_in_a_column_of_a_usual_name() -> None:
    found = read_gold(task(None, level=3, answer="8"))
    assert found is not None
    assert (found.text, found.column) == ("8", "answer")
    assert read_gold(task(None, level=3)) is None
    assert read_gold(task("seven"), numbers_only=True) is None


def test_gold_zero_is_a_gold() -> None:
    assert gold_of(0).value == 0


def test_equality_is_by_value() -> None:
    assert gold_of("0.5").equals(gold_of("1/2"))
    assert gold_of("Yes").equals(gold_of("yes"))
    assert not gold_of("5 meters").equals(gold_of("5 feet"))


@given(st.fractions(min_value=-(10**6), max_value=10**6, max_denominator=64))
def test_decimal_text_is_exact(value: Fraction) -> None:
    text = decimal_text(value)
    assert text is None or Fraction(text) == value
    assert Fraction(plain_text(value)) == value


@given(st.one_of(st.integers(-(10**9), 10**9), st.decimals(-1000, 1000, places=2).map(str)))
def test_no_near_miss_has_the_value_of_the_gold(value: object) -> None:
    gold = gold_of(value)
    misses = near_misses(gold)
    assert len(misses) >= 4
    for miss in misses:
        assert Fraction(miss.text) != gold.value, miss
    wrong = wrong_answer(gold, ())
    assert wrong is not None
    assert Fraction(wrong) != gold.value


@given(st.integers(-(10**9), 10**9), st.sampled_from(["", "#### ", r"\boxed{%s}"]))
def test_every_spelling_of_a_whole_number_reads_back(value: int, shape: str) -> None:
    gold = gold_of(shape % value if "%" in shape else f"{shape}{value}")
    rare = {"power of ten", "spaced minus"}
    for spelling in spellings(gold, Contract(Form.FREE)):
        if spelling.name not in rare:
            assert last_number(spelling.text) == value, spelling


def test_spellings_vary_one_thing_and_keep_the_form_asked_for() -> None:
    found = {s.name: s for s in spellings(gold_of("1250"), Contract(Form.BOXED))}
    assert found["as asked"].text == r"\boxed{1250}"
    assert found["thousands commas"].text == r"\boxed{1,250}"
    assert found["in a sentence"].standing is Standing.RARE
    tagged = {s.text for s in spellings(gold_of("12"), Contract(Form.TAG)) if s.standing is Standing.ASKED}
    assert "<answer>\n12\n</answer>" in tagged


def test_an_exact_contract_owes_nothing_but_the_text_itself() -> None:
    exact = Contract(Form.BARE, exact=True)
    standings = {s.standing for s in spellings(gold_of("12"), exact)}
    assert standings == {Standing.ASKED, Standing.RARE}


@pytest.mark.parametrize(
    ("gold", "wrong"), [("5 meters", "6 meters"), (r"50\%", r"51\%"), ("B", "C"), ("no", "yes"), ("1/2", "1.5")]
)
def test_a_wrong_answer_is_of_the_same_kind(gold: str, wrong: str) -> None:
    assert wrong_answer(gold_of(gold), ()) == wrong


def test_a_wrong_text_is_an_unrelated_one() -> None:
    others = [gold_of("the planet Mercury"), gold_of("Venus")]
    assert wrong_answer(gold_of("Mercury"), others) == "Venus"
    assert wrong_answer(gold_of("Mercury"), others[:1]) is None


def test_leading_dots_and_signs_are_numbers() -> None:
    texts = {s.name: s.text for s in spellings(gold_of("-0.5"), Contract(Form.FREE))}
    assert texts["no leading zero"] == "-.5"
    assert texts["typeset minus"] == "\u22120.5"
    assert only_number(texts["no leading zero"]) == only_number("-0.5")
