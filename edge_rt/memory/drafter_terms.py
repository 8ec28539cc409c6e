"""The term of a memory plan for the drafters' tables, which are in the native library or in Python."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from edge_rt.memory.choice import Choice
from edge_rt.memory.shape import ModelShape


@dataclass(frozen=True)
class TableBytes:
    """Bytes of the drafters' tables.

    Attributes:
        token: per token of the suffix automaton.
        context: per context of each order in token recycling, with eight likely tokens.
    """

    token: int
    context: int


NATIVE_TABLES: Final = TableBytes(128, 192)
"""In the native library; these are bounds of its arrays. Measured, full: 60 to 102, and 155 to 185."""
PYTHON_TABLES: Final = TableBytes(420, 1310)
"""In Python, n-grams instead of suffixes included. Measured, full: 264 with random tokens, and 1310."""
_PRICES: Final = 160 << 10  # curves, acceptance rates and bandits
_SELF_SESSION: Final = 4 << 20  # a second graph: 0.8 MiB private, 1.9 MiB of outputs; the rest is slack


def table_bytes(shape: ModelShape, spec: str | None, corpus_bytes: int) -> TableBytes:
    """Return the bytes of tables of a mode: those of native packages are in the native library.

    Args:
        shape: the model.
        spec: mode of speculation; None: ``auto``.
        corpus_bytes: size of a corpus, which is searched in Python; 0 without one.
    """
    return NATIVE_TABLES if shape.op_profile == "native" and spec != "ngram" and not corpus_bytes else PYTHON_TABLES


def drafter_bytes(choice: Choice, tables: TableBytes, *, of_itself: bool = False) -> int:
    """Return the bytes of the drafters' tables when full.

    Args:
        choice: the settings.
        tables: where they are.
        of_itself: whether a second graph of the model drafts as well.
    """
    if not choice.draft_max:
        return 0
    own = _SELF_SESSION if of_itself else 0
    return _PRICES + own + tables.token * choice.suffix_tokens + tables.context * choice.recycling_contexts
