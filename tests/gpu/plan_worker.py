"""Packages on the emulated GPU, whose memory is compared with the plan after passes of every size."""

from __future__ import annotations

from edge_rt.memory.gpu_terms import CONTEXT_BYTES
from tests.gpu.emulated import main
from tests.gpu.models import DEVICE, package, provider
from tests.helpers.models import load_package
from tests.helpers.small import GREEDY

GIB = 1 << 30
ROWS, DRAFT = 40, 9
SIZES = (*range(1, DRAFT + 2), 16, 17, 29, ROWS)
BYTES = 6  # its place in ``Gpu.live``


def drive(model, rows):
    """Run a pass of a prompt, one of a token, and one of a tree with all its logits."""
    with model.passes() as (runner, cache):
        cache.truncate(0)
        for count in (rows, 1):
            with cache.reserve(count) as reserved:
                runner.forward([5] * count, reserved.start, 1)
                reserved.commit([5] * count)
        nodes = min(rows, DRAFT + 1)
        parents = [-1, *((row - 1) // 2 for row in range(1, nodes))]
        with cache.reserve(nodes, parents) as reserved:
            runner.forward([5] * nodes, reserved.start, nodes, parents=parents)


def check(gpu, path, *, generated=0, **options):
    """Load a package, and compare what lies on the GPU with what is planned, while passes become larger."""
    with load_package(
        path, device="cuda", gpu_provider=provider(gpu), memory=GIB, device_memory=GIB, ctx=64, prefill_chunk=ROWS,
        draft_max=DRAFT, **options,
    ) as model:  # fmt: skip
        planned = model.plan.sizes.gpu
        loaded = gpu.live()[BYTES]
        assert planned.weights + planned.kv_cache <= loaded <= planned.total - CONTEXT_BYTES, (loaded, planned)
        # Small passes first: a pool that kept the blocks of every size would hold the most then.
        for rows in SIZES:
            drive(model, rows)
            assert gpu.live()[BYTES] <= planned.total - CONTEXT_BYTES, (rows, gpu.live(), planned)
        if generated:
            model.generate("The little boat. The little boat", max_tokens=generated, **GREEDY)
        assert loaded < gpu.live()[BYTES] <= planned.total - CONTEXT_BYTES, (gpu.live(), planned)
    assert gpu.live()[BYTES] == 0, gpu.live()


def case_f16(gpu):
    check(gpu, package(), kv="f16", spec="suffix")


def case_window(gpu):
    check(gpu, package(window=16), spec="suffix")


def case_nested(gpu):
    """The second graph has weights, passes and results of its own."""
    path = package(weight_type="F32", embedding_type="F32", output_type="F32", weights="nested8")
    check(gpu, path, kv="int4x2", spec="self", generated=6)


if __name__ == "__main__":
    main(globals(), **DEVICE)
