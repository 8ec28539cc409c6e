"""Whole passes of a layer on a GPU: recorded and replayed, and with a device that fails."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort

from tests.gpu.emulated import LAUNCH_FAILED, expect, main, on_gpu, sweep
from tests.gpu.nodes import PlacedLayer, pair
from tests.ops.layer_cases import CAPACITY, HIDDEN, MATRICES, chain, extras, random_rows

TREE = (-1, 0, 0, 1, -1, 4)
ROWS, PAST = len(TREE), 4


class Bound:
    """A layer whose inputs stay where they are from pass to pass, as a recorded pass needs them."""

    def __init__(self, layer, rows):
        node, inputs = layer.node(graphs=True)
        self.session, self._binding, self._options = node.session, node.session.io_binding(), ort.RunOptions()
        self._options.log_severity_level = 4
        self._options.add_run_config_entry("gpu_graph_id", str(rows))
        self.host = {name: inputs[name].copy() for name in ("past_length", "row_map", "kv_formats", "sequence_rows")}
        self.host["parents"] = np.zeros(rows, np.int32)
        self.host["sequence_rows"][0] = rows
        self._x, self._y = (on_gpu(np.zeros((rows, HIDDEN), np.float32)) for _ in range(2))
        self._cache = on_gpu(layer.cache)
        device = {name: on_gpu(array) for name, array in inputs.items() if name not in (*self.host, "cache")}
        host = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in self.host.items()}
        for name, bound in {**device, **host, "x": self._x, "cache": self._cache}.items():
            self._binding.bind_ortvalue_input(name, bound)
        self._binding.bind_ortvalue_output("y", self._y)

    def run(self, x, past, parents):
        self.host["past_length"][0] = past
        self.host["parents"][:] = parents
        self._x.update_inplace(x)
        self.session.run_with_iobinding(self._binding, self._options)
        return self._y.numpy()

    def cache(self):
        return self._cache.numpy()


def recorded(gpu, kv_format, **options):
    """Return a layer that records passes of ``ROWS`` rows behind others, and the same on the CPU."""
    layer, plain = pair(lambda: PlacedLayer(MATRICES["w4m"], kv_format, **options), gpu)
    x = random_rows(np.random.default_rng(8), PAST)
    for one in (layer, plain):
        one.whole(x, 0, chain(PAST))
    return Bound(layer, ROWS), plain


def case_replayed(gpu):
    """Past, tree and row map may change from replay to replay."""
    for kv_format, options in (("int8", {}), ("int4", {"window": 20, "softcap": 3.0}), ("f32", {"interleaved": 1})):
        bound, plain = recorded(gpu, kv_format, **options)
        random = np.random.default_rng(9)
        for past, parents in ((4, chain(ROWS)), (10, TREE), (4, TREE), (300, chain(ROWS)), (9, (-1,) * ROWS)):
            x = random_rows(random, ROWS)
            if past == 9:
                for row_map in (bound.host["row_map"][0], plain.shared["row_map"]):
                    row_map[[10, 60]] = row_map[[60, 10]]
            with gpu.starts(graphs=1):
                found = bound.run(x, past, parents)
            wanted = plain.whole(x, past, parents)
            assert found.tobytes() == wanted.tobytes(), (kv_format, past)
            assert bound.cache().tobytes() == plain.cache.tobytes(), (kv_format, past)


def case_replays_checked(gpu):
    """What the host has written is checked before a recorded pass runs again."""
    bound, plain = recorded(gpu, "int4x2")
    x = random_rows(np.random.default_rng(9), ROWS)
    wanted = bound.run(x, PAST, TREE)
    before = bound.cache()
    with gpu.starts(kernels=0, graphs=0):
        expect(lambda: bound.run(x, CAPACITY - 2, TREE), f"past_length {CAPACITY - 2} and {ROWS} rows of the pass")
        expect(lambda: bound.run(x, -1, TREE), "past_length -1")
        expect(lambda: bound.run(x, PAST, (-1, 1, 0, 0, 0, 0)), "parents[1] is 1, must be -1 to 0")
        for name, place, wrong, text in (
            ("row_map", (0, PAST + 1), CAPACITY, f"row_map holds {CAPACITY}"),
            ("row_map", (0, PAST + 1), bound.host["row_map"][0, 3], "of position 3 to the pass"),
            ("sequence_rows", 0, 2, f"sequence_rows[0] is 2, the pass has {ROWS} rows"),
            ("kv_formats", 1, 4, "kv_formats[1] is 4, was 5 when the pass was recorded"),
        ):
            right = bound.host[name][place]
            bound.host[name][place] = wrong
            expect(lambda: bound.run(x, PAST, TREE), text)
            bound.host[name][place] = right
    assert bound.cache().tobytes() == before.tobytes()
    assert bound.run(x, PAST, TREE).tobytes() == wanted.tobytes() == plain.whole(x, PAST, TREE).tobytes()


def tree(gpu):
    """A first pass; ends in an error, or with the bits of the CPU."""
    layers = pair(lambda: PlacedLayer(MATRICES["w4"], "int8", **extras(np.random.default_rng(3))), gpu)
    x = random_rows(np.random.default_rng(4), ROWS)
    found, wanted = (layer.whole(x, 0, TREE) for layer in layers)
    assert found.tobytes() == wanted.tobytes()


def case_launches_fail(gpu):
    for function in ("cuLaunchKernel", "cuMemcpyHtoDAsync"):
        sweep(gpu, function, 999, function, lambda: tree(gpu))


def case_recording_fails(gpu):
    def body():
        bound, plain = recorded(gpu, "int8")
        x = random_rows(np.random.default_rng(9), ROWS)
        assert bound.run(x, PAST, TREE).tobytes() == plain.whole(x, PAST, TREE).tobytes()

    for function in ("cuStreamEndCapture", "cuGraphInstantiate", "cuGraphLaunch", "cuMemHostAlloc"):
        sweep(gpu, function, 999, function, body)


def case_lost(gpu):
    """A kernel that fails is an error of its pass and of all that follow."""
    layer = PlacedLayer(MATRICES["w4"], "f16").place_nodes(gpu)
    x = random_rows(np.random.default_rng(4), 3)
    layer.whole(x, 0, chain(3))
    gpu.fault("cuLaunchKernel", 5, LAUNCH_FAILED)
    for _ in range(2):
        expect(lambda: layer.whole(x, 3, chain(3)), "CUDA_ERROR_LAUNCH_FAILED")


if __name__ == "__main__":
    main(globals())
