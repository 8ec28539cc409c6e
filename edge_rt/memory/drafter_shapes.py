"""The numbers of networks that draft beside a model: trained heads and adapters, and blocks that predict ahead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from edge_rt.package.ahead import KV_FORMAT_NAME
from edge_rt.package.drafter import HEAD, TrainedDrafter
from edge_rt.package.kv_formats import KV_FORMAT
from edge_rt.package.layer_sizes import TILE_ROWS, row_bytes
from edge_rt.package.manifest import Manifest

PROMPT_ROWS: Final = 1024
"""Most distinct tokens of a prompt whose rows of the LM head are copied beside those of the vocabulary."""
_FRONTIER: Final = 8  # nodes that the operator computes together
_DEPTH: Final = 8  # most steps of a head
_SESSION: Final = 256 << 10  # of the operator's own graph; a session of one operator was measured to take 180 KiB


@dataclass(frozen=True)
class DrafterShape:
    """Numbers of a trained head, or of adapters of exits, which run one at a time and share graph and reduced head.

    Attributes:
        vocabulary_size: tokens that it can guess, besides those of the prompt.
        row_bytes: of a row of the model's LM head, whose rows are copied; 0 if it has a head of its own.
        embedding_bytes: of the model's embedding in ``weights.bin``, which it reads in the process wherever passes run.
        positions: share of first guesses that are right for the 1st, 2nd, ... token, as in ``AcceptanceRecord``.
    """

    name: str
    kind: str
    path: str
    weights_bytes: int
    vocabulary_size: int
    intermediate_size: int
    hidden_size: int
    vocab_size: int
    row_bytes: int
    embedding_bytes: int
    positions: tuple[float, ...]

    @property
    def needs_hidden(self) -> bool:
        """Whether it begins where the model's last layer ends, so that passes must return hidden states."""
        return self.kind == HEAD

    def prompt_rows(self, ctx: int) -> int:
        """Return the most tokens of a prompt that the reduced head takes in."""
        return min(PROMPT_ROWS, ctx, self.vocab_size)

    def head_rows(self, ctx: int) -> int:
        """Return the rows of the reduced head, those of the prompt included, in whole tiles."""
        return sum(-(-rows // TILE_ROWS) * TILE_ROWS for rows in (self.vocabulary_size, self.prompt_rows(ctx)))

    def read_bytes(self, ctx: int) -> int:
        """Return the bytes that a guess reads: its own weights and the reduced head, at its largest."""
        return self.weights_bytes + self.head_rows(ctx) * self.row_bytes

    def private_bytes(self, ctx: int) -> int:
        """Return the bytes of the reduced head, of its states and of a step, all of them at their largest."""
        rows = self.head_rows(ctx)
        numbers = _FRONTIER * (2 * self.hidden_size + self.intermediate_size + rows)
        states = (1 + (_DEPTH - 1) * _FRONTIER) * self.hidden_size
        # A byte per token says what can be guessed already.
        return rows * self.row_bytes + 4 * (numbers + states) + self.vocab_size + _SESSION


def _head_types(manifest: Manifest) -> str:
    """Return the types of a package's LM head, as in ``quantisation``; a tied head is the embedding."""
    types = manifest.quantisation
    return types.get("head", types.get("embedding", ""))


def drafter_shape(drafter: TrainedDrafter, manifest: Manifest) -> DrafterShape:
    """Return the numbers of a drafter that fits a package."""
    info, target = drafter.info, drafter.info.target
    own = "head" in info.head.formats
    rows = -(-target.vocab_size // TILE_ROWS) * TILE_ROWS
    return DrafterShape(
        name=info.name,
        kind=info.kind,
        path=str(drafter.path),
        weights_bytes=drafter.weights_bytes,
        vocabulary_size=info.head.vocabulary_size,
        intermediate_size=info.head.intermediate_size,
        hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        row_bytes=0 if own else row_bytes(target.hidden_size, _head_types(manifest)),
        embedding_bytes=rows * row_bytes(target.hidden_size, manifest.quantisation.get("embedding", "")),
        positions=info.acceptance.positions,
    )


@dataclass(frozen=True)
class AheadShape:
    """Numbers of a block that predicts further ahead.

    Attributes:
        token_bytes: of a token in its cache.
        columns: tokens that it can guess.
        head_bytes: of the rows of the LM head that are copied for it.
        weights_bytes: of ``weights.bin``, what its graph reads; ``own_bytes``: of that, what no other graph does; 0:
            that is not known.
    """

    token_bytes: int
    columns: int
    head_bytes: int
    weights_bytes: int = 0
    own_bytes: int = 0


def ahead_shape(manifest: Manifest) -> AheadShape | None:
    """Return the numbers of a package's block; None: it has none."""
    info, decoder = manifest.ahead, manifest.decoder
    if info is None or decoder is None or (attention := info.layer.attention) is None:
        return None
    return AheadShape(
        KV_FORMAT[KV_FORMAT_NAME].token_bytes(attention.num_kv_heads, attention.head_dim),
        info.columns(decoder),
        info.more_rows(decoder) * row_bytes(decoder.hidden_size, _head_types(manifest)),
    )
