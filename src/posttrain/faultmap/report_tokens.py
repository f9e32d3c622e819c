"""Texts of single tokens, from the tokenizer file that lies in the run directory."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer

_CANDIDATES = ("model/tokenizer.json", "tokenizer.json", "tokenizer/tokenizer.json")


def find_tokenizer(run: Path) -> tuple[Tokenizer | None, str]:
    """The run's tokenizer and an empty text, or ``None`` and why there is none."""
    for name in _CANDIDATES:
        if (run / name).is_file():
            try:
                return Tokenizer.from_file(str(run / name)), ""
            except Exception as error:  # the library raises a bare Exception on a damaged file
                return None, f"{name}: is not a readable tokenizer ({error}); tokens are shown as ids"
    return None, ""


def token_texts(tokenizer: Tokenizer, ids: Iterable[int]) -> dict[int, str]:
    """What each id adds to a text. Ids the tokenizer does not know are left out.

    A token is decoded behind an anchor token, because decoders drop the space at the start of a text.
    """
    anchor = _anchor(tokenizer)
    texts: dict[int, str] = {}
    for token in sorted(set(ids)):
        name = tokenizer.id_to_token(token)
        if name is not None:
            text = _behind(tokenizer, anchor, token) if anchor is not None else tokenizer.decode([token])
            texts[token] = text or name
    return texts


def _anchor(tokenizer: Tokenizer) -> int | None:
    ids = tokenizer.encode("a", add_special_tokens=False).ids
    return ids[0] if ids and tokenizer.decode(ids[:1], skip_special_tokens=False) else None


def _behind(tokenizer: Tokenizer, anchor: int, token: int) -> str:
    before = tokenizer.decode([anchor], skip_special_tokens=False)
    both = tokenizer.decode([anchor, token], skip_special_tokens=False)
    if both.startswith(before):
        return both[len(before) :]
    return tokenizer.decode([token], skip_special_tokens=False)
