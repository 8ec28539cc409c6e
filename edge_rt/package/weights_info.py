"""What a manifest says of weights that were quantised for the package: their types, and what that lost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from edge_rt.errors import ConfigError
from edge_rt.system.byte_size import show_size


@dataclass(frozen=True)
class PassBytes:
    """Bytes that are alive at one point of a pass over r rows, with t tokens in all: a sum of five terms.

    Attributes:
        fixed: bytes.
        row: bytes for every row, r.
        token: bytes for every token, t: those of the context and of the pass.
        pair: bytes for every pair of a row and a token, r x t.
        logit_row: bytes for every row whose logits are computed.
    """

    fixed: int
    row: int
    token: int
    pair: int
    logit_row: int

    def total(self, rows: int, tokens: int, logit_rows: int) -> int:
        """Return the bytes of a pass over ``rows`` rows that ends at ``tokens`` tokens, with logits of some rows."""
        by_length = self.row * rows + self.token * tokens + self.pair * rows * tokens
        return self.fixed + by_length + self.logit_row * logit_rows


@dataclass(frozen=True)
class TracedInfo:
    """A traced graph.

    Attributes:
        exact_rows: rows of the largest pass whose results were those of single rows, bit by bit, on the machine that
            exported the package; 0: some were not, so nothing is drafted.
        packed_bytes: matrices that ONNX Runtime packs into memory of its own when it opens the graph.
        mapped_bytes: the part of ``weights.bin`` that stays mapped after that.
        passes: the points of a pass that may need the most memory; the most of them is what a pass needs.
    """

    exporter: str
    exact_rows: int
    packed_bytes: int
    mapped_bytes: int
    nodes: int
    passes: tuple[PassBytes, ...]

    def pass_bytes(self, rows: int, tokens: int) -> int:
        """Return the bytes of what is computed in a pass over ``rows`` rows that ends at ``tokens`` tokens."""
        # Logits of several rows are wanted of drafts alone.
        wanted = min(rows, max(self.exact_rows, 1))
        return max((point.total(rows, tokens, wanted) for point in self.passes), default=0)

    def faults(self) -> Iterator[tuple[str, int]]:
        """Yield the fields that are below 0: name and value."""
        counts = {name: getattr(self, name) for name in ("exact_rows", "packed_bytes", "mapped_bytes", "nodes")}
        for number, point in enumerate(self.passes):
            # Rows may be subtracted: the context is the tokens without them.
            sums = {
                "fixed": point.fixed,
                "token": point.token,
                "pair": point.pair,
                "row + token": point.row + point.token,
            }
            counts |= {f"passes[{number}].{name}": value for name, value in sums.items()}
            counts[f"passes[{number}].logit_row"] = point.logit_row
        yield from ((name, value) for name, value in counts.items() if value < 0)


KEEP: Final = "keep"
NESTED: Final = "nested8"
WEIGHTS: Final = (KEEP, "int4", "int8", NESTED, "f16", "f32")
"""Values of the option ``weights`` of an export."""


def require_known(weights: str | None, size: int = 0) -> None:
    """Refuse a value of the option ``weights`` that does not exist, and one beside a size; None is no value."""
    if size and weights is not None:
        raise ConfigError(
            "A size and a type of weights do not go together.",
            f"Got a size of {show_size(size)}, and weights {weights!r:.40}.",
            "Leave one of them out.",
        )
    if weights is not None and weights not in WEIGHTS:
        meant = _meant(weights)
        raise ConfigError(
            "The type of weights is unknown.",
            f"Got {weights!r:.40}.",
            f"{f'Did you mean {meant}? ' if meant else ''}Choose one of {', '.join(WEIGHTS)}.",
        )


def _meant(weights: str) -> str | None:
    """Return the option for what was written in another case, or as the type of a GGUF file."""
    name = weights.lower()
    if name.startswith(("q4", "iq4", "mxfp4")):
        name = "int4"
    return "int8" if name.startswith("q8") else name if name in WEIGHTS else None


@dataclass(frozen=True)
class TensorClass:
    """The matrices of one class.

    Attributes:
        bits: bits of ``weights.bin`` per weight, scales and padding included.
        error: mean square of the error of the outputs over that of the outputs, on held-out tokens; without
            calibration, of the weights over that of the weights. Mean over the weights that were quantised; None if
            none were.
        upper_error: the same of the upper halves of nested codes alone; None where there are none.
    """

    types: Mapping[str, int]
    bits: float
    error: float | None
    upper_error: float | None = None


@dataclass(frozen=True)
class Quality:
    """The package against the checkpoint in float32, on a part of the calibration text.

    Attributes:
        kl: mean Kullback-Leibler divergence of the checkpoint's predictions from the package's, in nats a token.
        is_held_out: whether the weights were fitted without these tokens; a short text has none to spare.
    """

    kl: float
    perplexity: float
    float_perplexity: float
    tokens: int
    is_held_out: bool


@dataclass(frozen=True)
class WeightsInfo:
    """How the weights of a package were chosen.

    Attributes:
        choice: ``"int4"``, ``"int8"``, ``"nested8"``, ``"f16"``, ``"f32"`` or ``"size"``.
        size: bytes that ``weights.bin`` was to have; 0: no limit.
        calibration: ``"built-in"``, the name of a file, or None: no text was used.
        calibration_tokens: of that text; 0 without one.
        classes: ``"attention"``, ``"feed_forward"``, ``"embedding"`` and ``"head"``; the last two are the same matrix
            if the embedding is tied.
        quality: None if nothing was rounded, or without a text.
    """

    choice: str
    size: int
    calibration: str | None
    calibration_tokens: int
    classes: Mapping[str, TensorClass]
    quality: Quality | None

    def faults(self) -> Iterator[tuple[str, object, str]]:
        """Yield the fields that are out of range: name, value, and what is wanted, in words."""
        counts = [("size", self.size), ("calibration_tokens", self.calibration_tokens)]
        floats: list[tuple[str, float]] = []
        for name, found in self.classes.items():
            counts += [(f"classes.{name}.types.{kind}", count) for kind, count in found.types.items()]
            floats.append((f"classes.{name}.bits", found.bits))
            if found.error is not None:
                floats.append((f"classes.{name}.error", found.error))
            if found.upper_error is not None:
                floats.append((f"classes.{name}.upper_error", found.upper_error))
        if (quality := self.quality) is not None:
            counts.append(("quality.tokens", quality.tokens))
            floats += [
                ("quality.perplexity", quality.perplexity),
                ("quality.float_perplexity", quality.float_perplexity),
            ]
            if not math.isfinite(quality.kl):
                # Rounding may leave a divergence of nearly 0 below 0.
                yield "quality.kl", quality.kl, "a finite number"
        for where, count in counts:
            if count < 0:
                yield where, count, "0 or more"
        for where, value in floats:
            if not (math.isfinite(value) and value >= 0):
                yield where, value, "a finite number, 0 or more"
