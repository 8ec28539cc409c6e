"""Toy operators (``csrc/tests/gpu_toy_ops.h``) through ONNX Runtime on the emulated GPU."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from tests.gpu.emulated import FLOAT, INT64, LAUNCH_FAILED, OUT_OF_MEMORY, expect, main, on_gpu, sweep, value


def chain(gpu, *, between=None, **options):
    """z = 2 * (3 x) + x, with another operator behind the first product if one is named."""
    x, y, z = value("x", FLOAT, 2), value("y", FLOAT, 2), value("z", FLOAT, 2)
    nodes, middle = [ir.node("Affine", [x], {"factor": 3.0}, domain="edge_rt", outputs=[y])], y
    if between is not None:
        middle = value("w", FLOAT, 2)
        nodes.append(ir.node(between, [y], outputs=[middle]))
    nodes.append(ir.node("Affine", [middle, x], {"factor": 2.0}, domain="edge_rt", outputs=[z]))
    return gpu.session(nodes, [x], [z], **options)


X = np.arange(6, dtype=np.float32).reshape(3, 2)


def case_plain(gpu):
    assert [d.ep_metadata["compute"] for d in gpu.devices] == ["87"]
    first, second = chain(gpu), chain(gpu)
    for scale in (1, 2):
        assert np.array_equal(first.run(None, {"x": X * scale})[0], 7 * X * scale)
        assert np.array_equal(second.run(None, {"x": X + scale})[0], 7 * (X + scale))
    assert gpu.work()[0] == 8


def case_mixed(gpu):
    session = chain(gpu, between="Neg")
    assert np.array_equal(session.run(None, {"x": X})[0], -5 * X)
    assert gpu.work()[0] == 2


def append(gpu, **options):
    cache, row, at, total = (
        value("cache", FLOAT, 2),
        value("row", FLOAT, 1),
        value("at", INT64, 1),
        value("sum", FLOAT, 1),
    )
    node = ir.node("Append", [cache, row, at], domain="edge_rt", outputs=[total])
    return gpu.session([node], [cache, row, at], [total], **options)


def case_graphs(gpu):
    """Passes are recorded once per number; what the host writes between them is read and checked again."""
    session = append(gpu, graphs=True)
    cache, row = on_gpu(np.zeros((4, 3), np.float32)), on_gpu(np.ones(3, np.float32))
    total, at = on_gpu(np.zeros(3, np.float32)), np.zeros(1, np.int64)
    binding, options = session.io_binding(), ort.RunOptions()
    options.log_severity_level = 4
    for name, bound in (("cache", cache), ("row", row), ("at", ort.OrtValue.ortvalue_from_numpy(at))):
        binding.bind_ortvalue_input(name, bound)
    binding.bind_ortvalue_output("sum", total)
    options.add_run_config_entry("gpu_graph_id", "5")
    session.run_with_iobinding(binding, options)
    assert gpu.work()[1] == 1
    for position in (1, 2, 3):
        at[0] = position
        session.run_with_iobinding(binding, options)
        assert np.array_equal(total.numpy(), np.full(3, position + 1, np.float32)), position
    assert gpu.work()[1] == 4
    at[0] = 4
    expect(lambda: session.run_with_iobinding(binding, options), "at is 4, must be below 4")
    assert gpu.work()[1] == 4
    at[0] = 0
    options.add_run_config_entry("gpu_graph_id", "-1")
    session.run_with_iobinding(binding, options)
    assert gpu.work()[1] == 4


def case_checked_before_written(gpu):
    session = append(gpu)
    feeds = {"cache": np.zeros((2, 3), np.float32), "row": np.ones(3, np.float32), "at": np.array([2], np.int64)}
    expect(lambda: session.run(None, feeds), "at is 2, must be below 2")
    assert gpu.work()[0] == 0


def case_out_of_memory(gpu):
    sweep(gpu, "cuMemAlloc", OUT_OF_MEMORY, "allocate", lambda: chain(gpu, between="Neg").run(None, {"x": X}))


def case_copies_fail(gpu):
    body = lambda: chain(gpu, between="Neg").run(None, {"x": X})  # noqa: E731
    for function in ("cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuLaunchKernel", "cuStreamCreate"):
        sweep(gpu, function, 999, function, body)
    # Where memory is asked for, ONNX Runtime is told only that there is none.
    sweep(gpu, "cuCtxSetCurrent", 999, ("cuCtxSetCurrent", "allocate"), body)


def case_capture_fails(gpu):
    def body():
        session = append(gpu, graphs=True)
        values = {"cache": np.zeros((4, 3), np.float32), "row": np.ones(3, np.float32)}
        binding = session.io_binding()
        for name, array in values.items():
            binding.bind_ortvalue_input(name, on_gpu(array))
        binding.bind_ortvalue_input("at", ort.OrtValue.ortvalue_from_numpy(np.zeros(1, np.int64)))
        total = on_gpu(np.zeros(3, np.float32))
        binding.bind_ortvalue_output("sum", total)
        for _ in range(2):
            session.run_with_iobinding(binding)
        assert np.array_equal(total.numpy(), np.ones(3, np.float32))

    for function in (
        "cuStreamBeginCapture",
        "cuStreamEndCapture",
        "cuGraphInstantiate",
        "cuGraphLaunch",
        "cuMemHostAlloc",
    ):
        sweep(gpu, function, 999, function, body)


def case_lost(gpu):
    session = chain(gpu)
    session.run(None, {"x": X})
    gpu.fault("cuLaunchKernel", 1, LAUNCH_FAILED)
    for _ in range(2):
        expect(lambda: session.run(None, {"x": X}), "CUDA_ERROR_LAUNCH_FAILED")


if __name__ == "__main__":
    main(globals())
