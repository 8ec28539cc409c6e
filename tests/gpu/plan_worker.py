"""Packages on the emulated GPU, whose memory is compared with the plan after passes of every size."""

from __future__ import annotations

from edge_rt.errors import MemoryBudgetExceeded
from edge_rt.memory.budget import Budget
from edge_rt.memory.figures import CONTEXT_BYTES, DRIVER_BYTES
from edge_rt.memory.terms import divided_hidden_bytes, hidden_bytes
from edge_rt.system.process_memory import peak_rss_bytes
from tests.gpu.emulated import main
from tests.gpu.models import DEVICE, expect, package, provider, room
from tests.helpers.cheap_drafts import CheapDrafts
from tests.helpers.models import load_package
from tests.helpers.small import GREEDY

GIB = 1 << 30
ROWS, DRAFT = 40, 9
MOST_PLANNED = 1.03  # of what was allocated, behind passes of all sizes that were planned
SIZES = (*range(1, DRAFT + 2), 16, 17, 29, ROWS)


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


def drive_drafts(model):
    """Run drafts at every exit, of every length, until they are recorded."""
    with model.passes() as (runner, cache):
        cache.truncate(0)
        for segments in range(1, runner.num_segments):
            for _ in range(3):
                cache.ahead.begin(0, segments)
                cache.make_room(DRAFT)
                for node in range(DRAFT):
                    runner.draft(5, node - 1)
        cache.truncate(0)


def check(gpu, path, *, generated=0, sizes=SIZES, layers=None, room=room, **options):
    """Load a package, and compare what lies on the GPU with what is planned, while passes become larger.

    Args:
        gpu: the device.
        path: of the package.
        generated: tokens of an answer behind these passes.
        sizes: rows of passes that are run; they are recorded when they come again.
        layers: for how many the GPU has memory; None: for all.
        room: returns how many bytes of memory that are.
        **options: of the load.
    """
    asked = {"ctx": 64, "prefill_chunk": ROWS, "draft_max": DRAFT, **options}
    own = GIB if layers is None else room(gpu, path, layers, **asked)
    with load_package(
        path, device=gpu.device, gpu_providers=provider(gpu), memory=GIB, device_memory=own, **asked
    ) as model:  # fmt: skip
        assert model.plan.choice.gpu_layers == layers
        planned, unseen = model.plan.sizes.gpu, model.plan.device.gpu.context_bytes
        loaded = gpu.held_bytes()
        # Tensors lie in their file at multiples of a unit.
        held = planned.weights + planned.kv_cache
        assert held <= MOST_PLANNED * loaded, (loaded, planned)
        assert loaded <= planned.total - unseen, (loaded, planned)
        # Small passes first: memory that kept the blocks of every size would be most then.
        for rows in sizes:
            drive(model, rows)
            assert gpu.held_bytes() <= planned.total - unseen, (rows, gpu.held_bytes(), planned)
        if options["spec"] == "exit":
            drive_drafts(model)
            # What is copied for each graph and lies between them.
            shape, choice = model.plan.shape, model.plan.choice
            held += hidden_bytes(shape, choice) if layers is None else divided_hidden_bytes(shape, choice)[1]
            assert 1 / MOST_PLANNED <= loaded / held <= MOST_PLANNED, (loaded, held)
        if generated:
            model.generate("The little boat. The little boat", max_tokens=generated, **GREEDY)
        assert loaded < gpu.held_bytes() <= planned.total - unseen <= MOST_PLANNED * gpu.held_bytes(), (
            gpu.held_bytes(),
            planned,
        )
    assert gpu.held_bytes() == 0, gpu.held_bytes()


def case_f16(gpu):
    check(gpu, package(), kv="f16", spec="suffix")


def case_window(gpu):
    check(gpu, package(window=16), spec="suffix")


def case_nested(gpu):
    """The second graph has weights, passes and results of its own."""
    path = package(weight_type="F32", embedding_type="F32", output_type="F32", weights="nested8")
    check(gpu, path, kv="int4x2", spec="self", generated=6)


