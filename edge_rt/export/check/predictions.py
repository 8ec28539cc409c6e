"""A package's predictions on a text, token by token, how far they are from others, and what caches lose by that."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.export.calibration.text import Calibration
from edge_rt.export.op_profile import native_caches, native_feeds
from edge_rt.ort.binding import StopSwitch
from edge_rt.ort.session import Session
from edge_rt.package.decoder import Decoder
from edge_rt.package.kv_formats import KV_FORMAT
from edge_rt.package.manifest import KvLoss, KvLosses
from edge_rt.package.rope_tables import loaded_tables

PASS_ROWS: Final = 64
"""Tokens of a pass: their logits are in memory at once."""
_ROW_COPIES: Final = 8
"""float64 arrays alive while rows are compared, of the vocabulary at least."""
_COMPARED_NUMBERS: Final = 1 << 12
"""Logits that are compared at once, where the vocabulary has fewer: one row after the other takes longer."""

KV_TOKENS: Final = 512
"""Most tokens of the calibration text that caches are compared on."""
MAX_KV_LOSS: Final = 0.0025
"""By how many nats a token a cache in int8 may lose more than one in f16 to be preferred.

Measured with SmolLM2 on 5 texts: int8 loses 0.0006 to 0.0011 more, the next smaller format 0.006 to 0.011; 4 bits of
the weights cost 0.061. Both are compared with an f32 cache, not with each other: any difference turns roundings of the
activations, which alone is 0.004 and says nothing of the format.
"""
_COMPARED: Final = ("f16", "int8")
_EXACT: Final = "f32"
_DIGITS: Final = 3

Array = npt.NDArray[Any]


class Predictor:
    """The predictions of a native graph on texts that are given, not generated; ``weights.bin`` lies beside it."""

    def __init__(self, graph: Path, decoder: Decoder) -> None:
        self._session = Session(graph, profile="native")
        self._decoder = decoder

    def logits(self, token_ids: Sequence[int], kv_format: str = "f32") -> Iterator[Array]:
        """Yield float32 ``[rows, vocabulary]``, for ``PASS_ROWS`` tokens at a time, with a cache of a format."""
        caches = native_caches(self._decoder, len(token_ids), kv_format)
        loaded = loaded_tables(self._decoder, len(token_ids))
        for begin in range(0, len(token_ids), PASS_ROWS):
            # Nothing here holds logits while the next ones are computed.
            yield self._pass(token_ids[begin : begin + PASS_ROWS], begin, caches, kv_format, loaded)

    def _pass(
        self, ids: Sequence[int], begin: int, caches: Mapping[str, Array], kv_format: str, loaded: Mapping[str, Array]
    ) -> Array:
        rows = np.arange(len(ids))
        inputs, outputs = native_feeds(self._decoder, ids, rows, begin, caches, kv_format, loaded, begin // PASS_ROWS)
        binding = self._session.binding()
        binding.bind(inputs, outputs)
        binding.run(StopSwitch())
        return outputs["logits"]


def predicting_bytes(decoder: Decoder, tokens: int, kv_formats: Sequence[str]) -> int:
    """Predict the memory of comparing predictions with these caches at once, beyond that of the open graph."""
    attentions = [decoder.attention_of(layer) for layer in decoder.kv_layers]
    token = sum(
        KV_FORMAT[name].token_bytes(one.num_kv_heads, one.head_dim) for name in kv_formats for one in attentions
    )
    width = max(decoder.hidden_size, decoder.intermediate_size, decoder.query_size)
    # Logits of the passes, and what a row of either takes in float64.
    compared = 8 * _ROW_COPIES * max(decoder.vocab_size, _COMPARED_NUMBERS)
    logits = 4 * decoder.vocab_size * PASS_ROWS * len(kv_formats) + compared
    return token * tokens + logits + 4 * PASS_ROWS * 6 * width


class Divergence:
    """How far predictions are from others, summed piece by piece.

    Attributes:
        tokens: rows that were compared.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self._kl = 0.0
        self._same = 0

    def add(self, reference: Array, logits: Array) -> None:
        """Compare two sets of logits, both ``[rows, vocabulary]``."""
        assert reference.shape == logits.shape, (reference.shape, logits.shape)
        count = max(1, _COMPARED_NUMBERS // reference.shape[1])
        for begin in range(0, len(reference), count):
            theirs, ours = (rows[begin : begin + count] for rows in (reference, logits))
            p, q = _log_softmax(theirs.astype(np.float64)), _log_softmax(ours.astype(np.float64))
            np.subtract(p, q, out=q)
            np.exp(p, out=p)
            for chances, differences in zip(p, q, strict=True):
                self._kl += float(chances @ differences)
            self._same += int((theirs.argmax(axis=-1) == ours.argmax(axis=-1)).sum())
            self.tokens += len(theirs)

    @property
    def kl(self) -> float:
        """Mean Kullback-Leibler divergence of the reference from the others, in nats a token."""
        return self._kl / max(self.tokens, 1)

    @property
    def same_best(self) -> float:
        """Share of tokens at which the most likely token is the same."""
        return self._same / max(self.tokens, 1)


def kv_losses_bytes(decoder: Decoder, tokens: int) -> int:
    """Predict the memory of ``measure_kv_losses`` with a text, beyond that of the open graph."""
    return predicting_bytes(decoder, min(tokens, KV_TOKENS), (_EXACT, *_COMPARED))


def measure_kv_losses(
    graph: Path, decoder: Decoder, text: Calibration, on_tokens: Callable[[int, int], None]
) -> KvLosses | None:
    """Measure what caches in f16 and in int8 lose on a text; None if a cache has values that are no numbers.

    Args:
        on_tokens: called with the tokens that are done, and with all.
    """
    ids = text.token_ids[:KV_TOKENS]
    predictor = Predictor(graph, decoder)
    losses = {name: Divergence() for name in _COMPARED}
    passes = {name: predictor.logits(ids, name) for name in _COMPARED}
    done = 0
    for exact in predictor.logits(ids, _EXACT):
        on_tokens(done, len(ids))
        for name, loss in losses.items():
            loss.add(exact, next(passes[name]))
        done += len(exact)
        del exact  # else it would be there beside the next one
    if not all(math.isfinite(loss.kl) for loss in losses.values()):
        return None
    return KvLosses(
        source=text.source,
        tokens=len(ids),
        bound=MAX_KV_LOSS,
        formats={name: KvLoss(_rounded(loss.kl), _rounded(loss.same_best)) for name, loss in losses.items()},
    )


def preferred_kv(losses: KvLosses) -> str:
    """Return the cache format that a package with these losses is loaded with by default."""
    wide, narrow = (losses.formats[name].kl for name in _COMPARED)
    return _COMPARED[1] if narrow - wide <= losses.bound else _COMPARED[0]


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    result: Array = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result
