"""Models on a Vulkan device that fails: typed errors, nothing left behind, and the CPU's text afterwards.

Cases that begin with ``every`` take minutes; the others try some of the calls.
"""

from __future__ import annotations

from functools import partial

from edge_rt.errors import (
    DeviceHung,
    DeviceLost,
    DeviceMemoryExhausted,
    MemoryBudgetExceeded,
    RuntimeUnavailable,
)
from tests.gpu.emulated import main
from tests.gpu.models import answer, expect, opened, package, plain
from tests.gpu.takeover_worker import DIVIDED, check_taken_over, go_on_divided
from tests.helpers.small import GREEDY

HELLO = "Hello"


def load_and_answer(gpu):
    with opened(gpu, package(), spec="off") as model:
        assert answer(model, HELLO, 3).token_ids == plain(package(), prompt=HELLO)[:3]


def refuse_memory(gpu, numbers):
    """Refuse memory to a load, while another model keeps the device and its kernels: it answers as before."""
    with opened(gpu, package(), spec="off") as other:
        answer(other)
        body = lambda: load_and_answer(gpu)  # noqa: E731
        # Where a pool has idle memory, that is given back, and the driver asked again.
        assert gpu.fails("vkAllocateMemory", "memory", MemoryBudgetExceeded, body, numbers, is_retried=True) > 5
        assert answer(other).token_ids == plain(package())
    load_and_answer(gpu)


def case_memory_refused(gpu):
    refuse_memory(gpu, (0, 1, 2, 4, 7, 11, 16, 22))


def case_every_memory_refused(gpu):
    refuse_memory(gpu, range(500))


def case_memory_refused_in_an_answer(gpu):
    """A model that runs out of memory in an answer can be used again."""
    with opened(gpu, package(), spec="off") as model:
        gpu.set("vkAllocateMemory=0:memory")
        expect(MemoryBudgetExceeded, "memory", lambda: answer(model))
        gpu.set("")
        model._cache.check()
        assert answer(model).token_ids == plain(package())


def lose_device(gpu, result, numbers):
    """Lose a device at a submit of a load and an answer, or let it hang there."""
    assert gpu.fails("vkQueueSubmit", result, RuntimeUnavailable, lambda: load_and_answer(gpu), numbers) > 1
    load_and_answer(gpu)


def case_lost(gpu):
    lose_device(gpu, "lost", (0, 3, 12))


def case_hang(gpu):
    lose_device(gpu, "hang", (1, 8))


def case_every_lost(gpu):
    lose_device(gpu, "lost", range(500))


def case_every_hang(gpu):
    lose_device(gpu, "hang", range(500))


def case_lost_in_an_answer(gpu):
    """It is an error of its own in every later answer, and the model can be closed."""
    with opened(gpu, package(), spec="off") as model:
        answer(model)
        gpu.set("vkQueueSubmit=2:lost")
        for _ in range(2):
            expect(RuntimeUnavailable, "GPU", lambda: answer(model, HELLO))
            gpu.set("")
    load_and_answer(gpu)


def case_lost_with_two(gpu):
    """A lost device is opened anew when the last model that ran there is closed, not beside it."""
    with opened(gpu, package(), spec="off") as other:
        with opened(gpu, package(), spec="off") as model:
            gpu.set("vkQueueSubmit=0:lost")
            expect(DeviceLost, "", lambda: answer(model))
            gpu.set("")
        expect(DeviceLost, "models that ran there", lambda: opened(gpu, package(), spec="off").__enter__())
        expect(DeviceLost, "", lambda: answer(other, HELLO))
    load_and_answer(gpu)


def case_taken_over(gpu):
    """The CPU goes on with an answer of a device that is lost, hangs or is full, with the same text."""
    for settings, kind in (
        ("vkQueueSubmit=2:lost", DeviceLost),
        ("vkQueueSubmit=9:hang", DeviceHung),
        ("vkAllocateMemory=0:memory", DeviceMemoryExhausted),
    ):
        with opened(gpu, package(), spec="off") as model:
            gpu.set(settings)
            expect(kind, "", lambda: answer(model))
            gpu.set("")
        with opened(gpu, package(), spec="off", on_device_error="cpu") as model:
            gpu.set(settings)
            found = answer(model)
            gpu.set("")
            assert found.token_ids == plain(package()), settings
            check_taken_over(model, found)
            assert answer(model, HELLO, 3).token_ids == plain(package(), prompt=HELLO)[:3]
    load_and_answer(gpu)


def case_slots_taken_over(gpu):
    """The CPU goes on with all answers under way, also behind windows, whose rows are each answer's own."""
    prompts = [HELLO, "A cat", "The little boat. The little boat"]
    for path in (package(), package(window=32)):
        for settings in ("vkQueueSubmit=6:lost", "vkQueueSubmit=9:hang"):
            with opened(gpu, path, spec="off", slots=2, on_device_error="cpu") as model:
                gpu.set(settings)
                results = list(model.generate_many(prompts, max_tokens=8, repetition_guard=False, **GREEDY))
                gpu.set("")
                assert [one.token_ids for one in results] == [plain(path, prompt=prompt) for prompt in prompts]
                assert (model.device, model.slots) == (None, 2)
                check_taken_over(model, results[0])
                model._batch.check()
    load_and_answer(gpu)


def case_divided_taken_over(gpu):
    """So it does where a device with memory of its own computes some layers, which is opened anew each time."""
    own = "type=2 memory=1073741824"
    gpu.set(own)
    for name, layers in DIVIDED:
        for number, fault in enumerate(("vkQueueSubmit=2:lost", "vkQueueSubmit=5:hang", "vkQueueSubmit=9:memory")):
            begin, end = (partial(gpu.set, settings) for settings in (f"{own} {fault}", own))
            assert go_on_divided(gpu, name, layers, begin, end, spec="off", sampled=number == 1), (name, fault)
    gpu.set("")


def case_slow(gpu):
    """A device that takes 5 ms more for each submit gives the same text."""
    gpu.set("delay_us=5000")
    load_and_answer(gpu)
    gpu.set("")


if __name__ == "__main__":
    main(globals())
