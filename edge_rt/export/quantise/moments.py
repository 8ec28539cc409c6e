"""Second moments of the inputs of matrices: the float model runs on the calibration text, a layer at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.errors import UnsupportedModel
from edge_rt.export.decoder.tensors import input_of_kind, kind_of
from edge_rt.export.reference.expert_hits import Routing
from edge_rt.export.reference.forward import DecoderForward, Tables
from edge_rt.export.sources.source import Source
from edge_rt.export.weights.matrices import Matrices, whole_matrix
from edge_rt.package.ahead import with_block
from edge_rt.package.decoder import Decoder
from edge_rt.package.layers import Experts, Layer

Array = npt.NDArray[Any]

SEQUENCE: Final = 512
"""Tokens that see each other; a longer text is cut."""
WIDTH: Final = 2048
"""Inputs whose products with each other are summed; those further apart are taken as unrelated, which bounds the memory
and keeps few tokens from being fitted by many products."""
EXPERT_BYTES: Final = 64 << 20
"""Most bytes of the products that are summed for all experts of a layer: the more there are, the fewer inputs of one
are taken together."""
_LEAST_WIDTH: Final = 32
HELD_OUT_SHARE: Final = 4
"""One in this many sequences is held out, to judge by."""
HELD_OUT_TOKENS: Final = 1024
"""Most tokens whose inputs are kept to judge by."""


class Moments:
    """Second moments of one input.

    Attributes:
        blocks: sums of products, float32 ``[width, width]`` each, of consecutive inputs.
    """

    def __init__(self, inputs: int, width: int = WIDTH) -> None:
        widths = [min(width, inputs - begin) for begin in range(0, inputs, width)]
        self.blocks = [np.zeros((width, width), np.float32) for width in widths]
        self.tokens = 0

    def add(self, rows: Array) -> None:
        """Add rows of inputs, float32 ``[rows, inputs]``."""
        begin = 0
        for block in self.blocks:
            part = rows[:, begin : begin + len(block)]
            block += part.T @ part
            begin += len(block)
        self.tokens += len(rows)

    @property
    def diagonal(self) -> Array:
        """Mean square of every input, float32 ``[inputs]``."""
        sums = np.concatenate([block.diagonal() for block in self.blocks])
        mean: Array = sums / np.float32(max(self.tokens, 1))
        return mean

    def error(self, rows: Array) -> float:
        """Return the mean square over tokens, summed over rows, of the outputs of weights ``[rows, inputs]``."""
        total, begin = 0.0, 0
        for block in self.blocks:
            part = rows[:, begin : begin + len(block)]
            total += float(np.einsum("ni,ni->", part @ block, part, dtype=np.float64))
            begin += len(block)
        return total / max(self.tokens, 1)


class HeldOut:
    """The first ``HELD_OUT_TOKENS`` rows of one input: of few tokens they take less memory than products."""

    def __init__(self) -> None:
        self._parts: list[Array] = []
        self.tokens = 0

    def add(self, rows: Array) -> None:
        """Add rows of inputs, float32 ``[rows, inputs]``; they are copied."""
        kept = rows[: HELD_OUT_TOKENS - self.tokens]
        if len(kept):
            self._parts.append(kept.copy())
            self.tokens += len(kept)

    @property
    def diagonal(self) -> Array:
        """Mean square of every input, float32 ``[inputs]``; ``[1]`` without rows."""
        sums = sum((np.einsum("ti,ti->i", part, part) for part in self._parts), np.zeros(1, np.float32))
        mean: Array = sums / np.float32(max(self.tokens, 1))
        return mean

    def error(self, rows: Array) -> float:
        """Return the mean square over tokens, summed over rows, of the outputs of weights ``[rows, inputs]``."""
        outputs = (part @ rows.T for part in self._parts)
        total = sum(float(np.einsum("tn,tn->", found, found, dtype=np.float64)) for found in outputs)
        return total / max(self.tokens, 1)


@dataclass(frozen=True, eq=False)
class InputMoments:
    """What is known of an input: moments of the tokens that weights are fitted to, and tokens to judge by."""

    fitted: Moments
    held_out: HeldOut


def expert_width(experts: Experts, inputs: int) -> int:
    """Return how many inputs of an expert's matrices are taken together, those of the first being ``inputs``."""
    width = EXPERT_BYTES // (4 * experts.count * (inputs + experts.each.size))
    return min(max(width // _LEAST_WIDTH, 1) * _LEAST_WIDTH, WIDTH)


class CalibrationWalk:
    """Runs the float model on the calibration text; layers have to be taken in their order.

    Attributes:
        routing: which experts its rows have, in the layers that ran.
    """

    def __init__(self, matrices: Matrices, source: Source, decoder: Decoder, token_ids: Sequence[int]) -> None:
        self._matrices = matrices
        self._tensors = source.tensors
        self._layer: dict[str, Array] = {}
        self._found: dict[str, InputMoments] = {}
        self._is_held_out = False
        self._decoder = decoder
        self._counted: set[str] = set()
        self._width = WIDTH
        self.routing = Routing()
        self._forward = DecoderForward(matrices, source, decoder, product=self._product, on_routing=self.routing.add)
        self._block = None if source.ahead is None else with_block(decoder, source.ahead)
        self._source = source
        pieces = [token_ids[begin : begin + SEQUENCE] for begin in range(0, len(token_ids), SEQUENCE)]
        self.sequences = [list(piece) for piece in pieces]
        self._streams = [self._forward.embed(piece)[None] for piece in self.sequences]
        self._per_layer = [
            self._forward.per_layer(x, piece) for x, piece in zip(self._streams, self.sequences, strict=True)
        ]
        self._layer = {}
        self._tables = self._forward.rope(min(SEQUENCE, len(token_ids)))

    def is_held_out(self, sequence: int) -> bool:
        """Return whether a sequence is held out: the last ones; none of fewer than four."""
        return sequence >= len(self.sequences) - len(self.sequences) // HELD_OUT_SHARE

    def layer(self, index: int) -> dict[str, InputMoments]:
        """Run a layer and return the moments of its inputs by name."""
        self._count(self._decoder.layers[index])
        with np.errstate(over="ignore", invalid="ignore"):
            for number, x in enumerate(self._streams):
                self._is_held_out = self.is_held_out(number)
                tables = self._rotations(x.shape[1])
                self._streams[number] = self._forward.layer(x, index, tables, self._per_layer[number])
        # The weights of the layer, as floats, are kept for all sequences and no longer.
        self._layer = {}
        return self._finite(f"layer {index}")

    def ahead(self) -> dict[str, InputMoments]:
        """Run a block that predicts further ahead; return the moments of its inputs by name; behind the last layer."""
        assert self._block is not None
        index = self._decoder.num_layers
        self._count(self._block.layers[index])
        self._counted.add("nextn.eh_proj")
        # Its rows are not counted with those of the model.
        forward = DecoderForward(self._matrices, self._source, self._block, product=self._product)
        with np.errstate(over="ignore", invalid="ignore"):
            for number, tokens in enumerate(self.sequences):
                if len(tokens) < 2:
                    continue
                self._is_held_out = self.is_held_out(number)
                # A row is a state, and the token behind it.
                both = forward.joined(forward.embed(tokens[1:])[None], self.final(number)[None, :-1], index)
                x = self._product(both, f"blk.{index}.nextn.eh_proj.weight")
                forward.layer(x, index, self._rotations(x.shape[1]))
        self._layer = {}
        return self._finite("the block that predicts ahead")

    def _rotations(self, rows: int) -> Tables:
        return [(cos[:rows], sin[:rows]) for cos, sin in self._tables]

    def _count(self, layer: Layer) -> None:
        """Begin to take the moments of a layer's inputs; matrices with one input count it once."""
        self._found = {}
        self._counted = {"attn_q", "attn_output", "shortconv.in_proj", "shortconv.out_proj", "ffn_down"}
        self._counted |= {"attn_qkv", "ssm_in", "ssm_out"}
        if layer.feed_forward is not None:
            self._counted.add("ffn_gate" if layer.feed_forward.is_gated else "ffn_up")
        self._width = WIDTH
        if layer.experts is not None:
            # Those that no row of the text has chosen stay without moments.
            first = "ffn_gate" if layer.experts.each.is_gated else "ffn_up"
            self._counted |= {f"{kind}.{n}" for kind in (first, "ffn_down") for n in range(layer.experts.count)}
            self._width = expert_width(layer.experts, self._decoder.hidden_size)

    def forget(self) -> None:
        """Drop the moments that were returned last."""
        self._found = {}

    def head(self) -> dict[str, InputMoments]:
        """Return the moments of the head's input; behind the last layer."""
        self._found = {}
        with np.errstate(over="ignore", invalid="ignore"):
            for number in range(len(self._streams)):
                self._is_held_out = self.is_held_out(number)
                self._add("head", self.final(number))
        return self._finite("the head")

    def _finite(self, where: str) -> dict[str, InputMoments]:
        for name, found in self._found.items():
            # No product of two inputs is larger than the larger one's square.
            if not all(np.isfinite(part.diagonal).all() for part in (found.fitted, found.held_out)):
                raise UnsupportedModel(
                    "The model's activations on the calibration text are too large for float32.",
                    f"In {where}, at the input '{name}' of its matrices.",
                    "Export with --calibration none, or with --weights keep.",
                )
        return self._found

    def final(self, sequence: int) -> Array:
        """Return the head's input for a sequence, ``[rows, hidden_size]``; behind the last layer."""
        final: Array = self._forward.norm(self._streams[sequence], "output_norm.weight")[0]
        return final

    def logits_of(self, products: Array) -> Array:
        """Return logits, given the products of the head."""
        return self._forward.logits_of(products)

    def _product(self, x: Array, name: str) -> Array:
        kind = kind_of(name)
        if kind in self._counted and (name_of := input_of_kind(kind)) is not None:
            width = self._width if name_of[-1].isdigit() else WIDTH
            self._add(name_of, x.reshape(-1, x.shape[-1]), width)
        if name not in self._layer:
            self._layer[name] = whole_matrix(self._matrices, self._tensors[name])
        product: Array = (x.reshape(-1, x.shape[-1]) @ self._layer[name].T).reshape(*x.shape[:-1], -1)
        return product

    def _add(self, name: str, rows: Array, width: int = WIDTH) -> None:
        if name not in self._found:
            self._found[name] = InputMoments(Moments(rows.shape[1], width), HeldOut())
        found = self._found[name]
        (found.held_out if self._is_held_out else found.fitted).add(rows)