def case_divided(gpu):
    """Some layers only: nothing is kept for recorded passes, and of a second graph as many are there."""
    check(gpu, package(), layers=1, kv="f16", spec="suffix")
    check(gpu, package(window=16), layers=1, kv="int8", spec="suffix", sizes=(ROWS, 1, DRAFT + 1))
    path = package(weight_type="F32", embedding_type="F32", output_type="F32", weights="nested8")
    check(gpu, path, layers=1, kv="int4x2", spec="self", generated=6, sizes=(1, DRAFT + 1, ROWS))


def case_nested_exits(gpu):
    """Of nested weights the head is copied for the embedding, for itself and for the head alone."""
    types = {"weight_type": "F32", "embedding_type": "F32", "output_type": "F32", "weights": "nested8"}
    path = package(layers=2, exits=(1,), **types)
    check(gpu, path, kv="int4x2", spec="exit", sizes=(1,), costs=CheapDrafts())


def case_second(gpu):
    """Two models at once: each counts the context that they share, and both together keep to their plans."""
    asked = {
        "device": gpu.device, "gpu_providers": provider(gpu), "memory": GIB, "ctx": 64, "prefill_chunk": ROWS,
        "draft_max": DRAFT, "spec": "suffix", "kv": "f16",
    }  # fmt: skip
    with (
        load_package(package(), device_memory=GIB, **asked) as first,
        load_package(package(), device_memory="576MiB", **asked) as second,
    ):
        planned = [model.plan.sizes.gpu for model in (first, second)]
        assert [one.context for one in planned] == [CONTEXT_BYTES] * 2
        for rows in (1, DRAFT + 1, ROWS):
            for model in (first, second):
                drive(model, rows)
        assert gpu.live().bytes <= sum(one.total - CONTEXT_BYTES for one in planned), (gpu.live(), planned)
    assert gpu.held_bytes() == 0, gpu.held_bytes()


def case_stays(gpu):
    """What stays when a model is closed, its context there and the driver here, is counted by the next one."""
    asked = {"gpu_providers": provider(gpu), "ctx": 64, "prefill_chunk": ROWS, "spec": "off"}
    budget = Budget(GIB)
    load_package(package(), memory=budget, **asked).close()
    assert budget.gpu_bytes == 0
    for _ in range(2):
        with load_package(package(), memory=budget, device="cuda", device_memory="514MiB", **asked) as model:
            assert model.plan.sizes.gpu.context == CONTEXT_BYTES
            assert budget.free_bytes == GIB - model.plan.total_bytes
            assert model.over_budget is None
        # The provider holds the context as long as the process runs.
        assert gpu.live().contexts == 1
        assert budget.free_bytes == GIB - budget.base_bytes - DRIVER_BYTES
    # Another GPU has a context of its own, and the same driver.
    with load_package(package(), memory=budget, device="cuda:1", device_memory="514MiB", **asked) as model:
        assert model.plan.sizes.gpu.context == CONTEXT_BYTES
        assert budget.free_bytes == GIB - model.plan.total_bytes
    # A process that has taken more than its budget, as drivers may let it, says so.
    assert len(b"x" * (GIB // 4)) < GIB
    with load_package(
        package(), memory=peak_rss_bytes() - 1, base_bytes=1 << 20, device="cuda", device_memory="514MiB", **asked
    ) as model:
        assert "lives in it" in model.over_budget
    refused = {"device": "cuda", "device_memory": "100MiB", **asked}
    expect(MemoryBudgetExceeded, "memory of the GPU", lambda: load_package(package(), **refused))


def case_exits(gpu):
    """Every segment has a session with a pool of its own, and so has the head."""
    options = {"spec": "exit", "costs": CheapDrafts()}
    path = package(layers=3, exits=(1, 2))
    check(gpu, path, kv="f16", generated=6, sizes=3 * (1, 2, 4, DRAFT + 1, ROWS), **options)
    path = package(layers=2, exits=(1,), tied=False, output_type="F16")
    check(gpu, path, kv="int8", sizes=(1, ROWS), **options)


if __name__ == "__main__":
    main(globals(), **DEVICE)
