"""Reward functions, faulty and sound, as people write them. The stress test must tell them apart."""

import re
import time
from fractions import Fraction

# --- five common ways to compare -------------------------------------------------------------------------------------


def substring(completions, gold, **columns):
    """Is the right answer anywhere in the text?"""
    return [float(str(g) in c) for c, g in zip(completions, gold, strict=True)]


def last_number(completions, gold, **columns):
    """Is the last number the right one?"""
    return [_last_number(c, str(g)) for c, g in zip(completions, gold, strict=True)]


def _last_number(text, gold):
    found = re.findall(r"-?\d+(?:\.\d+)?", text.replace(",", ""))
    try:
        return float(bool(found) and abs(float(found[-1]) - float(gold.replace(",", ""))) < 1e-6)
    except ValueError:
        return 0.0


def exact(completions, gold, **columns):
    """Is the text the right answer?"""
    return [float(c.strip() == str(g).strip()) for c, g in zip(completions, gold, strict=True)]


def boxed_exact(completions, gold, **columns):
    """Is there one box, and the right text in it?"""
    return [float(boxes(c) == [str(g).strip()]) for c, g in zip(completions, gold, strict=True)]


def robust(completions, gold, **columns):
    """Does the conclusion state one value, and is it the right one?"""
    return [float(_stated(c) == _value(str(g))) for c, g in zip(completions, gold, strict=True)]


def boxes(text):
    found = []
    for start in [m.end() for m in re.finditer(r"\\boxed\{", text[:20_000])][:50]:
        depth = 1
        for position in range(start, min(len(text), start + 500)):
            depth += {"{": 1, "}": -1}.get(text[position], 0)
            if depth == 0:
                found.append(text[start:position].strip())
                break
    return found


def _stated(text):
    """The one value that the text concludes with; a text with several or with a denial states none."""
    conclusion = re.sub(r"<think>.*?</think>", " ", text[:20_000], flags=re.DOTALL).strip()
    found = boxes(conclusion) or re.findall(r"<answer>(.*?)</answer>", conclusion, re.DOTALL)
    if not found:
        lead = r"(?:answer(?:\s+is|:)|comes to|result is|####)\s*"
        marked = re.findall(lead + r"([^\n]+?)(?:\.(?=\s|$)|\n|$)", conclusion, re.IGNORECASE)
        found = marked[-1:] or [conclusion]
    if re.search(r"\bnot\b|n't\b|\bor\b|wrong|rule|anything but", conclusion) or len(set(found)) != 1:
        return None
    return _value(found[0])


def _value(text):
    """A number as a fraction, words in lower case without marks; ``None`` for nothing."""
    bare = re.sub(r"\\text\{([^{}]*)\}|\*\*|\$|\\\(|\\\)|^\w\s*=", r"\1", text.strip()).strip().rstrip(".")
    bare = re.sub(r"^\((.*)\)$", r"\1", bare)
    if boxed := boxes(bare):
        bare = boxed[0]
    number = re.sub(r"\\d?frac\{(\d+)\}\{(\d+)\}", r"\1/\2", bare).replace("\u2212", "-")
    number = re.sub(r"(?<=\d),(?=\d{3})", "", number)
    try:
        return Fraction(number)
    except (ValueError, ZeroDivisionError):
        return re.sub(r"^(?:the|a|an) ", "", bare.lower()) or None


# --- faults ----------------------------------------------------------------------------------------------------------


def takes_nan(completions, gold, **columns):
    """Wrong if further away than the tolerance; NaN is never further away."""
    return [0.0 if _far(c, g) else 1.0 for c, g in zip(completions, gold, strict=True)]


def _far(text, gold):
    try:
        return abs(float(text) - float(gold)) > 1e-6
    except ValueError:
        return True


def runs_the_text(completions, gold, **columns):
    """Works the answer out with Python."""
    return [_run(c, g) for c, g in zip(completions, gold, strict=True)]


def _run(text, gold):
    try:
        return float(eval(text) == int(gold))  # noqa: S307 - the fault that is to be found
    except Exception:
        return 0.0


def raises_on_exponents(completions, gold, **columns):
    """``isdigit`` is true for exponents, which ``int`` refuses."""
    return [float(int(c) == int(g)) if c.isdigit() else 0.0 for c, g in zip(completions, gold, strict=True)]


def likes_length(completions, gold, **columns):
    return [max(float(str(g) == c.strip()), min(len(c) / 10_000, 2.0)) for c, g in zip(completions, gold, strict=True)]


def believes_verdicts(completions, gold, **columns):
    return [float(c.strip() == str(g) or "correct" in c) for c, g in zip(completions, gold, strict=True)]


def drops_signs(completions, gold, **columns):
    return [float(re.findall(r"\d+", c)[-1:] == [str(g).lstrip("-")]) for c, g in zip(completions, gold, strict=True)]


def compares_starts(completions, gold, **columns):
    return [float(c.strip().startswith(str(g))) for c, g in zip(completions, gold, strict=True)]


def pays_for_boxes(completions, gold, **columns):
    return [float(r"\boxed{" in c) for c in completions]


def pays_always(completions, **columns):
    return [1.0 for _ in completions]


def pays_never(completions, **columns):
    return [0.0 for _ in completions]


def half_for_any_number(completions, gold, **columns):
    return [
        1.0 if c.strip() == str(g) else 0.5 * bool(re.search(r"\w", c)) for c, g in zip(completions, gold, strict=True)
    ]


def breaks_on_long_text(completions, gold, **columns):
    for text in completions:
        if 15_000 < len(text) < 25_000 and "answer" not in text:
            time.sleep(60)
        if not text:
            raise IndexError("no text")
    return exact(completions, gold)


# --- sound -----------------------------------------------------------------------------------------------------------


def number_in_tag(completions, gold, **columns):
    """The last answer tag holds the right number and nothing else."""
    return [float(_tagged_number(c) == Fraction(str(g))) for c, g in zip(completions, gold, strict=True)]


def _tagged_number(text):
    held = re.findall(r"<answer>([^<]{0,100})</answer>", text)
    try:
        return Fraction(held[-1].strip().rstrip(".").replace(",", "").replace("\u2212", "-")) if held else None
    except (ValueError, ZeroDivisionError):
        return None


def letter_on_last_line(completions, gold, **columns):
    """The last line is the right letter, with or without parentheses."""
    lines = [([line.strip() for line in c.splitlines() if line.strip()] or [""])[-1] for c in completions]
    return [float(line.strip("().").upper() == str(g)) for line, g in zip(lines, gold, strict=True)]
