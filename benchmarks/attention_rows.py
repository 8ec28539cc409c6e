"""Time of attention per layer by rows of a pass and depth: SpecAttention against ONNX Runtime's GroupQueryAttention.

python benchmarks/attention_rows.py [--heads 9 --kv-heads 3 --head-dim 64] [--threads 2] [--rounds 30]

Every graph holds 8 layers with caches of their own, which a pass does not find in the first cache levels. Rounds
alternate between the operators on one pool of threads; lower quartiles, because a stalled pool takes milliseconds. The
rows of a pass are a chain.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from edge_rt.ort.op_library import native_library
from edge_rt.package.op_list import DOMAIN

LAYERS = 8
CASES = [(1, 128), (8, 128), (1, 2048), (4, 2048), (8, 2048), (16, 2048), (1, 8000), (8, 8000), (128, 0), (512, 0)]
FORMATS = ("f32", "f16", "int8")
CAPACITY = 8192


class Subject:
    """One graph: a session, and the arrays that stay bound."""

    def __init__(self, options: argparse.Namespace, kv_format: str | None) -> None:
        self.kv_format = kv_format
        self.heads, self.kv_heads, self.dim = options.heads, options.kv_heads, options.head_dim
        self.width = (self.heads + 2 * self.kv_heads) * self.dim
        angles = np.arange(CAPACITY)[:, None] * 10000.0 ** -(np.arange(self.dim // 2) / (self.dim // 2))
        self.fixed: dict[str, Any] = {"cos": np.cos(angles, dtype=np.float32), "sin": np.sin(angles, dtype=np.float32)}
        rng = np.random.default_rng(0)
        for name, shape, dtype in self.caches():
            # Numbers near 1 in every format, in memory that starts on a page as the product's does.
            array = np.full(int(np.prod(shape)) * np.dtype(dtype).itemsize + 4096, 0x3C, np.uint8)
            start = -array.ctypes.data % 4096
            cache = array[start : array.size - 4096 + start].view(dtype).reshape(shape)
            if dtype == np.float32:
                cache[...] = rng.random(shape[-1], np.float32)
            self.fixed[name] = ort.OrtValue.ortvalue_from_numpy(cache)
            self.fixed[name + ".memory"] = array
        session_options = ort.SessionOptions()
        session_options.use_per_session_threads = False
        if kv_format is not None:
            session_options.register_custom_ops_library(str(native_library().path))
        graph = ir.to_proto(self.graph()).SerializeToString()
        self.session = ort.InferenceSession(graph, session_options, providers=["CPUExecutionProvider"])

    def caches(self) -> list[tuple[str, tuple[int, ...], Any]]:
        """Return name, shape and type of every cache."""
        dim, kv_heads = self.dim, self.kv_heads
        if self.kv_format is None:
            shape = (1, kv_heads, CAPACITY, dim)
            return [(f"{kind}{layer}", shape, np.float32) for layer in range(LAYERS) for kind in ("key", "value")]
        row = {"f32": 4 * dim, "f16": 2 * dim, "int8": dim + 2 * -(-dim // 32)}[self.kv_format]
        return [(f"cache{layer}", (2, kv_heads, CAPACITY, row), np.uint8) for layer in range(LAYERS)]

    def graph(self) -> ir.Model:
        """Return the layers as one graph."""
        values: dict[str, ir.Value] = {}

        def value(name: str, dtype: ir.DataType, rank: int) -> ir.Value:
            return values.setdefault(
                name, ir.Value(name=name, shape=ir.Shape([None] * rank), type=ir.TensorType(dtype))
            )

        number, integer = ir.DataType.FLOAT, ir.DataType.INT32
        tables = [value("cos", number, 2), value("sin", number, 2)]
        nodes, scale = [], self.dim**-0.5
        for layer in range(LAYERS):
            if self.kv_format is None:
                cache = [value(f"{kind}{layer}", number, 4) for kind in ("key", "value")]
                lengths = [value("seqlens_k", integer, 1), value("total_sequence_length", integer, 0)]
                inputs = [value("qkv", number, 3), None, None, *cache, *lengths, *tables]
                attributes = {"num_heads": self.heads, "kv_num_heads": self.kv_heads, "do_rotary": 1, "scale": scale}
                nodes.append(ir.node("GroupQueryAttention", inputs, attributes, domain="com.microsoft", num_outputs=3))
                for kind, output in zip(("y", "new_key", "new_value"), nodes[-1].outputs, strict=True):
                    output.name, output.type = f"{kind}{layer}", ir.TensorType(number)
                continue
            ranks = {"past_length": 1, "row_map": 2, "parents": 1, "kv_formats": 1}
            passes = [value(name, integer, rank) for name, rank in ranks.items()]
            inputs = [value("qkv", number, 2), value(f"cache{layer}", ir.DataType.UINT8, 4), *passes, *tables]
            inputs += [*[None] * 7, value("sequence_rows", integer, 1)]
            attributes = {"num_heads": self.heads, "num_kv_heads": self.kv_heads, "head_dim": self.dim}
            nodes.append(ir.node("SpecAttention", inputs, {**attributes, "layer": 0, "scale": scale}, domain=DOMAIN))
            nodes[-1].outputs[0].name, nodes[-1].outputs[0].type = f"y{layer}", ir.TensorType(number)
        outputs = [output for node in nodes for output in node.outputs]
        opsets = {"": 21, "com.microsoft": 1, DOMAIN: 1}
        graph = ir.Graph(list(values.values()), outputs, nodes=nodes, opset_imports=opsets, name="attention")
        return ir.Model(graph, ir_version=10)

    def bind(self, rows: int, past: int) -> Any:
        """Return a binding for passes of that many rows at that depth."""
        qkv = np.random.default_rng(1).standard_normal((rows, self.width)).astype(np.float32)
        arrays: dict[str, Any] = dict(self.fixed)
        if self.kv_format is None:
            arrays["qkv"] = qkv[None]
            arrays["seqlens_k"] = np.array([past + rows - 1], np.int32)
            arrays["total_sequence_length"] = np.array(past + rows, np.int32)
        else:
            arrays |= {"qkv": qkv, "past_length": np.array([past], np.int32)}
            arrays |= {
                "row_map": np.arange(CAPACITY, dtype=np.int32)[None],
                "sequence_rows": np.array([rows], np.int32),
                "parents": np.arange(-1, rows - 1, dtype=np.int32),
            }
            arrays["kv_formats"] = np.array([FORMATS.index(self.kv_format)], np.int32)
        binding = self.session.io_binding()
        for entry in self.session.get_inputs():
            array = arrays[entry.name]
            ready = array if isinstance(array, ort.OrtValue) else ort.OrtValue.ortvalue_from_numpy(array)
            binding.bind_ortvalue_input(entry.name, ready)
        for entry in self.session.get_outputs():
            if entry.name.startswith("new_"):
                binding.bind_ortvalue_output(entry.name, self.fixed[entry.name.removeprefix("new_")])
            else:
                binding.bind_output(entry.name)
        return binding


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--heads", type=int, default=9)
    parser.add_argument("--kv-heads", type=int, default=3)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    ort.set_global_thread_pool_sizes(options.threads, 1)
    names: list[str | None] = [None, *FORMATS]
    subjects = {name or "GroupQueryAttention": Subject(options, name) for name in names}
    print(f"{'rows':>5} {'past':>5}  " + "  ".join(f"{name:>19}" for name in subjects) + "   (us a layer)")
    for rows, past in CASES:
        bindings = {name: subject.bind(rows, past) for name, subject in subjects.items()}
        seconds: dict[str, list[float]] = {name: [] for name in subjects}
        for _ in range(options.rounds):
            for name, subject in subjects.items():
                # The first run wakes the threads of this session.
                subject.session.run_with_iobinding(bindings[name])
                started = time.perf_counter()
                subject.session.run_with_iobinding(bindings[name])
                seconds[name].append(time.perf_counter() - started)
        quartiles = [float(np.quantile(seconds[name], 0.25)) / LAYERS * 1e6 for name in subjects]
        print(f"{rows:>5} {past:>5}  " + "  ".join(f"{value:>19.1f}" for value in quartiles), flush=True)


if __name__ == "__main__":
    main()
