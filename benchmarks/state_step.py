"""What operators with states take for a pass, against a bare copy of their states from one slot to the other.

Every graph holds layers with states of their own, which a pass does not find in the first cache levels. Passes of all
kinds and copies alternate in one process, on one pool of threads::

    python benchmarks/state_step.py [--rounds 60] [--threads 1] [--processor-time]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from alternating import ratio_text

from edge_rt.ort.op_library import native_library
from edge_rt.package.layers import GatedDelta, Recurrence, StateSpace
from edge_rt.package.op_list import DOMAIN, OPS

LAYERS, DRAFTS = 6, 15
SHAPES: dict[str, Recurrence] = {
    "state space 48 x 32, states of 128 (Granite 4 H 350M)": StateSpace(48, 32, 1, 128, 4),
    "state space 24 x 64, states of 128": StateSpace(24, 64, 1, 128, 4),
    "delta rule 16 x 128, keys of 128 (Qwen 3.5 0.8B)": GatedDelta(16, 16, 128, 128, 4),
}
PASSES = {"1 row": (1, 1), "1 row and 7 drafts": (8, 1), "64 rows": (64, 64)}
"""Rows of a pass, and how many are certain."""


@dataclass
class Layers:
    """A session over some layers, and their states."""

    session: ort.InferenceSession
    states: list[Any]
    widths: dict[str, int]
    floats: int

    def binding(self, rows: int, certain: int) -> Any:
        """Return a binding for passes of so many rows."""
        rng, binding = np.random.default_rng(1), self.session.io_binding()
        whole = {
            "past_length": [7], "state_index": [0], "slot": [0], "certain": [certain], "sequence_rows": [rows],
            "parents": range(-1, rows - 1),
        }  # fmt: skip
        arrays: dict[str, Any] = {name: np.array(values, np.int32) for name, values in whole.items()}
        arrays["advance"] = np.full((1, DRAFTS), -1, np.int32)
        arrays |= {name: rng.standard_normal((rows, width), np.float32) for name, width in self.widths.items()}
        arrays |= {f"state{number}": state for number, state in enumerate(self.states)}
        for entry in self.session.get_inputs():
            binding.bind_ortvalue_input(entry.name, ort.OrtValue.ortvalue_from_numpy(arrays[entry.name]))
        for entry in self.session.get_outputs():
            binding.bind_output(entry.name)
        return binding

    def copy(self) -> None:
        """Copy the state of every layer, without transitions, from one slot to the other."""
        for state in self.states:
            np.copyto(state[0, 1, : self.floats], state[0, 0, : self.floats])


def layers_of(kind: Recurrence) -> Layers:
    rng = np.random.default_rng(0)
    if isinstance(kind, StateSpace):
        heads, values = kind.heads, kind.size
        name, attributes = "SsmScan", {"head_dim": kind.head_dim, "groups": kind.groups}
        widths = {"xbc": kind.conv_size, "z": values, "t": heads}
        vectors = {"a_scale": heads, "skip": heads, "dt_bias": heads, "norm": values}
    else:
        heads, values = kind.value_heads, kind.value_size
        name, attributes = "GatedDelta", {"key_heads": kind.key_heads}
        widths = {"qkv": kind.conv_size, "z": values, "b": heads, "a": heads}
        vectors = {"a_scale": heads, "dt_bias": heads, "norm": kind.value_dim}
    op = next(op for op in OPS if op.name == name)
    inputs = {
        port.name: ir.Value(
            name=port.name,
            shape=ir.Shape([None] * (port.shape.count(",") + 1)),
            type=ir.TensorType(ir.DataType.FLOAT if port.dtype == "float" else ir.DataType.INT32),
        )
        for port in op.inputs
        if port.name != "state" and port.name not in vectors
    }
    stored = {
        vector: ir.Value(name=vector, const_value=ir.tensor(-rng.random(size, np.float32), name=vector))
        for vector, size in vectors.items()
    }
    states = [
        ir.Value(name=f"state{number}", shape=ir.Shape([None] * 3), type=ir.TensorType(ir.DataType.FLOAT))
        for number in range(LAYERS)
    ]
    nodes = [
        ir.node(
            name, [(inputs | stored | {"state": state})[port.name] for port in op.inputs], attributes, domain=DOMAIN
        )
        for state in states
    ]
    for number, node in enumerate(nodes):
        node.outputs[0].name, node.outputs[0].type = f"y{number}", ir.TensorType(ir.DataType.FLOAT)
    graph = ir.Graph(
        [*inputs.values(), *states], [node.outputs[0] for node in nodes], nodes=nodes,
        initializers=list(stored.values()), opset_imports={"": 21, DOMAIN: 1}, name="states",
    )  # fmt: skip
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.register_custom_ops_library(str(native_library().path))
    proto = ir.to_proto(ir.Model(graph, ir_version=10)).SerializeToString()
    session = ort.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
    floats = kind.state_floats + DRAFTS * kind.transition_floats
    return Layers(session, [rng.standard_normal((1, 2, floats), np.float32) for _ in states], widths, kind.state_floats)


def milliseconds(work: Callable[[], object], clock: Callable[[], float]) -> float:
    began = clock()
    work()
    return 1e3 * (clock() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--processor-time", action="store_true", help="of one thread: what other programs take is left out"
    )
    arguments = parser.parse_args()
    if arguments.processor_time and arguments.threads != 1:
        parser.error("--processor-time needs --threads 1")
    clock = time.thread_time if arguments.processor_time else time.perf_counter
    native_library().use_threads(arguments.threads)
    print(
        f"{native_library().isa_names[0]}, {arguments.threads} threads, {LAYERS} layers; medians of times over a copy"
    )
    for name, kind in SHAPES.items():
        layers = layers_of(kind)
        bindings = {label: layers.binding(*rows) for label, rows in PASSES.items()}
        taken: dict[str, list[float]] = {"copy": [], **{label: [] for label in bindings}}
        for _ in range(arguments.rounds):
            taken["copy"].append(milliseconds(layers.copy, clock))
            for label, binding in bindings.items():
                work = partial(layers.session.run_with_iobinding, binding)
                taken[label].append(milliseconds(work, clock))
        copied = 8e-6 * LAYERS * layers.floats / np.median(taken["copy"])
        print(f"\n{name}: {4 * layers.floats / 2**20:.2f} MiB a layer, copied with {copied:.1f} GB/s")
        for label in bindings:
            print(f"  {label:22} {np.median(taken[label]):8.3f} ms   {ratio_text(taken[label], taken['copy'])}")


if __name__ == "__main__":
    main()
