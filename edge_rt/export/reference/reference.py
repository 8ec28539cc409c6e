"""A plain numpy forward pass of a checkpoint: the reference for every package.

It shares the code that reads the file (header, description, raw rows) with the exporter, so it cannot find faults
in that. Weights are dequantised by the ``gguf`` library; those that were quantised for the package are read out of it.

For graphs that round activations it also computes every step separately, from the graph's own input of that step, with
the rounding rule of the native kernels. Over a whole deep model the smallest difference in float arithmetic grows as
large as the effect of rounding; over one step it stays small, and faults stand out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_rt.export.reference.forward import DecoderForward
from edge_rt.export.sources.source import Source
from edge_rt.export.weights.blocks import FLOAT_TYPES
from edge_rt.export.weights.matrices import Matrices
from edge_rt.export.weights.tile_formats import BLOCK
from edge_rt.package.decoder import Decoder

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Step:
    """Result of one step: without rounding, and with every product's input rounded to int8 as in the kernels."""

    exact: Array
    rounded: Array


class DecoderReference:
    """Forward pass over a whole sequence, one matrix in memory at a time.

    Args:
        types: type in the package of tensors that were quantised for it.
        fine: name of a matrix -> blocks of its input that have 16 bits where activations are rounded.
        dtype: ``np.float64`` to check float32 arithmetic, ``np.float32`` for speed.
    """

    def __init__(
        self,
        matrices: Matrices,
        checkpoint: Source,
        decoder: Decoder,
        *,
        types: Mapping[str, str] | None = None,
        fine: Mapping[str, Sequence[int]] | None = None,
        dtype: Any = np.float32,
        cache: bool = False,
    ) -> None:
        self._matrices = matrices
        self._types = {name: tensor.type_name for name, tensor in checkpoint.tensors.items()} | dict(types or {})
        self._fine = fine or {}
        self._decoder = decoder
        self._dtype = np.dtype(dtype)
        self._kept: dict[str, Array] | None = {} if cache else None
        self._forward = DecoderForward(matrices, checkpoint, decoder, product=self._product, dtype=dtype)

    def logits(self, token_ids: Sequence[int]) -> Array:
        """Return logits of every position, ``[len(token_ids), vocabulary]`` in the chosen dtype."""
        return self._run(token_ids, None)[0]

    def logits_and_steps(self, token_ids: Sequence[int], streams: Sequence[Array]) -> tuple[Array, list[Step]]:
        """Compute the whole model, and every step separately from a graph's input of that step.

        Args:
            streams: the graph's residual stream ``[rows, hidden_size]`` after the embedding and after every layer.

        Returns:
            The logits as ``logits`` returns them, and the results of the embedding, every layer and the head.
        """
        return self._run(token_ids, streams)

    def _run(self, token_ids: Sequence[int], streams: Sequence[Array] | None) -> tuple[Array, list[Step]]:
        """``x`` is ``[forwards, rows, features]``: the whole model, a step without rounding, a step with it."""
        decoder, forward = self._decoder, self._forward
        tables = forward.rope(len(token_ids))
        x = forward.embed(token_ids)[None]
        steps = [Step(x[0], x[0])]
        per_layer = forward.per_layer(x if streams is None else np.repeat(x, 3, axis=0), token_ids)

        def beside(x: Array, index: int) -> Array:
            if streams is None:
                return x
            stream = streams[index].astype(self._dtype)
            return np.stack([x[0], stream, stream])

        for layer in range(decoder.num_layers):
            x = forward.layer(beside(x, layer), layer, tables, per_layer)
            steps.extend(_step_of(x))
        head = "token_embd.weight" if decoder.is_tied else "output.weight"
        x = self._rounded(forward.norm(beside(x, decoder.num_layers), "output_norm.weight"), head)
        products = [_times(x, rows.astype(self._dtype)) for rows in self._matrices.pieces(head)]
        logits = forward.logits_of(np.concatenate(products, axis=-1))
        steps.extend(_step_of(logits))
        return logits[0], steps

    def _product(self, x: Array, name: str) -> Array:
        """Multiply rows by a matrix of the checkpoint."""
        return _times(self._rounded(x, name), self._matrix(name))

    def _matrix(self, name: str) -> Array:
        if self._kept is not None and name in self._kept:
            return self._kept[name]
        matrix = np.concatenate([rows.astype(self._dtype) for rows in self._matrices.pieces(name)])
        if self._kept is not None:
            self._kept[name] = matrix
        return matrix

    def _rounded(self, x: Array, name: str) -> Array:
        """Return ``x`` with the third forward rounded, if there is one and the kernels round this matrix's input."""
        if self._types[name] in FLOAT_TYPES or len(x) == 1:
            return x
        return np.concatenate([x[:2], _round_rows(x[2:], self._fine.get(name, ()))])


def _step_of(x: Array) -> list[Step]:
    """Return the second and third forward, if there are any."""
    return [Step(x[1], x[2])] if len(x) > 1 else []


def _times(x: Array, matrix: Array) -> Array:
    """Return ``x @ matrix.T`` for ``x [forwards, rows, inputs]``, as one product that reads the matrix once."""
    product: Array = (x.reshape(-1, x.shape[-1]) @ matrix.T).reshape(*x.shape[:-1], -1)
    return product


def _round_rows(x: Array, fine: Sequence[int]) -> Array:
    """Round every block of 32 to its largest magnitude's 127ths, fine ones to 254ths of these; ties go to even."""
    blocks = x.reshape(*x.shape[:-1], -1, BLOCK)
    peak = np.abs(blocks).max(axis=-1, keepdims=True)
    step = peak / 127
    step = np.where(step > 0, step, 1)
    rounded: Array = np.rint(blocks / step) * step
    if fine:
        rest, small = (blocks - rounded)[..., list(fine), :], step[..., list(fine), :] / 254
        rounded[..., list(fine), :] += np.rint(rest / small) * small
    return rounded.reshape(x.shape)
