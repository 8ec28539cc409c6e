"""Models and machines that exist only as numbers."""

from __future__ import annotations

import dataclasses

from hypothesis import strategies as st

from edge_rt.export.families.rope import default_rope
from edge_rt.memory.figures import Device
from edge_rt.memory.request import Request
from edge_rt.memory.shape import ModelShape
from edge_rt.package.decoder import Dimensions
from edge_rt.package.layers import Layer

MIB = 1 << 20
NATIVE_FORMATS = ("f16", "f32", "int8", "k8v4", "int4", "int4x2")

DEVICE = Device(
    name="test",
    total_bytes=8 << 30,
    available_bytes=4 << 30,
    bandwidth=20e9,
    step_overhead_s=1e-3,
    row_cost=((1, 1.0), (8, 1.5), (24, 3.4)),
    threads=2,
)


def make_shape(**changes) -> ModelShape:
    """Return SmolLM2-135M's shape, or one that differs in some numbers."""
    numbers = {
        "op_profile": "native", "weights_bytes": 98799616, "read_bytes": 96000000, "tokenizer_bytes": 1563270,
        "kv_formats": NATIVE_FORMATS, "package_id": "x",
    }  # fmt: skip
    dimensions = {
        "name": "small", "family": "llama", "num_layers": 30, "hidden_size": 576, "intermediate_size": 1536,
        "num_heads": 9, "num_kv_heads": 3, "head_dim": 64, "vocab_size": 49152, "context_length": 8192,
    }  # fmt: skip
    names = {field.name for field in dataclasses.fields(Dimensions)}
    dimensions |= {name: changes.pop(name) for name in names & set(changes)}
    windows, model = changes.pop("layer_windows", ()), Dimensions(**dimensions)
    if any(windows):
        layers = tuple(Layer(model.attention(window=window), model.feed_forward()) for window in windows)
        model = model.decoder("llama", layers, default_rope(1e4, model.head_dim))
    return ModelShape(**{"model": model, **numbers, **changes})


def windows_of(window: int, layers: int, count: int = 30) -> tuple[int, ...]:
    """Return the windows of layers of which the first ones have one."""
    return (window,) * layers + (0,) * (count - layers)


@st.composite
def shapes(draw) -> ModelShape:
    """Models of all sizes, with and without windows, of both profiles."""
    groups, kv_heads = draw(st.integers(1, 8)), draw(st.sampled_from([1, 2, 4, 8]))
    layers, context = draw(st.integers(1, 64)), draw(st.sampled_from([64, 300, 2048, 8192, 131072]))
    windows, window = draw(st.integers(0, layers)), draw(st.sampled_from([16, 512, 4096]))
    profile = draw(st.sampled_from(["native", "native", "native", "portable"]))
    formats = ("f32",)
    if profile == "native":
        formats = draw(st.sampled_from([NATIVE_FORMATS, ("int8", "f16", "int4"), ("f32", "f16", "int8"), ("int8",)]))
    weights = draw(st.integers(1, 8 << 10)) * MIB
    return make_shape(
        op_profile=profile, num_layers=layers, num_heads=groups * kv_heads, num_kv_heads=kv_heads,
        hidden_size=32 * draw(st.integers(1, 256)), intermediate_size=32 * draw(st.integers(1, 1024)),
        head_dim=draw(st.sampled_from([32, 64, 80, 128])), vocab_size=draw(st.integers(300, 260000)),
        context_length=context, layer_windows=windows_of(window, windows, layers), weights_bytes=weights,
        read_bytes=weights, kv_formats=formats,
        tokenizer_bytes=draw(st.integers(1000, 20 << 20)),
        activations=draw(st.sampled_from(["int8", "float"])) if profile == "portable" else "int8",
    )  # fmt: skip


@st.composite
def requests(draw, shape: ModelShape) -> Request:
    """What may be asked for a model, without a budget."""
    spec = draw(st.sampled_from([None, None, "auto", "off", "suffix", "recycling", "ngram"]))
    corpus = draw(st.integers(0, 64)) * MIB if spec in (None, "auto", "suffix") else 0
    return Request(
        ctx=draw(st.none() | st.integers(2, shape.model.context_length)),
        kv=draw(st.none() | st.just("auto") | st.sampled_from(shape.kv_formats)),
        spec=spec,
        draft_max=draw(st.none() | st.integers(1, 63)) if spec != "off" else None,
        prefill_chunk=draw(st.none() | st.none() | st.integers(1, 1024)),
        resident_bytes=draw(st.none() | st.just(0) | st.integers(1, 300 * MIB)),
        corpus="texts.idx" if corpus else None,
        corpus_bytes=corpus,
    )


def request_of(flags: tuple[str, ...], base: Request) -> Request:
    """Return the request that typed flags mean; what has no flag is as in ``base``."""
    from edge_rt.system.byte_size import parse_size

    given = dict(zip(flags[::2], flags[1::2], strict=True))
    assert set(given) <= {"--memory", "--device-memory", "--ctx", "--kv-type", "--spec", "--draft-max", "--corpus"}
    return Request(
        budget_bytes=parse_size(given["--memory"]) if "--memory" in given else None,
        ctx=int(given["--ctx"]) if "--ctx" in given else None,
        kv=given.get("--kv-type"),
        spec=given.get("--spec"),
        draft_max=int(given["--draft-max"]) if "--draft-max" in given else None,
        prefill_chunk=base.prefill_chunk,
        resident_bytes=base.resident_bytes,
        corpus=given.get("--corpus"),
        corpus_bytes=base.corpus_bytes if "--corpus" in given else 0,
        device_budget_bytes=parse_size(given["--device-memory"]) if "--device-memory" in given else None,
    )
