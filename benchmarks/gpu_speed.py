"""Times of passes and products on a GPU against its own copies of memory."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

import numpy as np
import onnx_ir as ir
from gpu_target import Results, Target

from edge_rt.export.weights.codes import Codes
from edge_rt.export.weights.tile_formats import TILE_FORMATS
from edge_rt.export.weights.tiles import pack_rows
from edge_rt.ort.binding import StopSwitch
from edge_rt.ort.compute_device import ComputeDevice, DeviceArray
from edge_rt.ort.onnxruntime_import import ort
from edge_rt.ort.providers import open_device
from edge_rt.ort.session import Session, pool_size
from edge_rt.package.manifest import WEIGHTS_FILE
from edge_rt.package.reader import Package
from edge_rt.runtime.forward.io_binding import open_io_binding
from edge_rt.runtime.forward.runner import ModelRunner
from edge_rt.system.machine import usable_cpus

DEPTH = 128
PROMPTS = {"tiny": 64}
USUAL_PROMPT = 2048
"""Tokens of a prompt."""
ROUNDS_OF_PROMPTS = 5
MATRICES = {"8b": (28672, 4096), "4b": (19456, 2560), "1b": (16384, 2048), "tiny": (64, 256)}
"""Shape -> outputs and inputs of its largest matrix but for the head: both halves of the feed-forward part."""
MATRIX_COPIES = 8
"""Products of one pass, of different matrices, so that caches of the GPU do not hold what the next one reads."""
COPIED_BYTES = {"tiny": 1 << 20}
USUAL_COPIED_BYTES = 1 << 30


class Copies:
    """Copies memory of a GPU within it, by the driver.

    Args:
        device: the GPU, on which a session is open.
        bytes_: of the copied array.
    """

    def __init__(self, device: ComputeDevice, bytes_: int) -> None:
        self.moved_bytes = 2 * bytes_  # read and written
        self._from, self._to = (DeviceArray(device, np.zeros(bytes_, np.uint8)) for _ in range(2))

    def seconds(self) -> float:
        """Return the time of one copy, until it is done."""
        started = time.perf_counter()
        ort.copy_tensors([self._from.value], [self._to.value])
        return time.perf_counter() - started


class Passes:
    """Passes of a package on a GPU over made-up tokens, behind a cache that holds anything.

    Args:
        package: the package.
        device: the GPU.
        longest: rows of the largest pass.
    """

    def __init__(self, package: Package, device: ComputeDevice, longest: int) -> None:
        manifest = package.manifest
        self._session = Session(package.file(manifest.graphs[0]), threads=_threads(), device=device, profile="native")
        self._vocabulary, self._random = manifest.model.vocab_size, np.random.default_rng(0)
        binding = open_io_binding(manifest, DEPTH + longest, None, largest_pass=longest, device=device)
        self._cache = binding.open_cache()
        self._runner = ModelRunner(self._session, binding, StopSwitch())

    def seconds(self, rows: int, *, num_logits: int | None = None) -> float:
        """Return the time of one pass, until its most likely tokens are here.

        Args:
            rows: its tokens.
            num_logits: rows that need logits; None: all.
        """
        tokens = [int(token) for token in self._random.integers(0, self._vocabulary, rows)]
        self._cache.pretend(DEPTH)
        with self._cache.reserve(rows) as reserved:
            started = time.perf_counter()
            self._runner.forward(tokens, reserved.start, num_logits or rows)
            return time.perf_counter() - started

    def close(self) -> None:
        """Give back cache and session."""
        self._runner.close()


class Products:
    """One pass of several products, QuantLinear in 4 bits, each with a matrix of its own; recorded.

    Args:
        device: the GPU.
        outputs, inputs: size of a matrix.
        rows: of x.
    """

    def __init__(self, device: ComputeDevice, outputs: int, inputs: int, rows: int) -> None:
        random = np.random.default_rng(0)
        codes = random.integers(0, 16, (outputs, inputs), np.uint8)
        d = np.full((outputs, inputs // 32), 0.004, np.float16)
        packed = pack_rows(Codes(codes, d=d), TILE_FORMATS["w4"])
        self.matrix_bytes = packed.nbytes
        session = Session(
            _product_graph(packed.shape, outputs, inputs), threads=_threads(), device=device, profile="native"
        )
        self._switch, self._binding = StopSwitch(), session.binding()
        x = random.standard_normal((rows, inputs)).astype(np.float32)
        self._binding.bind_input("x", DeviceArray(device, x))
        for number in range(MATRIX_COPIES):
            self._binding.bind_input(f"weight{number}", DeviceArray(device, packed))
            self._binding.bind_output(f"y{number}", DeviceArray(device, np.zeros((rows, outputs), np.float32)))
        self._binding.run(self._switch)

    def seconds(self) -> float:
        """Return the time of the pass, until it is done."""
        started = time.perf_counter()
        self._binding.run(self._switch, record=True)
        return time.perf_counter() - started


def _threads() -> int:
    return pool_size() or usable_cpus()


def _product_graph(shape: tuple[int, ...], outputs: int, inputs: int) -> bytes:
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([None, inputs]))
    attributes = {"format": "w4", "out_features": outputs, "in_features": inputs}
    weights, nodes, results = [], [], []
    for number in range(MATRIX_COPIES):
        weight = ir.Value(name=f"weight{number}", type=ir.TensorType(ir.DataType.UINT8), shape=ir.Shape(shape))
        y = ir.Value(name=f"y{number}", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([None, outputs]))
        nodes.append(ir.node("QuantLinear", [x, weight], attributes, domain="edge_rt", outputs=[y]))
        weights.append(weight)
        results.append(y)
    graph = ir.Graph([x, *weights], results, nodes=nodes, opset_imports={"": 21, "edge_rt": 1}, name="products")
    return ir.to_proto(ir.Model(graph, ir_version=10)).SerializeToString()


def run_speed(target: Target, shape: str, mix: str, rounds: int) -> None:
    """Time passes of one shape, and products of its largest matrix, in turns with copies of memory.

    Args:
        target: where.
        shape: one of ``gpu_target.SHAPES``.
        mix: types of its weights.
        rounds: how often each is timed.
    """
    results, package = Results(target, "speed"), target.package(shape, mix)
    device = open_device(target.device, package.manifest.op_profile, target.providers)
    assert device is not None
    weights = package.file(WEIGHTS_FILE).stat().st_size
    prompt = PROMPTS.get(shape, USUAL_PROMPT)
    passes = Passes(package, device, prompt)
    copies = Copies(device, COPIED_BYTES.get(shape, USUAL_COPIED_BYTES))
    one, eight = (Products(device, *MATRICES[shape], rows=rows) for rows in (1, 8))
    timed = {
        "copy": copies.seconds,
        "pass of 1 row": partial(passes.seconds, 1),
        "pass of 8 rows": partial(passes.seconds, 8),
        "products of 1 row": one.seconds,
        "products of 8 rows": eight.seconds,
    }
    samples = _in_turns(timed, rounds)
    about = {"shape": shape, "mix": mix, "weights_bytes": weights, "matrix_bytes": one.matrix_bytes, "depth": DEPTH}
    results.samples(samples, **about)
    bandwidth = [copies.moved_bytes / seconds for seconds in samples["copy"]]
    low_high = np.quantile(bandwidth, (0.025, 0.5, 0.975)) / 1e9
    results.add(f"copies: {low_high[1]:.1f} GB/s read and written", gigabytes_per_second=list(low_high), **about)
    results.ratio(
        "pass of 1 row, share of the bandwidth of copies", _rates(weights, samples["pass of 1 row"]), bandwidth
    )
    moved = MATRIX_COPIES * one.matrix_bytes
    results.ratio("products of 1 row, share of it", _rates(moved, samples["products of 1 row"]), bandwidth)
    results.ratio("pass of 8 rows against 1", samples["pass of 8 rows"], samples["pass of 1 row"])
    results.ratio("products of 8 rows against 1", samples["products of 8 rows"], samples["products of 1 row"])
    prompts = [passes.seconds(prompt, num_logits=1) for _ in range(1 + ROUNDS_OF_PROMPTS)][1:]
    results.samples({f"prefill of {prompt} tokens": prompts}, **about)
    rate = prompt / float(np.median(prompts))
    results.add(f"prefill of {prompt} tokens: {rate:.0f} tokens/s", tokens_per_second=rate, **about)
    passes.close()


def run_launches(target: Target, shape: str, mix: str, rounds: int) -> None:
    """Time passes of one row that are recorded against the same that are not; arguments as of ``run_speed``.

    The weights lie on the GPU twice.
    """
    results, package = Results(target, "launches"), target.package(shape, mix)
    device = open_device(target.device, package.manifest.op_profile, target.providers)
    assert device is not None
    recorded, plain = Passes(package, device, DEPTH), Passes(package, replace(device, options={}), DEPTH)
    timed = {"recorded": partial(recorded.seconds, 1), "not recorded": partial(plain.seconds, 1)}
    samples = _in_turns(timed, rounds)
    results.samples(samples, shape=shape, mix=mix)
    results.ratio("pass of 1 row, not recorded against recorded", samples["not recorded"], samples["recorded"])
    for passes in (recorded, plain):
        passes.close()


def _in_turns(timed, rounds: int) -> dict[str, list[float]]:
    """Call functions in turns, after a few rounds that do not count: passes are recorded then.

    Args:
        timed: name -> function that returns seconds.
        rounds: how often each is called.
    """
    samples: dict[str, list[float]] = {name: [] for name in timed}
    for number in range(3 + rounds):
        for name, seconds in timed.items():
            found = seconds()
            if number >= 3:
                samples[name].append(found)
    return samples


def _rates(moved: int, seconds: list[float]) -> list[float]:
    return [moved / each for each in seconds]
