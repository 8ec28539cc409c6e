"""The layers of a plain llama, out of its native package: the inverse of what an export packs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.errors import UnsupportedModel
from edge_rt.export.families.rope import llama3_divisors, plain_frequencies
from edge_rt.export.graph.onnx_ir_import import ir
from edge_rt.export.weights.native import Region
from edge_rt.export.weights.tile_formats import TILE_FORMATS, TILE_ROWS
from edge_rt.export.weights.tiles import tile_count, unit_count, unpack_rows
from edge_rt.package.decoder import Rope
from edge_rt.package.manifest import WEIGHTS_FILE
from edge_rt.package.reader import Package

if TYPE_CHECKING:
    from torch import Tensor

_MATRICES: Final = {"qkv": 12, "output": 13, "gate_up": 15, "down": 16}
"""Matrix of a layer -> its place among the inputs of DecoderLayer."""

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class _Matrix:
    """A packed matrix: its byte in ``weights.bin``, the formats of its parts, and its rows (0: a layer has them)."""

    offset: int
    formats: tuple[str, ...]
    rows: int


class PlainLayers:
    """Reads layers of a package as float32."""

    def __init__(self, package: Package) -> None:
        self._config = package.manifest.model
        self._weights = package.file(WEIGHTS_FILE)
        graph = ir.load(package.file(package.manifest.segments[0].graph)).graph
        self._vectors = {str(name): value.const_value for name, value in graph.initializers.items()}
        self._matrices: dict[str, _Matrix] = {}
        for node in graph:
            facts = {name: attribute.value for name, attribute in node.attributes.items()}
            places = _MATRICES.items() if node.op_type == "DecoderLayer" else []
            found = [(node.inputs[place], facts[f"{name}_format"], 0) for name, place in places]
            if node.op_type == "QuantLinear":
                found.append((node.inputs[1], facts["format"], facts["out_features"]))
            for tiles, formats, rows in found:
                assert tiles is not None, node.name
                assert isinstance(tiles.const_value, ir.ExternalTensor), node.name
                matrix = _Matrix(tiles.const_value.offset or 0, tuple(str(formats).split(",")), int(rows))
                self._matrices[str(tiles.name).removesuffix(".tiles")] = matrix

    def layer(self, number: int) -> dict[str, Tensor]:
        """Return the weights of a layer by the names of ``DraftLayer``; matrices are ``[outputs, inputs]``."""
        config = self._config
        heads, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        hidden, inner = config.hidden_size, config.intermediate_size
        query, key, value = self._parts(f"layer{number}.qkv", (heads, kv, kv), hidden)
        gate, up = self._gate_up(f"layer{number}.gate_up", inner, hidden)
        (output,) = self._parts(f"layer{number}.output", (hidden,), heads)
        (down,) = self._parts(f"layer{number}.down", (hidden,), inner)
        found = {"query": query, "key": key, "value": value, "output": output, "gate": gate, "up": up, "down": down}
        for norm in ("attention_norm", "mlp_norm"):
            found[norm] = self._vector(f"layer{number}.{norm}")
        import torch

        return {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in found.items()}

    def rotations(self, positions: Sequence[int]) -> tuple[Floats, Floats]:
        """Return cosines and sines of positions, float32 ``[positions, head_dim / 2]``."""
        shape = (self._config.context_length, self._config.head_dim // 2)
        rows = np.asarray(positions)
        cosines, sines = (self._vector(f"rope.{name}").reshape(shape)[rows] for name in ("cos", "sin"))
        return cosines, sines

    def _vector(self, name: str) -> Floats:
        tensor = self._vectors[name]
        assert isinstance(tensor, ir.ExternalTensor), name
        return np.fromfile(self._weights, np.float32, count=tensor.size, offset=tensor.offset or 0)

    def _parts(self, name: str, rows: tuple[int, ...], columns: int) -> list[Floats]:
        """Return parts that lie one behind the other, each with its format or all with one."""
        matrix = self._matrices.get(name)
        if matrix is None or len(matrix.formats) == 1:
            # Parts meet at the border of a tile.
            return list(np.split(self._joined(name, sum(rows), columns), np.cumsum(rows)[:-1]))
        found, offset = [], matrix.offset
        for count, form in zip(rows, matrix.formats, strict=True):
            values, size = self._unpacked(offset, count, columns, form)
            found.append(values)
            offset += size
        return found

    def _joined(self, name: str, rows: int, columns: int) -> Floats:
        """Return a matrix of one format, or that of several matrices: neighbours of one format are one of them."""
        if name in self._matrices:
            matrix = self._matrices[name]
            return self._unpacked(matrix.offset, rows, columns, matrix.formats[0])[0]
        found: list[Floats] = []
        while (group := f"{name}.{len(found)}") in self._matrices:
            matrix = self._matrices[group]
            found.append(self._unpacked(matrix.offset, matrix.rows, columns, matrix.formats[0])[0])
        return np.concatenate(found)

    def _gate_up(self, name: str, inner: int, columns: int) -> tuple[Floats, Floats]:
        """Return gate and up: of one format they take turns, 16 rows each; others follow each other or lie apart."""
        if name not in self._matrices:
            return self._joined(f"{name}.gate", inner, columns), self._joined(f"{name}.up", inner, columns)
        matrix = self._matrices[name]
        if len(matrix.formats) > 1:
            gate, up = self._parts(name, (inner, inner), columns)
            return gate, up
        values, _ = self._unpacked(matrix.offset, 2 * inner, columns, matrix.formats[0])
        pairs = values.reshape(-1, 2, TILE_ROWS, columns)
        return pairs[:, 0].reshape(inner, columns), pairs[:, 1].reshape(inner, columns)

    def _unpacked(self, offset: int, rows: int, columns: int, name: str) -> tuple[Floats, int]:
        """Return rows of one format that lie together at a byte of the file, and the bytes that they take."""
        form = TILE_FORMATS[name]
        region = Region(0, tile_count(rows), unit_count(columns, form), form)
        tiles = region.read(self._weights, offset, 0, region.tiles)
        return unpack_rows(tiles, form)[:rows, :columns], region.nbytes


_EQUAL: Final = 1e-4
"""Relative error of frequencies that are taken for equal."""


def rope_settings(rope: Rope) -> dict[str, Any]:
    """Return what ``config.json`` says of rotations: ``rope_theta``, and ``rope_scaling`` if they are scaled.

    Known are no scaling, linear scaling, and that of Llama 3, whose four numbers are two ratios and a factor: original
    context and borders are returned with a distance of 1 between the borders.
    """
    if rope.magnitude != 1.0:
        raise _unknown("Its cosines and sines have a factor of their own")
    base, frequencies = rope.base, np.asarray(rope.frequencies)
    dimensions = 2 * len(frequencies)
    divisors = np.asarray(plain_frequencies(base, dimensions)) / frequencies
    if _agree(divisors, np.ones_like(divisors)):
        return {"rope_theta": base}
    factor = float(divisors.max())
    if _agree(divisors, np.full_like(divisors, factor)):
        return {"rope_theta": base, "rope_scaling": {"rope_type": "linear", "factor": factor}}
    shares = (1 / divisors - 1 / factor) / (1 - 1 / factor)
    turns = 1 / np.asarray([2 * math.pi * base ** (2 * pair / dimensions) for pair in range(len(divisors))])
    blended = (shares > _EQUAL) & (shares < 1 - _EQUAL)
    if blended.sum() >= 2:
        slope, offset = np.polyfit(turns[blended], shares[blended], 1)
        low, original = -float(offset), float(slope)
        scaling = {
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low,
            "high_freq_factor": low + 1.0,
            "original_max_position_embeddings": original,
        }
        found = llama3_divisors(base, dimensions, factor=factor, low=low, high=low + 1.0, original_context=original)
        if low > 0 and _agree(divisors, np.asarray(found)):
            return {"rope_theta": base, "rope_scaling": scaling}
    raise _unknown(f"Its frequencies are divided by {divisors.min():.4g} to {factor:.4g}, in a way that is not known")


def _agree(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    return bool(np.abs(one / other - 1.0).max() < _EQUAL)


def _unknown(why: str) -> UnsupportedModel:
    return UnsupportedModel(
        "No draft model can be trained for this model.",
        f"{why}.",
        "Train --kind head, or use a drafter that needs no training.",
    )
