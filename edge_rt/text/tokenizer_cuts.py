"""Finds where a text can be cut so that its pieces encode to the same tokens as the whole text.

A tokenizer library takes 150 to 800 bytes per character that it encodes at once, so long texts are encoded piece by
piece. A piece ends where no token can span the cut. Two conditions have to hold for that:

* The regular expressions that split text in byte-level BPE tokenizers begin a new part there, whatever text is further
  away: a single space belongs to the word after it; text after a line end, and a symbol after a letter, begin a part.
* No entry of the vocabulary contains such a place, so no merge spans it. This is checked in the vocabulary.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any, Final

PIECE_CHARACTERS: Final = 2048
"""Characters of a piece, if it can be cut."""

# An apostrophe may begin a contraction, which belongs to the letters before it in some expressions.
_SIGNS: Final = r"""!"#$%&()*+,\-./:;<=>?@[\\\]^_`{|}~"""
_SPACE: Final = r"(?<=\S)(?= \S)"
_LINE: Final = r"(?<=\S\n)(?=\S)"
_SIGN: Final = rf"(?<=[A-Za-z])(?=[{_SIGNS}])"
# The same inside an entry of a vocabulary, where a space is spelled \u0120 and a line end \u010a.
_BLANKS: Final = "\u0120\u010a\u010d\u0109\n"
_SPELLED: Final = (
    (_SPACE, re.compile(f"[^{_BLANKS}]\u0120")),
    (_LINE, re.compile(f"\u010a[^{_BLANKS}]")),
    (_SIGN, re.compile(f"[A-Za-z][{_SIGNS}]")),
)


def cut_pattern(document: Mapping[str, Any]) -> re.Pattern[str] | None:
    """Return a regular expression for the places where a tokenizer's texts can be cut; None: nowhere.

    Args:
        document: the checked ``tokenizer.json``.
    """
    added = [entry for entry in document.get("added_tokens") or () if not entry.get("special")]
    if any(entry.get(flag) for entry in added for flag in ("single_word", "lstrip", "rstrip")):
        # Such a token absorbs the text around it.
        return None
    contents = [form for entry in added for form in (entry["content"], unicodedata.normalize("NFKC", entry["content"]))]
    spelled = "\n".join(document["model"]["vocab"])  # a line end itself is spelled differently
    kinds = []
    for place, inside in _SPELLED:
        if place != _SPACE and _adds_space(document.get("pre_tokenizer")):
            continue
        if inside.search(spelled) is None and not any(re.search(place, content) for content in contents):
            kinds.append(place)
    return re.compile("|".join(kinds)) if kinds else None


def cut(text: str, places: re.Pattern[str] | None, size: int = PIECE_CHARACTERS) -> Iterator[str]:
    """Cut a text into pieces of ``size`` characters; the last is shorter, and pieces that cannot be cut are longer."""
    start = 0
    while places is not None and len(text) - start > size:
        found = places.search(text, start + size)
        if found is None:
            break
        yield text[start : found.start()]
        start = found.start()
    if start < len(text) or not text:
        yield text[start:]


def _adds_space(part: Any) -> bool:
    """Return whether a pre-tokenizer puts a space before a text that has none."""
    if not isinstance(part, Mapping):
        return False
    # It does so by default.
    own = part.get("type") == "ByteLevel" and bool(part.get("add_prefix_space", True))
    return own or any(map(_adds_space, part.get("pretokenizers") or ()))
