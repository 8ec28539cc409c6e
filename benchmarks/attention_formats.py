"""Time of attention per layer by format of the cache and rows of a pass, over caches as large as a model's.

python benchmarks/attention_formats.py [--heads 9 --kv-heads 3 --head-dim 64 --layers 30] [--depth 8192]
    [--rows 1,2,4,8,16] [--formats f16,int8,...] [--isa NAME] [--threads 2] [--rounds 20] [--json]

Every format has a graph with caches of its own for all layers, so that a pass finds in memory, not in the caches of the
CPU, what a pass of the model would find there. Rounds alternate between formats and numbers of rows on one pool of
threads, beginning elsewhere each time. Printed are medians of microseconds per layer with the middle half of the
rounds; how much faster than f16 that is; and the time over that of as many passes of one row. The rows are a chain.
A format with "+constants" behind it, such as int4+constants, has the constants that an export computes for keys.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from edge_rt.ort.op_library import native_library
from edge_rt.package.op_list import DOMAIN

FORMATS = {"f32": 0, "f16": 1, "int8": 2, "k8v4": 3, "int4": 4, "int4x2": 5, "int4x2_upper": 6}
"""Name -> number in the graph's input ``kv_formats``."""
CONSTANTS = ("key_centre", "key_balance", "key_feedback")
GROUP = 32
WITH_CONSTANTS = "+constants"
FILL = 512
"""Rows of a pass that fills a cache."""


