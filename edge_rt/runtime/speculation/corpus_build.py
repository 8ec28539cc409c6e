"""Texts -> a corpus file: sorts all positions by the tokens before them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence as Items
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.errors import ConfigError, InputError
from edge_rt.runtime.speculation.corpus import MAX_MATCH, Corpus, CorpusInfo
from edge_rt.system.files import write_atomically

MAX_TOKENS: Final = 1 << 30
PIECE_CHARACTERS: Final = 1 << 18

Array = npt.NDArray[Any]


def pieces(text: str, size: int = PIECE_CHARACTERS) -> Iterator[str]:
    """Cut a text into pieces for a tokenizer, whose memory grows with the length of its input.

    Cuts follow line ends without other white space around them, where byte-level BPE never joins tokens. A text without
    such a line end in ``size`` characters is cut there regardless.
    """
    start = 0
    while len(text) - start > size:
        end = start + size
        cut = text.rfind("\n", start, end)
        while cut > start and (text[cut - 1].isspace() or text[cut + 1].isspace()):
            cut = text.rfind("\n", start, cut)
        end = cut + 1 if cut > start else end
        yield text[start:end]
        start = end
    yield text[start:]


def build_corpus(
    texts: Iterable[Items[int]], path: Path, *, vocab_size: int, tokenizer_sha256: str, force: bool = False
) -> CorpusInfo:
    """Write a corpus; the file is either absent or complete. Sorting takes about 50 bytes of memory per token.

    Args:
        texts: token ids, each ``0 <= id < vocab_size``; empty texts are left out.
    """
    if path.exists() and not force:
        raise ConfigError(
            f"{path} exists.",
            f"It has {path.stat().st_size} bytes.",
            "Replace it (--force, force=True), or name another file.",
        )
    arrays = [array for array in (np.asarray(text, np.int64) for text in texts) if array.size]
    _check(arrays, vocab_size)
    reversed_text = _reversed(arrays)
    order = _order(reversed_text)
    text_bytes = reversed_text.astype(">u4").tobytes()
    order_bytes = order.astype("<u4").tobytes()
    info = CorpusInfo(
        vocab_size=vocab_size,
        num_tokens=sum(array.size for array in arrays),
        num_texts=len(arrays),
        num_places=order.size,
        tokenizer_sha256=tokenizer_sha256,
        text_sha256=hashlib.sha256(text_bytes).hexdigest(),
        order_sha256=hashlib.sha256(order_bytes).hexdigest(),
    )
    write_atomically(path, (info.to_bytes(), text_bytes, order_bytes))
    Corpus.open(path).close()
    return info


def _check(arrays: list[Array], vocab_size: int) -> None:
    count = sum(array.size for array in arrays)
    if not 0 < count <= MAX_TOKENS:
        raise InputError(
            "The texts make no corpus.", f"They have {count} tokens, 1 to {MAX_TOKENS} are possible.", "Give others."
        )
    low, high = min(int(array.min()) for array in arrays), max(int(array.max()) for array in arrays)
    if low < 0 or high >= vocab_size:
        raise InputError(
            "A token is outside the vocabulary.", f"Ids {low} to {high}, {vocab_size} tokens.", "Use the model's ids."
        )


def _reversed(arrays: list[Array]) -> Array:
    """Return ``id + 1`` of all texts, the last token first, with 0 where each begins.

    No query contains a 0, so every comparison ends there, at the end of the file as well.
    """
    parts: list[Array] = []
    for array in arrays:
        parts += [np.zeros(1, np.int64), array + 1]
    return np.concatenate(parts)[::-1]


def _order(text: Array) -> Array:
    """Return the positions that a token follows, sorted by the ``MAX_MATCH`` words that begin there.

    Prefix doubling (Manber and Myers 1990): ranks by 1, 2, 4, ... words. Equal contexts stay in the order of the
    reversed text, the latest first.
    """
    rank = text
    order = np.argsort(rank, kind="stable")
    width = 1
    while width < MAX_MATCH:
        # Words beyond the end sort before all others.
        behind = np.zeros_like(rank)
        behind[:-width] = rank[width:] + 1
        key = rank * (int(behind.max()) + 1) + behind
        order = np.argsort(key, kind="stable")
        ordered = key[order]
        rank = np.empty_like(rank)
        rank[order] = np.concatenate(([0], np.cumsum(ordered[1:] != ordered[:-1])))
        width *= 2
    usable = np.zeros(text.size, bool)
    usable[1:] = (text[1:] != 0) & (text[:-1] != 0)
    return order[usable[order]]
