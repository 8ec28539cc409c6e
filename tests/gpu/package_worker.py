"""Graphs of whole native packages on a GPU: no node on the CPU, and the CPU's bits."""

from __future__ import annotations

import collections
import contextlib
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime as ort

from edge_rt.export.op_profile import PROFILES
from edge_rt.ort.compute_device import placement_of
from tests.gpu.emulated import OUT_OF_MEMORY, expect, main, on_gpu, same_bits, sweep
from tests.helpers.gguf_factory import write_llama_gguf
from tests.helpers.graphs import Built
from tests.ops.spec_attention_reference import FORMATS, Config, empty_cache

CAPACITY = 300
HOST = ("input_ids", "logit_rows", "past_length", "row_map", "window_row_map", "parents", "sequence_rows", "kv_formats")
# Floats beside codes cannot be stacked: they are products of their own, behind which ``Concat`` stands.
EVERY_TYPE = {
    "embedding_type": "Q4_1", "output_type": "F16", "tied": False,
    "types": {"blk.0.attn_v.weight": "F16", "blk.0.ffn_up.weight": "Q4_0", "blk.1.attn_output.weight": "F32"},
}  # fmt: skip
# A head of keys ends within a tile, and so within a product.
WINDOW = {"layers": 2, "head_dim": 24, "kv_heads": 1, "extra_metadata": {"llama.attention.sliding_window": 16}}
# Tokens of a pass, where they stand, what they follow, and whose logits are wanted.
PASSES = (
    (18, 0, range(-1, 17), [17]),
    (1, 18, [-1], [0]),
    (6, 19, (-1, 0, 0, 1, -1, 4), range(6)),
    (3, 21, range(-1, 2), [2, 0]),
    (2, 260, range(-1, 1), [1]),
)


class Model:
    """A graph and its caches, on the GPU or the CPU."""

    def __init__(self, gpu, built, kv_format, **options):
        self.session = gpu.open(str(built.graph), **options)
        self.inputs, self._outputs = PROFILES["native"].feeds(built.used, [0] * CAPACITY)
        decoder, self._is_on_cpu = built.used, options.get("cpu", False)
        empty = empty_cache(Config(kv_heads=decoder.num_kv_heads, dim=decoder.head_dim), kv_format, CAPACITY)
        self.inputs["kv_formats"][:] = FORMATS.index(kv_format)
        self.inputs |= {name: empty.copy() for name in self.inputs if name.startswith("cache.")}
        self._bound = {name: self._placed(name, array) for name, array in self.inputs.items()}

    def _placed(self, name, array):
        return ort.OrtValue.ortvalue_from_numpy(array) if self._is_on_cpu or name in HOST else on_gpu(array)

    def run(self, ids, past, parents, wanted):
        """Return logits, top ids, top logits and log-sum-exp of the wanted rows."""
        given = {"input_ids": np.array(ids, np.int64), "logit_rows": np.array(wanted, np.int64)}
        given |= {"past_length": np.array([past], np.int32), "parents": np.array(parents, np.int32)}
        given["sequence_rows"] = np.array([len(ids)], np.int32)
        bound = self._bound | {name: self._placed(name, array) for name, array in given.items()}
        binding = self.session.io_binding()
        for name, value in bound.items():
            binding.bind_ortvalue_input(name, value)
        for name in self._outputs:
            binding.bind_output(name)
        self.session.run_with_iobinding(binding)
        return binding.copy_outputs_to_cpu()

    def caches(self):
        return [value.numpy() for name, value in self._bound.items() if name.startswith("cache.")]


class Recorded(Model):
    """The same, whose passes of ``rows`` rows and ``wanted`` logits are recorded and replayed."""

    def __init__(self, gpu, package, kv_format, rows, wanted):
        super().__init__(gpu, package, kv_format, graphs=True)
        self._options = ort.RunOptions()
        self._options.log_severity_level = 4
        self._options.add_run_config_entry("gpu_graph_id", str(rows))
        self._given = {"input_ids": np.zeros(rows, np.int64), "logit_rows": np.zeros(wanted, np.int64)}
        self._given |= {"past_length": np.zeros(1, np.int32), "parents": np.zeros(rows, np.int32)}
        self._given["sequence_rows"] = np.zeros(1, np.int32)
        self._results = {name: on_gpu(array[:wanted]) for name, array in self._outputs.items()}
        self._binding = self.session.io_binding()
        for name, value in self._bound.items():
            self._binding.bind_ortvalue_input(name, value)
        for name, array in self._given.items():
            self._binding.bind_ortvalue_input(name, self._placed(name, array))
        for name, value in self._results.items():
            self._binding.bind_ortvalue_output(name, value)

    def run(self, ids, past, parents, wanted):
        for array, numbers in zip(self._given.values(), (ids, wanted, past, parents, len(ids)), strict=True):
            array[:] = numbers
        self.session.run_with_iobinding(self._binding, self._options)
        return [value.numpy() for value in self._results.values()]