def row_bytes(kv_format: str, dim: int) -> int:
    """Return the last dimension of a layer's cache."""
    groups = -(-dim // GROUP)
    int8, nibbles, pairs = dim + 2 * groups, 20 * groups, 36 * groups
    return {
        "f32": 4 * dim,
        "f16": 2 * dim,
        "int8": int8,
        "k8v4": -(-(int8 + nibbles) // 2),
        "int4": nibbles,
        "int4x2": pairs,
        "int4x2_upper": pairs,
    }[kv_format]


class Subject:
    """The attention of a model's layers in one format: a session, and the arrays that stay bound."""

    def __init__(self, options: argparse.Namespace, kv_format: str) -> None:
        self.heads, self.kv_heads, self.dim = options.heads, options.kv_heads, options.head_dim
        self.layers, self.capacity = options.layers, options.depth + max(options.rows)
        self.has_constants = kv_format.endswith(WITH_CONSTANTS)
        kv_format = kv_format.removesuffix(WITH_CONSTANTS)
        self.kv_format = kv_format
        self.width = (self.heads + 2 * self.kv_heads) * self.dim
        angles = np.arange(self.capacity)[:, None] * 10000.0 ** -(np.arange(self.dim // 2) / (self.dim // 2))
        self.fixed: dict[str, Any] = {"cos": np.cos(angles, dtype=np.float32), "sin": np.sin(angles, dtype=np.float32)}
        self.fixed |= {"row_map": np.arange(self.capacity, dtype=np.int32)[None]}
        self.fixed |= {"kv_formats": np.array([FORMATS[kv_format]], np.int32)}
        session_options = ort.SessionOptions()
        session_options.use_per_session_threads = False
        library = native_library()
        library.select(options.isa)
        session_options.register_custom_ops_library(str(library.path))
        library.select(None)
        first, self.session = (
            ort.InferenceSession(
                ir.to_proto(self.graph(layers)).SerializeToString(), session_options, providers=["CPUExecutionProvider"]
            )
            for layers in (1, self.layers)
        )
        self.memory: list[Any] = []
        shape = (2, self.kv_heads, self.capacity, row_bytes(kv_format, self.dim))
        for layer in range(self.layers):
            # Memory that starts on a page, as the product's does.
            memory = np.empty(int(np.prod(shape)) + 4096, np.uint8)
            start = -memory.ctypes.data % 4096
            self.memory.append(memory[start : memory.size - 4096 + start])
            self.fixed[f"cache{layer}"] = ort.OrtValue.ortvalue_from_numpy(self.memory[-1].reshape(shape))
            self.fixed |= self.constants(layer)
        # The operator writes every row of one layer; the others get the same.
        for past in range(0, self.capacity, FILL):
            first.run_with_iobinding(self.bind(first, min(FILL, self.capacity - past), past))
        for memory in self.memory[1:]:
            memory[:] = self.memory[0]

    def constants(self, layer: int) -> dict[str, Any]:
        """Return a layer's constants of keys: any will do."""
        if not self.has_constants:
            return {}
        rng, shape = np.random.default_rng(layer), (self.kv_heads, self.dim)
        feedback = np.triu(0.1 * rng.standard_normal((*shape, self.dim)), 1)
        drawn = (rng.standard_normal(shape), rng.uniform(0.5, 2.0, shape), feedback)
        return {
            f"{name}{layer}": ort.OrtValue.ortvalue_from_numpy(array.astype(np.float32))
            for name, array in zip(CONSTANTS, drawn, strict=True)
        }

    def graph(self, layers: int) -> ir.Model:
        """Return that many layers as one graph."""
        values: dict[str, ir.Value] = {}

        def value(name: str, dtype: ir.DataType, rank: int) -> ir.Value:
            return values.setdefault(
                name, ir.Value(name=name, shape=ir.Shape([None] * rank), type=ir.TensorType(dtype))
            )

        number, integer = ir.DataType.FLOAT, ir.DataType.INT32
        nodes = []
        for layer in range(layers):
            ranks = {"past_length": 1, "row_map": 2, "parents": 1, "kv_formats": 1}
            passes = [value(name, integer, rank) for name, rank in ranks.items()]
            inputs: list[ir.Value | None] = [
                value("qkv", number, 2),
                value(f"cache{layer}", ir.DataType.UINT8, 4),
                *passes,
            ]
            inputs += [value("cos", number, 2), value("sin", number, 2)]
            if self.has_constants:
                pairs = zip(CONSTANTS, (2, 2, 3), strict=True)
                inputs += [None, None, None, *(value(f"{name}{layer}", number, rank) for name, rank in pairs)]
            inputs += [None] * (15 - len(inputs)) + [value("sequence_rows", integer, 1)]
            attributes = {"num_heads": self.heads, "num_kv_heads": self.kv_heads, "head_dim": self.dim}
            attributes |= {"layer": 0, "scale": self.dim**-0.5}
            nodes.append(ir.node("SpecAttention", inputs, attributes, domain=DOMAIN))
            nodes[-1].outputs[0].name, nodes[-1].outputs[0].type = f"y{layer}", ir.TensorType(number)
        outputs = [output for node in nodes for output in node.outputs]
        opsets = {"": 21, DOMAIN: 1}
        graph = ir.Graph(list(values.values()), outputs, nodes=nodes, opset_imports=opsets, name="attention")
        return ir.Model(graph, ir_version=10)

    def bind(self, session: Any, rows: int, past: int) -> Any:
        """Return a binding of a session for passes of that many rows at that depth."""
        arrays = {
            **self.fixed,
            "qkv": np.random.default_rng(past).standard_normal((rows, self.width)).astype(np.float32),
            "past_length": np.array([past], np.int32),
            "sequence_rows": np.array([rows], np.int32),
            "parents": np.arange(-1, rows - 1, dtype=np.int32),
        }
        binding = session.io_binding()
        for entry in session.get_inputs():
            array = arrays[entry.name]
            ready = array if isinstance(array, ort.OrtValue) else ort.OrtValue.ortvalue_from_numpy(array)
            binding.bind_ortvalue_input(entry.name, ready)
        for entry in session.get_outputs():
            binding.bind_output(entry.name)
        return binding


def measure(options: argparse.Namespace) -> dict[tuple[str, int], list[float]]:
    """Return the microseconds per layer of every round, by format and rows."""
    subjects = {name: Subject(options, name) for name in options.formats}
    cases = [(name, rows) for rows in options.rows for name in options.formats]
    bindings = {(name, rows): subjects[name].bind(subjects[name].session, rows, options.depth) for name, rows in cases}
    found: dict[tuple[str, int], list[float]] = {case: [] for case in cases}
    for i in range(options.rounds):
        first = i * len(cases) // options.rounds
        for case in cases[first:] + cases[:first]:
            session = subjects[case[0]].session
            started = time.perf_counter()
            session.run_with_iobinding(bindings[case])
            found[case].append((time.perf_counter() - started) / options.layers * 1e6)
    return found


def summarise(options: argparse.Namespace, found: dict[tuple[str, int], list[float]]) -> list[dict[str, Any]]:
    """Return a row of numbers for every format and number of rows."""
    medians = {case: float(np.median(values)) for case, values in found.items()}
    out = []
    for (name, rows), values in found.items():
        entry = {"format": name, "rows": rows, "us_per_layer": medians[name, rows]}
        entry |= {"q1": float(np.quantile(values, 0.25)), "q3": float(np.quantile(values, 0.75))}
        if "f16" in options.formats:
            entry["times_faster_than_f16"] = medians["f16", rows] / medians[name, rows]
        if 1 in options.rows:
            entry["of_single_rows"] = medians[name, rows] / (rows * medians[name, 1])
        out.append(entry)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    numbers = lambda text: [int(part) for part in text.split(",")]  # noqa: E731
    parser.add_argument("--heads", type=int, default=9)
    parser.add_argument("--kv-heads", type=int, default=3)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--depth", type=int, default=8192)
    parser.add_argument("--rows", type=numbers, default=[1, 2, 4, 8, 16])
    parser.add_argument("--formats", type=lambda text: text.split(","), default=list(FORMATS))
    parser.add_argument("--isa", default=None)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    ort.set_global_thread_pool_sizes(options.threads, 1)
    entries = summarise(options, measure(options))
    if options.json:
        print(json.dumps({"options": vars(options), "found": entries}, indent=2))
        return
    print("| format | rows | us a layer | middle half | times faster than f16 | of as many single rows |")
    print("|---|---|---|---|---|---|")
    for entry in entries:
        interval = f"{entry['q1']:.0f}-{entry['q3']:.0f}"
        ratios = [f"{entry[key]:.2f}" if key in entry else "" for key in ("times_faster_than_f16", "of_single_rows")]
        print(
            f"| {entry['format']} | {entry['rows']} | {entry['us_per_layer']:.0f} | {interval} | "
            + " | ".join(ratios)
            + " |"
        )


if __name__ == "__main__":
    main()
