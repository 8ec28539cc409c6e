"""Inputs and outputs of a traced graph: which are tokens, and which are keys and values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from edge_rt.errors import UnsupportedModel, VersionMismatch
from edge_rt.export.graph.onnx_ir_import import ir

TOKENS: Final = "input_ids"
MASK: Final = "attention_mask"
POSITIONS: Final = "position_ids"
PLACES: Final = "cache_position"
LOGITS: Final = "logits"
KINDS: Final = ("key", "value")

KNOWN_VERSIONS: Final = ("5.23", "5.24")
"""Versions of transformers whose names of the cache are known: 5.24 calls `cache` what was `past_key_values`."""
_PAST: Final = (
    re.compile(r"(?:input\.)?(?:past_key_values|cache)\.layers\.(?P<layer>\d{1,4})\.(?P<kind>key|value)s"),
    re.compile(r"past_key_values\.(?P<layer>\d{1,4})\.(?P<kind>key|value)"),
)
_PRESENT: Final = (
    re.compile(r"(?:output\.)?(?:past_key_values|cache)\.layers\.(?P<layer>\d{1,4})\.(?P<kind>key|value)s"),
    re.compile(r"present\.(?P<layer>\d{1,4})\.(?P<kind>key|value)"),
)
"""Names of the cache before and behind a pass, in both schemes: that of transformers' exporter, and that of optimum and
of the builder of onnxruntime-genai."""
_CACHE_AXES: Final = 4
_SHOWN_NAMES: Final = 4

CacheKey = tuple[int, str]


@dataclass(frozen=True)
class CachePair:
    """Keys or values of one layer, ``[1, kv_heads, tokens, head_dim]``: those of the context, and all of them."""

    past: ir.Value
    present: ir.Value


@dataclass(frozen=True)
class TracedInterface:
    """Inputs and outputs of a graph.

    Attributes:
        driving: the other inputs that follow from the number of tokens: mask, positions; by name.
    """

    token_ids: ir.Value
    driving: Mapping[str, ir.Value]
    logits: ir.Value
    caches: Mapping[CacheKey, CachePair]
    kv_heads: int
    head_dim: int

    @property
    def dimensions(self) -> dict[str, str]:
        """Name of an axis in the graph -> ``"rows"``, ``"past"`` or ``"tokens"``; axes of fixed length are left out."""
        past = next(iter(self.caches.values())).past
        axes = [(self.token_ids, 1, "rows"), (past, 2, "past")]
        axes += [(value, 1, "tokens") for name, value in self.driving.items() if name == MASK]
        found = [(value.shape[axis], role) for value, axis, role in axes if value.shape is not None]
        return {str(size.value): role for size, role in found if isinstance(size, ir.SymbolicDim)}

    @property
    def num_layers(self) -> int:
        """Layers that have a cache."""
        return len(self.caches) // len(KINDS)


def find_interface(graph: ir.Graph, name: str, exporter: str) -> TracedInterface:
    """Return the inputs and outputs of a traced graph; ``exporter`` is named in messages."""
    past, driving = _sorted_out([value for value in graph.inputs if not _handed_through(value)], _PAST)
    present, results = _sorted_out([value for value in graph.outputs if not _is_copy_of_input(value)], _PRESENT)
    other = [one for one in driving if one not in (TOKENS, MASK, POSITIONS, PLACES)]
    strange = [driving[one] for one in other]
    other += [one for one in results if one != LOGITS]
    if not past and strange and all(_is_like_cache(value) for value in strange):
        raise VersionMismatch(
            f"{name}: the traced graph names its keys and values in a way that edge-rt does not know.",
            f"{exporter} wrote {', '.join(other[:_SHOWN_NAMES])}.",
            f"Install a version of transformers that is known to work: {' or '.join(KNOWN_VERSIONS)}.",
        )
    if other:
        raise _not_carried(
            name, "keeps a state other than keys and values.", f"Its graph has {', '.join(other[:_SHOWN_NAMES])}."
        )
    layers = len(past) // len(KINDS)
    if not past or set(past) != set(present) or set(past) != {(i, kind) for i in range(layers) for kind in KINDS}:
        raise _not_carried(
            name,
            "does not keep keys and values in every layer.",
            f"Found {len(past)} before and {len(present)} behind.",
        )
    for wanted, found in ((TOKENS, driving), (LOGITS, results)):
        if wanted not in found:
            raise _not_carried(name, f"has no '{wanted}' in its graph.", f"It has {', '.join(found)[:200] or 'none'}.")
    shapes = {_heads(value) for value in past.values()}
    kv_heads, head_dim = next(iter(shapes))
    if len(shapes) > 1 or not (isinstance(kv_heads, int) and isinstance(head_dim, int)):
        shown = ", ".join(f"{heads} x {size}" for heads, size in sorted(shapes, key=str)[:_SHOWN_NAMES])
        raise _not_carried(name, "has caches of different shapes.", f"Heads and sizes: {shown}.")
    return TracedInterface(
        token_ids=driving.pop(TOKENS),
        driving=driving,
        logits=results[LOGITS],
        caches={key: CachePair(past[key], present[key]) for key in sorted(past)},
        kv_heads=kv_heads,
        head_dim=head_dim,
    )


def _handed_through(value: ir.Value) -> bool:
    """Return whether a graph returns an input as it is and does nothing else with it; such a state never changes."""
    uses = value.uses()
    return bool(uses) and all(use.node.op_type == "Identity" and use.node.outputs[0].is_graph_output() for use in uses)


def _is_copy_of_input(value: ir.Value) -> bool:
    node = value.producer()
    source = None if node is None or node.op_type != "Identity" else node.inputs[0]
    return source is not None and source.is_graph_input() and _handed_through(source)


def _sorted_out(
    values: Sequence[ir.Value], patterns: Sequence[re.Pattern[str]]
) -> tuple[dict[CacheKey, ir.Value], dict[str, ir.Value]]:
    """Return the values that are keys or values of a layer, and the others by name."""
    caches: dict[CacheKey, ir.Value] = {}
    others: dict[str, ir.Value] = {}
    for value in values:
        name = value.name or ""
        match = next(filter(None, (pattern.fullmatch(name) for pattern in patterns)), None)
        if match is None:
            others[name] = value
        else:
            caches[int(match["layer"]), match["kind"]] = value
    return caches, others


def _is_like_cache(value: ir.Value) -> bool:
    """Return whether a value has the shape of keys or values: as many tokens as there are, in heads of one size."""
    heads, size = _heads(value)
    tokens = value.shape is not None and len(value.shape) == _CACHE_AXES and value.shape[2]
    return isinstance(tokens, ir.SymbolicDim) and isinstance(heads, int) and isinstance(size, int)


def _heads(value: ir.Value) -> tuple[object, object]:
    """Return heads and their size; anything but two numbers is no cache that can be carried."""
    if value.shape is None or len(value.shape) != _CACHE_AXES:
        return "?", "?"
    return value.shape[1], value.shape[3]


def _not_carried(name: str, what: str, numbers: str) -> UnsupportedModel:
    return UnsupportedModel(f"{name} {what}", numbers, "Choose a model that keeps keys and values alone.")
