"""A corpus of token ids on disk: finds where the last tokens of a text occur in it, and what follows there.

The text is stored in reverse order, as big-endian numbers. So the bytes from a position on are the context to its left,
the nearest token first, and comparing bytes compares contexts. A second array holds all positions in the order of their
contexts (a suffix array of the reversed text, cut to ``MAX_MATCH`` tokens): one binary search finds the longest suffix
of a text that occurs in the corpus, and its other occurrences are the neighbours in that array. REST (He et al. 2023)
searches the suffix array of the text once per length instead; the arrays of a suffix automaton would take four times
the disk space.
"""

from __future__ import annotations

import hashlib
import mmap
import struct
import sys
from bisect import bisect_left
from collections.abc import Sequence as Items
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Self

from edge_rt.errors import InvalidCorpus, StorageError
from edge_rt.runtime.decode.draft import Accepted, Draft
from edge_rt.runtime.forward.outputs import Outputs
from edge_rt.runtime.speculation.source import Guess
from edge_rt.system.process_memory import advise

MAGIC: Final = b"edgertCO"
VERSION: Final = 1
WORD: Final = 4

HEADER: Final = struct.Struct("<8sIIQQQ32s32s32s")
DIGEST_BYTES: Final = 32
HEADER_BYTES: Final = HEADER.size + DIGEST_BYTES
_REBUILD: Final = "Build it again with 'edge-rt corpus build'."


@dataclass(frozen=True, slots=True)
class CorpusInfo:
    """The header of a corpus file.

    Attributes:
        vocab_size: tokens of the vocabulary; every token id is below it.
        num_texts: number of texts; no match extends from one text into the next.
        num_places: positions that are followed by a token of the same text.
        tokenizer_sha256: of the tokenizer file that made the ids, hexadecimal.
    """

    vocab_size: int
    num_tokens: int
    num_texts: int
    num_places: int
    tokenizer_sha256: str
    text_sha256: str
    order_sha256: str

    @property
    def text_bytes(self) -> int:
        """Bytes of the reversed text: uint32, big-endian, ``id + 1``, and 0 where a text begins."""
        return WORD * (self.num_tokens + self.num_texts)

    @property
    def order_bytes(self) -> int:
        """Bytes of the positions: uint32, little-endian."""
        return WORD * self.num_places

    @property
    def size_bytes(self) -> int:
        """Bytes of the file."""
        return HEADER_BYTES + self.text_bytes + self.order_bytes

    def to_bytes(self) -> bytes:
        """Return the header: its fields, then their SHA-256."""
        hashes = map(bytes.fromhex, (self.tokenizer_sha256, self.text_sha256, self.order_sha256))
        counts = (self.vocab_size, self.num_tokens, self.num_texts, self.num_places)
        fields = HEADER.pack(MAGIC, VERSION, *counts, *hashes)
        return fields + hashlib.sha256(fields).digest()


def damaged(path: Path, what: str, numbers: str) -> InvalidCorpus:
    """Return the error for a file that has to be built again."""
    return InvalidCorpus(f"{path} {what}.", numbers, _REBUILD)


def check_tokenizer(path: Path, info: CorpusInfo, sha256: str | None) -> None:
    """Refuse a corpus whose ids come from another tokenizer.

    Args:
        sha256: of the model's tokenizer file, hexadecimal; None: any.
    """
    if sha256 not in (None, info.tokenizer_sha256):
        raise InvalidCorpus(
            f"{path} was built for another tokenizer.",
            f"Its tokenizer is {info.tokenizer_sha256[:12]}, the model's is {sha256[:12]}.",
            "Build it again with this model.",
        )


def parse_header(path: Path, head: bytes, size: int) -> CorpusInfo:
    """Parse and check an untrusted header."""
    if head[: len(MAGIC)] != MAGIC:
        raise damaged(path, "is not a corpus", f"It starts with {head[: len(MAGIC)]!r}, a corpus with {MAGIC!r}.")
    if len(head) < HEADER_BYTES:
        raise damaged(path, "ends in its header", f"It has {size} bytes, the header takes {HEADER_BYTES}.")
    fields, digest = head[: HEADER.size], head[HEADER.size :]
    _, version, vocabulary, tokens, texts, places, *hashes = HEADER.unpack(fields)
    if version != VERSION:
        raise damaged(path, "has another version", f"It has version {version}, this edge-rt reads {VERSION}.")
    if hashlib.sha256(fields).digest() != digest:
        raise damaged(path, "is damaged", "The hash of its header is wrong.")
    info = CorpusInfo(vocabulary, tokens, texts, places, *(value.hex() for value in hashes))
    if size != info.size_bytes:
        raise damaged(path, "is damaged", f"It has {size} bytes, its header says {info.size_bytes}.")
    return info


