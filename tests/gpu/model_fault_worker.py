"""Models on an emulated GPU that fails: typed errors, nothing left behind, and the CPU's text afterwards."""

from __future__ import annotations

import gc

import onnxruntime as ort

from edge_rt.errors import EdgeRTError, MemoryBudgetExceeded, RuntimeUnavailable
from tests.gpu.emulated import LAUNCH_FAILED, OUT_OF_MEMORY, main
from tests.gpu.models import (
    DEVICE,
    answer,
    check_nothing_is_left,
    expect,
    fill_at_every_allocation,
    opened,
    package,
    plain,
)

UNKNOWN = 999


def case_out_of_memory(gpu):
    """Whichever allocation fails, the error is of memory and all is given back; a later load works."""

    def body():
        with opened(gpu, package(), spec="off") as model:
            assert answer(model, "Hello", 3).token_ids == plain(package(), prompt="Hello")[:3]

    fill_at_every_allocation(gpu, body)


def case_full_while_it_answers(gpu):
    """A model that runs out of memory in an answer can be used again."""
    with opened(gpu, package(), spec="off") as model:
        gpu.fault("cuMemAlloc", 0, OUT_OF_MEMORY)
        expect(MemoryBudgetExceeded, "memory", lambda: answer(model))
        gpu.fault("", -1, 0)
        model._cache.check()
        assert answer(model).token_ids == plain(package())


def case_calls_fail(gpu):
    """Whatever the driver refuses is a typed error, after which all is given back and the next load works."""

    def body():
        with opened(gpu, package(), spec="off") as model:
            assert answer(model, "Hello", 4).token_ids == plain(package(), prompt="Hello")[:4]

    body()
    gc.collect()
    before = gpu.live()
    recorded = ("cuStreamBeginCapture", "cuStreamEndCapture", "cuGraphInstantiate", "cuGraphLaunch", "cuMemHostAlloc")
    for function in (*recorded, "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync"):
        failures = 0
        for number in (0, 3, 21):
            gpu.fault(function, number, UNKNOWN)
            try:
                body()
            except EdgeRTError:
                failures += 1
            finally:
                gpu.fault("", -1, 0)
            gc.collect()
            assert gpu.live() == before, (function, number, gpu.live(), before)
        assert failures > 0, function
    body()


def case_lost(gpu):
    """A lost device is an error of its own in every later answer, and the model can be closed."""
    with opened(gpu, package(), spec="off") as model:
        answer(model)
        gpu.fault("cuLaunchKernel", 2, LAUNCH_FAILED)
        for _ in range(2):
            expect(RuntimeUnavailable, "The GPU failed", lambda: answer(model, "Hello"))
    expect(RuntimeUnavailable, "", lambda: opened(gpu, package()).__enter__())
    gpu.configure(**DEVICE)
    gc.collect()
    with opened(gpu, package(), spec="off") as model:
        assert answer(model).token_ids == plain(package())


def case_lost_while_memory_is_taken(gpu):
    """That is not taken for a device whose memory is exhausted."""
    for number in (0, 1, 3, 8, 20, 24, 28):
        gpu.fault("cuMemAlloc", number, LAUNCH_FAILED)

        def body():
            with opened(gpu, package(), spec="off") as model:
                answer(model)

        expect(RuntimeUnavailable, "", body)
        gpu.configure(**DEVICE)
        gc.collect()
    with opened(gpu, package(), spec="off") as model:
        assert answer(model).token_ids == plain(package())


def case_nothing_is_left(gpu):
    """Recorded passes are given back with the memory they wrote to; closed models leave nothing but the opened GPU."""

    def body():
        with opened(gpu, package(), spec="off") as model, model.passes() as (runner, _):
            for rows in (1, 2, 3):
                for number in range(3):
                    runner.forward([7] * rows, 0, 1)
                    assert gpu.live().graphs == rows - (number == 0)
            # More rows of logits than there is memory for, so all passes are bound anew.
            runner.forward([7] * 40, 0, 40)
            # Older versions of ONNX Runtime give none back before the session ends.
            kept = 0 if hasattr(ort.InferenceSession, "release_captured_graph") else 3
            assert gpu.live().graphs == kept

    check_nothing_is_left(gpu, body)


if __name__ == "__main__":
    main(globals(), **DEVICE)
