"""What a model of the catalogue takes and how fast it would be, before anything of it is fetched.

The numbers of its configuration give its tensors, and the type of its file gives theirs, by the rules that llama.cpp
quantises with. How fast a machine is follows from passes that were measured on it, of any model, else from how fast it
reads memory.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from edge_rt.memory.figures import Device
from edge_rt.memory.shape import ModelShape, shape_of_model, shape_of_package
from edge_rt.memory.speed import row_cost
from edge_rt.package.layer_sizes import TILE_ROWS, row_bytes
from edge_rt.package.manifest import KV_FORMATS
from edge_rt.store.catalogue import CatalogueModel
from edge_rt.store.layout import Store

if TYPE_CHECKING:
    from edge_rt.package.decoder import Decoder
    from edge_rt.runtime.speculation.cost_model import CostStore, RowCosts

TYPICAL_DEPTH: Final = 512
"""Tokens of context at which speeds of models are compared."""
_K_BLOCK: Final = 256
_EMBEDDINGS: Final = ("token_embd.weight", "per_layer_token_embd.weight")
"""Tables of a row for each token: where there is no head, they have its type."""
_EXPERT: Final = re.compile(r"\.ffn_\w+\.\d+\.weight$")
"""Names of matrices of experts."""
_SENSITIVE: Final = re.compile(r"\.(?:attn_v|ffn_down(?:\.\d+)?)\.weight$")
"""Names of matrices, of experts among them, of which some have more bits."""
_NARROW: Final = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
"""What replaces a type of blocks of 256 where rows are no multiple of that."""
_LAYER_BYTES: Final = 1.1e6
"""A layer costs about as much time as reading so many bytes more: its norms, its attention of few tokens, and waiting
for threads. Passes of SmolLM2-135M (30 layers, 98 MB) then foretell those of a model of 1B (16 layers, 892 MB) on two
machines to 6 and 9 %."""
_TOKEN_BYTES: Final = 60
"""Of ``tokenizer.json``, per token of the vocabulary; 45 to 130 in tokenizers that were looked at."""


def file_types(decoder: Decoder, shapes: Mapping[str, Sequence[int]], weights: str) -> dict[str, str]:
    """Return the type of every tensor of a file, by the rules of llama.cpp's quantiser, for the types that are here.

    Args:
        shapes: of all tensors (``expected_shapes``), inputs first.
    """
    from edge_rt.export.decoder.tensors import PLAIN

    return {
        name: _type_of(name, shape[0], decoder, weights) if len(shape) == 2 and not name.endswith(PLAIN) else "F32"
        for name, shape in shapes.items()
    }


def _type_of(name: str, inputs: int, decoder: Decoder, weights: str) -> str:
    usual = weights.removesuffix("_M").removesuffix("_S")
    is_head = name == "output.weight" or (decoder.is_tied and name in _EMBEDDINGS)
    if weights == "MXFP4":
        # Experts are all that has this type.
        return weights if _EXPERT.search(name) else "Q8_0"
    found = usual
    if weights == "Q4_K_M" and _SENSITIVE.search(name):
        found = "Q6_K" if _has_more_bits(int(name.split(".")[1]), decoder.num_layers) else usual
    elif weights == "Q4_K_M" and name.endswith(".attn_qkv.weight"):
        found = "Q5_K"
    elif is_head:
        # The file of SmolLM2 in Q4_1, which is older, has 8 bits there.
        found = "Q8_0" if weights in ("Q4_1", "Q8_0") or inputs % _K_BLOCK else "Q6_K"
    return _NARROW.get(found, found) if inputs % _K_BLOCK else found


def _has_more_bits(layer: int, layers: int) -> bool:
    """Return whether the quantiser gives a layer's most sensitive matrices more bits: ends, and every third between."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def foreseen_shape(model: CatalogueModel, op_profile: str = "native") -> ModelShape:
    """Return the numbers of the package that a model's file would become, with its own weights."""
    from edge_rt.export.decoder.tensors import expected_shapes
    from edge_rt.export.opening import describe_config

    decoder = describe_config(model.name, model.config)
    shapes = expected_shapes(decoder)
    types, sizes = file_types(decoder, shapes, model.weights), {}
    for name, shape in shapes.items():
        rows = 1 if len(shape) == 1 else -(-shape[1] // TILE_ROWS) * TILE_ROWS
        sizes[name] = rows * row_bytes(shape[0], types[name])
    rotations = 0 if decoder.loads_rope else decoder.rope_bytes(decoder.context_length)
    return shape_of_model(
        decoder,
        op_profile=op_profile,
        weights_bytes=sum(sizes.values()) + rotations,
        tokenizer_bytes=_TOKEN_BYTES * decoder.vocab_size,
        kv_formats=KV_FORMATS[op_profile],
        embedding_bytes=0 if decoder.is_tied else sizes["token_embd.weight"],
        table_bytes=sizes.get("per_layer_token_embd.weight", 0),
    )


@dataclass(frozen=True)
class MeasuredModel:
    """A model whose passes were measured on this machine."""

    package_id: str
    shape: ModelShape
    costs: RowCosts


def measured_models(store: Store, threads: int, costs: CostStore | None = None) -> Iterator[MeasuredModel]:
    """Yield the models of a store whose passes were measured on this CPU, in the cache format of their package.

    Args:
        costs: where measurements are kept; None: those of the user.
    """
    from edge_rt.errors import EdgeRTError
    from edge_rt.runtime.speculation.cost_model import user_costs
    from edge_rt.runtime.speculation.stored_costs import costs_on_cpu

    costs = user_costs() if costs is None else costs
    for name in filter(store.has_package, store.names()):
        try:
            package = store.read_package(store.package_path(name))
        except EdgeRTError:
            continue
        by_format = costs_on_cpu(costs, package.id, threads)
        found = by_format.get(package.manifest.kv_formats[0]) or next(iter(by_format.values()), None)
        if found is not None:
            yield MeasuredModel(package.id, shape_of_package(package), found)


@dataclass(frozen=True)
class Speed:
    """How many tokens a second a model generates without drafts, at ``TYPICAL_DEPTH``, with all its slots together.

    Attributes:
        basis: ``measured`` (this model, here), ``derived`` (another model, here), ``bandwidth`` (measured, of the
            device) or ``figures`` (of the device, from elsewhere).
    """

    tokens_per_second: float
    basis: str


def expected_speed(
    shape: ModelShape,
    device: Device,
    measured: Sequence[MeasuredModel],
    kv_format: str,
    package_id: str | None = None,
    *,
    slots: int = 1,
) -> Speed:
    """Return how fast a model is on a device, from the measured model whose size is nearest, else from its figures.

    Args:
        measured: on this machine; empty for others.
        package_id: of the model's package, if there is one.
        slots: answers that are computed at once.
    """
    from edge_rt.runtime.speculation.stored_costs import ANSWER_MS, step_parts

    of_answers = slots * ANSWER_MS if slots > 1 else 0.0
    own = next((one for one in measured if one.package_id == package_id), None)
    if own is None and not measured:
        cache = shape.cache_bytes(kv_format, TYPICAL_DEPTH, TYPICAL_DEPTH, is_read=True)
        computes = device.computes
        weights = computes.step_overhead_s + shape.read_bytes / computes.bandwidth
        if device.is_measured:
            weights = _work(shape) / device.bandwidth
        seconds = weights * row_cost(computes.row_cost, slots) + slots * cache / computes.bandwidth + of_answers / 1e3
        return Speed(slots / seconds, "bandwidth" if device.is_measured else "figures")
    one = own or min(measured, key=lambda other: abs(math.log(shape.read_bytes / other.shape.read_bytes)))
    rows, contexts = step_parts(one.costs, slots, TYPICAL_DEPTH)
    ms = rows * _work(shape) / _work(one.shape) + contexts * _attention(shape) / _attention(one.shape) + of_answers
    return Speed(1e3 * slots / ms, "derived" if own is None else "measured")


def slowness(measured: MeasuredModel, bandwidth: float) -> float:
    """Return how many times as long a measured pass took as reading what it reads, at so many bytes a second."""
    return step_ms(measured) * bandwidth / (1e3 * _work(measured.shape))


def step_ms(measured: MeasuredModel) -> float:
    """Return the milliseconds of a pass over one token, behind few."""
    from edge_rt.runtime.speculation.stored_costs import step_parts

    return step_parts(measured.costs, 1, TYPICAL_DEPTH)[0]


def _work(shape: ModelShape) -> float:
    """Return what a pass takes besides its attention of a long context, in bytes read."""
    return shape.read_bytes + _LAYER_BYTES * shape.model.num_layers


def _attention(shape: ModelShape) -> int:
    """Return what a token of context costs, in numbers multiplied."""
    return shape.model.num_layers * shape.model.query_size