MAX_MATCH: Final = 32
"""Tokens of context that the positions are sorted by; also the longest possible match."""
MAX_PLACES: Final = 32
"""Most occurrences that are examined; of more, this many are taken at equal distances in the order of their contexts.
"""
_CHUNK: Final = 1 << 20
_BEYOND: Final = b"\xff" * WORD

Places = tuple[int, ...]
"""Positions in the reversed text, each the last token of an occurrence."""


class Corpus:
    """A memory-mapped corpus file, read-only: 8 bytes per token on disk, shared by processes, loaded where it is read.

    In a million tokens ``find`` takes 14 us and ``following`` 8 us for 32 places.
    """

    def __init__(self, path: Path, info: CorpusInfo, mapped: mmap.mmap) -> None:
        self.path = path
        self.info = info
        self._mapped = mapped
        self._view = memoryview(mapped)
        middle = HEADER_BYTES + info.text_bytes
        # Positions are little-endian; so is every machine that edge-rt runs on.
        self._order = self._view[middle:].cast("I")
        # Words in the machine's byte order, which are enough to test for equality.
        self._words = self._view[HEADER_BYTES:middle].cast("I")

    @classmethod
    def open(cls, path: Path, *, tokenizer: str | None = None, verify: bool = True) -> Corpus:
        """Map a corpus.

        Args:
            tokenizer: SHA-256 of the tokenizer file that its ids must come from, hexadecimal; None: any.
            verify: compare the hashes of both sections, which reads the whole file (some 0.5 s per GB). Without it a
                damaged section is not noticed: drafts are then wrong, but never contain a token outside the vocabulary.
        """
        try:
            with path.open("rb") as file:
                head = file.read(HEADER_BYTES)
                size = file.seek(0, 2)
                info = parse_header(path, head, size)
                check_tokenizer(path, info, tokenizer)
                if verify:
                    _check_sections(path, info, file)
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                # Lookups are random accesses: read-ahead would fill memory with pages that are hardly ever read.
                advise(mapped, "MADV_RANDOM")
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            raise StorageError(f"{path} cannot be read.", f"{error.strerror or error}.", "Check the path.") from error
        return cls(path, info, mapped)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Unmap the file; no lookup is possible afterwards."""
        self._order.release()
        self._words.release()
        self._view.release()
        self._mapped.close()

    def _context(self, place: int) -> bytes:
        start = HEADER_BYTES + WORD * place
        return self._mapped[start : start + WORD * MAX_MATCH]

    def context(self, number: int) -> list[int]:
        """Return up to ``MAX_MATCH`` token ids that end at place ``number``, below ``num_places``."""
        words = struct.unpack(f">{MAX_MATCH}I", self._context(self._order[number]).ljust(WORD * MAX_MATCH, b"\0"))
        text = words[: words.index(0)] if 0 in words else words
        return [word - 1 for word in reversed(text)]

    def find(self, context: Items[int]) -> tuple[int, Places]:
        """Return the longest suffix that occurs: its length, 0 to ``MAX_MATCH`` tokens, and the places where it ends.

        Args:
            context: token ids, at least 0; only the last ``MAX_MATCH`` matter.
        """
        order, key = self._order, self._context
        last = context[-MAX_MATCH:]
        query = struct.pack(f">{len(last)}I", *[token + 1 for token in reversed(last)])
        near = bisect_left(order, query, key=key)
        length = 0
        for neighbour in range(max(near - 1, 0), min(near + 1, len(order))):
            length = max(length, _common_words(query, key(order[neighbour])))
        if not length:
            return 0, ()
        low, high = self._around(near, query[: WORD * length])
        count = high - low
        if count <= MAX_PLACES:
            return length, tuple(order[low:high])
        return length, tuple([order[low + count * index // MAX_PLACES] for index in range(MAX_PLACES)])

    def _around(self, near: int, prefix: bytes) -> tuple[int, int]:
        """Return the range of positions whose contexts start with a prefix; ``near`` is in it, or its end.

        Most ranges are short, so both ends are searched from ``near`` outwards, in steps that double.
        """
        order, key = self._order, self._context
        step, low = 1, near
        while low > 0 and key(order[low - 1]) >= prefix:
            low = max(near - step, 0)
            step *= 2
        low = bisect_left(order, prefix, low, near, key=key)
        beyond = prefix + _BEYOND
        step, high = 1, near
        while high < len(order) and key(order[high]) < beyond:
            high = min(near + step, len(order))
            step *= 2
        return low, bisect_left(order, beyond, near, high, key=key)

    def following(self, places: Places) -> list[tuple[int, Places]]:
        """Return the tokens that follow the places, the most frequent first, each with the places where it stands."""
        words = self._words
        num_words = len(words)
        found: dict[int, list[int]] = {}
        for place in places:
            # A damaged file may hold any position.
            if 0 < place <= num_words:
                behind = found.get(word := words[place - 1])
                if behind is None:
                    found[word] = [place - 1]
                else:
                    behind.append(place - 1)
        vocabulary = self.info.vocab_size
        result = []
        for word, behind in found.items():
            token = int.from_bytes(word.to_bytes(WORD, sys.byteorder), "big") - 1
            # -1 separates texts.
            if 0 <= token < vocabulary:
                result.append((token, tuple(behind)))
        if len(result) > 1:
            result.sort(key=_fewer)
        return result


def _check_sections(path: Path, info: CorpusInfo, file: BinaryIO) -> None:
    """Compare both sections with their hashes. They are read, because mapped pages that are touched stay in memory."""
    file.seek(HEADER_BYTES)
    sections = (("text", info.text_bytes, info.text_sha256), ("order", info.order_bytes, info.order_sha256))
    for name, size, expected in sections:
        digest = hashlib.sha256()
        while size > 0 and (piece := file.read(min(_CHUNK, size))):
            digest.update(piece)
            size -= len(piece)
        if digest.hexdigest() != expected:
            numbers = f"Section '{name}' has SHA-256 {digest.hexdigest()}, the header says {expected}."
            raise damaged(path, "is damaged", numbers)


def _fewer(item: tuple[int, Places]) -> int:
    return -len(item[1])


def _common_words(first: bytes, second: bytes) -> int:
    """Return the number of whole words in which two byte strings agree at their beginning."""
    size = min(len(first), len(second))
    differing = int.from_bytes(first[:size], "big") ^ int.from_bytes(second[:size], "big")
    return (8 * size - differing.bit_length()) // (8 * WORD)


_MAX_CHILDREN: Final = 3
_BUCKETS: Final = (0, 0, 1, 2, 3, 3, 4, 4, 4, 5, 5, 5, 5, 5, 5, 5, 6)
"""Match length -> bucket: 1, 2, 3, 4-5, 6-8, 9-15, 16 and more."""
# fmt: off
_PRIORS: Final = (
    # One row per bucket; columns: most frequent continuation (there once, more often), second, third.
    0.06, 0.11, 0.03, 0.06, 0.01, 0.01,
    0.08, 0.18, 0.04, 0.05, 0.03, 0.05,
    0.13, 0.24, 0.04, 0.06, 0.04, 0.03,
    0.20, 0.26, 0.07, 0.06, 0.08, 0.05,
    0.25, 0.34, 0.11, 0.09, 0.02, 0.05,
    0.39, 0.76, 0.04, 0.15, 0.02, 0.07,
    0.53, 0.65, 0.22, 0.05, 0.01, 0.03,
)
# fmt: on


class CorpusSource:
    """Guesses what follows the longest suffix of the text in a corpus.

    A kind is (bucket of the match's length, rank, whether the guess stands there once or more often).
    """

    name = "corpus"
    num_kinds = len(_PRIORS)
    memory_bytes = 0
    """A mapped corpus is not counted."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        self._last: list[int] = []

    def prior(self, kind: int) -> float:
        """Return the share of such guesses that were right in 240 conversations."""
        return _PRIORS[kind]

    def begin(self, token_ids: Items[int]) -> None:
        """Move to the end of the known tokens."""
        self._last = list(token_ids[-MAX_MATCH:])

    def extend(self, token_ids: Items[int]) -> None:
        """Move past emitted tokens."""
        self._last = [*self._last, *token_ids][-MAX_MATCH:]

    def observe(self, draft: Draft, accepted: Accepted, outputs: Outputs, context: tuple[int, ...]) -> None:
        """Do nothing: a corpus does not change."""
        del draft, accepted, outputs, context

    def root(self) -> tuple[int, Places] | None:
        """Return the length of the longest match and its places; None if the last token is not in the corpus."""
        length, places = self._corpus.find(self._last)
        return (length, places) if places else None

    def children(self, cursor: tuple[int, Places]) -> Items[Guess]:
        """Return at most three guesses."""
        length, places = cursor
        base = 2 * _MAX_CHILDREN * _BUCKETS[min(length, len(_BUCKETS) - 1)]
        following = self._corpus.following(places)[:_MAX_CHILDREN]
        return [
            Guess(token, base + 2 * rank + (len(there) > 1), (length + 1, there))
            for rank, (token, there) in enumerate(following)
        ]
