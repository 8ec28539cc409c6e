"""Whether two tokenizers agree on what token ids mean."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from edge_rt.text.tokenizer_check import invalid, parse, read_file


def shared_tokens(first: Path, second: Path) -> int | None:
    """Return below which id two tokenizers have the same tokens, if one extends the other.

    Args:
        first: a ``tokenizer.json``.
        second: another one.

    Returns:
        The number of ids of the smaller one; None if a token of it has another id, or none, in the other.

    Raises:
        StorageError: a file cannot be read.
        InvalidTokenizer: it is malformed.
    """
    smaller, larger = sorted((_token_texts(first), _token_texts(second)), key=len)
    if any(larger.get(token_id) != text for token_id, text in smaller.items()):
        return None
    return max(smaller, default=-1) + 1


def _token_texts(path: Path) -> dict[int, str]:
    """Return the vocabulary's spelling of every token."""
    document = parse(read_file(path), path.name)
    model, added = document.get("model"), document.get("added_tokens") or []
    vocabulary = model.get("vocab") if isinstance(model, Mapping) else None
    if not isinstance(vocabulary, Mapping) or not isinstance(added, list):
        raise invalid(f"{path.name} has no vocabulary.", "It lacks model.vocab or added_tokens.")
    pairs = [*vocabulary.items(), *((one.get("content"), one.get("id")) for one in added if isinstance(one, Mapping))]
    if not all(isinstance(text, str) and type(token_id) is int and token_id >= 0 for text, token_id in pairs):
        raise invalid(f"{path.name} has a malformed vocabulary.", "Tokens are texts with whole numbers.")
    return {token_id: text for text, token_id in pairs}