@contextlib.contextmanager
def built(**options):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        write_llama_gguf(path / "m.gguf", context=CAPACITY, **options)
        yield Built(path / "m.gguf", path, "int8", profile="native")


def compare(gpu, package, kv_format):
    """Run a prompt in pieces, a tree, and go on behind a part of it."""
    found, wanted = Model(gpu, package, kv_format), Model(gpu, package, kv_format, cpu=True)
    places = collections.Counter((node.operator, node.is_on_cpu) for node in placement_of(found.session))
    assert places.total() > 0
    assert not any(is_on_cpu for _, is_on_cpu in places), places
    random = np.random.default_rng(11)
    for model in (found, wanted):
        row_map = model.inputs.get("row_map", model.inputs.get("window_row_map"))
        row_map[0] = np.random.default_rng(12).permutation(CAPACITY)
    for count, *rest in PASSES:
        ids = random.integers(0, package.used.vocab_size, count)
        same_bits(found.run(ids, *rest), wanted.run(ids, *rest), (kv_format, rest))
    same_bits(found.caches(), wanted.caches(), kv_format)
    return {operator for operator, _ in places}


def case_every_kv_format(gpu):
    with built() as package:
        for kv_format in FORMATS:
            operators = compare(gpu, package, kv_format)
        assert operators == {"QuantEmbed", "DecoderLayer", "SpecAttention", "QuantLinear", "RowTopK", "Gather"}


def case_tree_once(gpu):
    """Layers of a pass share what is known of its tree."""
    layer, last_layer = 4 * 2 + 3, 4 * 2 + 3 + 2
    for layers in (1, 3):
        with built(layers=layers) as package:
            model = Model(gpu, package, "f16")
            # Besides layers: the embedding, the tree, two for logits, and two for the largest of them.
            with gpu.starts(kernels=1 + 1 + (layers - 1) * layer + last_layer + 2 + 2):
                model.run([5, 7], 0, [-1, -1], [0])


def case_recorded(gpu):
    """Tokens, wanted rows, past and tree may change from replay to replay; what must not be is refused."""
    with built(extra_metadata=WINDOW["extra_metadata"]) as package:
        found, wanted = Recorded(gpu, package, "int8", 3, 2), Model(gpu, package, "int8", cpu=True)
        vocabulary = package.used.vocab_size
        for place in (
            (0, (-1, 0, 1), [2, 0]),
            (3, (-1, -1, 0), [0, 1]),
            (4, (-1, 0, 0), [2, 2]),
            (40, (-1, 0, 1), [0, 2]),
        ):
            ids = np.random.default_rng(place[0]).integers(0, vocabulary, 3)
            with gpu.starts(graphs=1):
                results = found.run(ids, *place)
            same_bits(results, wanted.run(ids, *place), place)
        caches, bad = found.caches(), [1, vocabulary, 1]
        with gpu.starts(kernels=0, graphs=0):
            expect(lambda: found.run(bad, *place), f"ids[1] is {vocabulary}, must be 0 to {vocabulary - 1}")
            expect(lambda: found.run(ids, *place[:2], [1, 3]), "indices[1] is 3, must be -3 to 2")
            expect(lambda: found.run(ids, -5, *place[1:]), "past_length -5")
        same_bits(found.caches(), caches, "refused")
        same_bits(found.run(ids, *place), results, "again")


def case_out_of_memory(gpu):
    """At every allocation, from the opening of the session to a pass that is recorded."""
    one_row, tree = ([5], 0, [-1], [0]), ([9, 8, 7], 1, [-1, 0, 0], [2, 0])
    with built(layers=1) as package:
        plain = Model(gpu, package, "int8", cpu=True)
        wanted = [plain.run(*one_row), plain.run(*tree)]

        def body():
            model = Model(gpu, package, "int8")
            same_bits(model.run(*one_row), wanted[0], "plain")
            recorded = Recorded(gpu, package, "int8", len(tree[0]), len(tree[-1]))
            recorded.run([5, 1, 1], 0, [-1, 0, 0], [0, 0])
            same_bits(recorded.run(*tree), wanted[1], "recorded")

        sweep(gpu, "cuMemAlloc", OUT_OF_MEMORY, ("allocate", "out of memory"), body)


def case_every_type(gpu):
    with built(**EVERY_TYPE) as package:
        assert "Concat" in compare(gpu, package, "int8")


def case_window(gpu):
    with built(**WINDOW) as package:
        compare(gpu, package, "f16")


if __name__ == "__main__":
    main(globals())
