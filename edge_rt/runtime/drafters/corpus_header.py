"""The header of a corpus file: its fields, and the checks made before anything else is read."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edge_rt.errors import InvalidCorpus

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
        num_tokens: tokens of all texts.
        num_texts: number of texts; no match extends from one text into the next.
        num_places: positions that are followed by a token of the same text.
        tokenizer_sha256: of the tokenizer file that made the ids, hexadecimal.
        text_sha256: of the section with the text, hexadecimal.
        order_sha256: of the section with the positions, hexadecimal.
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
        path: the file.
        info: its header.
        sha256: of the model's tokenizer file, hexadecimal; None: any.

    Raises:
        InvalidCorpus: it was made with another one.
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
