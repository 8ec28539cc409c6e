"""Models on an emulated GPU that fails in the middle of an answer, which the CPU goes on with: the same text."""

from __future__ import annotations

import asyncio
import gc

from edge_rt.errors import DeviceFailed, DeviceHung, DeviceLost, DeviceMemoryExhausted, ModelClosed
from edge_rt.memory.budget import Budget
from tests.gpu import divided_worker, models, state_worker
from tests.gpu.emulated import LAUNCH_FAILED, OUT_OF_MEMORY, main
from tests.gpu.family_worker import package_ahead
from tests.gpu.models import (
    DEVICE,
    GREEDY,
    PINNED,
    PROMPT,
    SAMPLED,
    answer,
    expect,
    opened,
    package,
    plain,
    provider,
    stop,
)
from tests.helpers.cheap_drafts import FREE_ROWS, CheapDrafts
from tests.helpers.models import load_package

UNKNOWN = 999
STATES = ("qwen3_5", "lfm2")
SAMPLINGS = {False: GREEDY, True: SAMPLED}
DIVIDED = (("qwen3_5", 3), ("granite_h_dense", 2), ("lfm2", 2), ("gemma4_text", 4))
"""Families and how many layers are on the GPU: gated delta, state spaces, convolutions, and keys that others read."""


def on_cpu(gpu, **options):
    """Load the small package on the GPU, with the CPU to go on."""
    return opened(gpu, package(), on_device_error="cpu", **options)


def check_taken_over(model, result):
    """Check that the CPU computes, and that the answer says so."""
    assert model.device is None
    assert str(model.device_choice.device) == "cpu", model.device_choice
    assert any("The CPU computes, because " in text for text in result.warnings), result.warnings
    model._cache.check()


def fail_at_every_call(gpu, function, code, numbers, **options):
    """Let one call of a function fail in each answer; return how many answers the CPU has finished."""
    taken = 0
    sampled = options.pop("sampled", False)
    wanted = plain(package(), sampled=sampled)
    for number in numbers:
        with on_cpu(gpu, **options) as model:
            gpu.fault(function, number, code)
            events = []
            result = model.generate(
                PROMPT, max_tokens=8, repetition_guard=False, on_token=events.append, **(SAMPLED if sampled else GREEDY)
            )
            gpu.configure(**DEVICE)
            assert result.token_ids == wanted, (function, number, result.token_ids, wanted)
            assert "".join(event.text for event in events) == result.text, (function, number)
            assert tuple(token for event in events for token in event.token_ids) == wanted, (function, number)
            if result.warnings:
                taken += 1
                check_taken_over(model, result)
                later = answer(model, "Hello", 3)
                assert later.token_ids == plain(package(), prompt="Hello")[:3]
                assert not later.warnings, later.warnings
        gc.collect()
    return taken


def case_lost(gpu):
    """Wherever the device is lost: in the prompt's pass, in one of the answer, when a pass is recorded or replayed."""
    assert fail_at_every_call(gpu, "cuLaunchKernel", LAUNCH_FAILED, (0, 5, 40, 90), spec="off") == 4
    assert fail_at_every_call(gpu, "cuGraphLaunch", LAUNCH_FAILED, (0, 2), spec="off") == 2
    assert fail_at_every_call(gpu, "cuMemcpyDtoHAsync", UNKNOWN, (0, 1, 7), spec="off") == 3
    assert fail_at_every_call(gpu, "cuMemcpyDtoHAsync", UNKNOWN, (0, 3, 9), spec="off", sampled=True) == 3


def case_full(gpu):
    """Where its memory is exhausted."""
    assert fail_at_every_call(gpu, "cuMemAlloc", OUT_OF_MEMORY, (0, 1), spec="off") == 2


def case_drafted(gpu):
    """Drafts go on with the CPU, too."""
    assert fail_at_every_call(gpu, "cuLaunchKernel", LAUNCH_FAILED, (5, 90), spec="suffix") == 2
    assert fail_at_every_call(gpu, "cuLaunchKernel", LAUNCH_FAILED, (5, 60), sampled=True) == 2


def case_served(gpu):
    """A device that fails while a server computes the first passes: the model is not loaded, or is on the CPU.

    One that fails in an answer is told at once.
    """
    from tests.helpers.served import models_of

    asked = {"device": gpu.device, "gpu_providers": provider(gpu), "ctx": 256, "slots": 2}

    async def load(number, *, in_answer=False, **options):
        models, lines, warnings = models_of({"one": package()}, memory=Budget("8GiB"), **asked, **options), [], []
        models.log, models.warn = lines.append, warnings.append
        if not in_answer:
            gpu.fault("cuLaunchKernel", number, LAUNCH_FAILED)
        try:
            await models.load("one")
            if in_answer:
                gpu.fault("cuLaunchKernel", number, LAUNCH_FAILED)
            async with models.using("one") as entry:
                found = await entry.model.agenerate(PROMPT, max_tokens=8, repetition_guard=False, **GREEDY)
                # While the request is under way.
                assert len(warnings) == 1, warnings
            assert found.token_ids == plain(package())
            assert bool(found.warnings) is in_answer, found.warnings
        finally:
            gpu.configure(**DEVICE)
            await models.close()
            assert models.options.memory.claims == ()
        return lines, warnings

    # At once, and later.
    for number in (3, 90):
        expect(DeviceLost, "LAUNCH_FAILED", lambda number=number: asyncio.run(load(number)))
        for in_answer, device in ((False, "cpu"), (True, gpu.device)):
            lines, (warning,) = asyncio.run(load(number, on_device_error="cpu", in_answer=in_answer))
            assert lines[0].startswith(f"one is loaded on {device} ("), lines
            assert warning.startswith(f"one: The CPU computes, because {gpu.device} failed: "), warning


def case_slots(gpu):
    """Answers under way go on with the CPU, each where it was; those that wait begin there."""
    lengths, taken = (40, 5, 23, 31), 0
    prompts = [(tuple(state_worker.PROMPT[:length]), bool(number % 2)) for number, length in enumerate(lengths)]
    for path in (package(), package(window=32), package(layers=3, exits=(1,)), *map(state_worker.package, STATES)):
        for function, number in (("cuLaunchKernel", 60), ("cuMemcpyDtoHAsync", 3), ("cuMemcpyDtoHAsync", 9)):
            options = {"on_device_error": "cpu", "spec": "suffix", "prefill_chunk": 16, "draft_max": 7}
            with opened(gpu, path, slots=3, **options) as model:
                gpu.fault(function, number, LAUNCH_FAILED)
                asked = [
                    (list(prompt), {"max_tokens": state_worker.TOKENS, "repetition_guard": False, **SAMPLINGS[sampled]})
                    for prompt, sampled in prompts
                ]
                results = list(model.generate_many(asked))
                gpu.configure(**DEVICE)
                for result, (prompt, sampled) in zip(results, prompts, strict=True):
                    assert result.token_ids == state_worker.plain(path, prompt, sampled), (path, function, number)
                assert (model.device, model.slots) == (None, 3)
                with_notes = [result for result in results if result.warnings]
                check_taken_over(model, with_notes[0])
                taken += len(with_notes)
                model._batch.check()
    assert taken > 30, taken


def case_formats(gpu):
    """What an answer has to fit is kept, with the log probabilities of its tokens."""
    asked = {"regex": "The little boat and (a|the) cat|[A-Z]{6}", "logprobs": 2}
    with opened(gpu, package(), spec="off") as model:
        wanted = answer(model, max_tokens=40, **GREEDY, **asked)
    for number in (0, 1, 2, 5):
        with on_cpu(gpu, spec="off") as model:
            gpu.fault("cuMemcpyDtoHAsync", number, LAUNCH_FAILED)
            found = answer(model, max_tokens=40, **GREEDY, **asked)
            gpu.configure(**DEVICE)
            check_taken_over(model, found)
            assert (found.text, found.token_ids, found.logprobs) == (wanted.text, wanted.token_ids, wanted.logprobs)


def case_talks(gpu):
    """A conversation goes on, and with it the model's cache."""
    with on_cpu(gpu, spec="off") as model:
        model.speculation.costs = FREE_ROWS
        first = answer(model)
        gpu.fault("cuMemcpyDtoHAsync", 2, LAUNCH_FAILED)
        longer = [*model.tokenizer.encode_text(PROMPT), *first.token_ids, *model.tokenizer.encode_text("Hello")]
        found = answer(model, longer)
        gpu.configure(**DEVICE)
        check_taken_over(model, found)
        again = answer(model, longer)
        assert again.token_ids == found.token_ids
        assert again.usage.cached_tokens == len(longer) - 1
    with opened(gpu, package(), spec="off") as model:
        assert answer(model, longer).token_ids == found.token_ids


def case_states(gpu):
    """States are computed again, and those of the prompt's end kept, so that the next answer begins there."""
    for name in STATES:
        path = state_worker.package(name)
        for number in (1, 4, 9):
            with opened(gpu, path, spec="off", on_device_error="cpu", prefill_chunk=16, draft_max=7) as model:
                gpu.fault("cuMemcpyDtoHAsync", number, LAUNCH_FAILED)
                for sampled in (False, True):
                    found = state_worker.answer(model, sampled=sampled)
                    assert found.token_ids == state_worker.plain(path, sampled=sampled), (name, number, sampled)
                    if not sampled:
                        check_taken_over(model, found)
                    elif name == "qwen3_5":
                        assert found.usage.cached_tokens == len(state_worker.PROMPT) - 1, (number, found.usage)
                gpu.configure(**DEVICE)


def case_kept(gpu):
    """Where it fails while what is kept of a text is copied, at the first of six pieces."""
    path, taken = state_worker.package("qwen3_5"), 0
    for slots in (1, 2):
        for number in (0, 6):
            with opened(gpu, path, spec="off", on_device_error="cpu", slots=slots) as model:
                assert state_worker.answer(model).token_ids == state_worker.plain(path)
                gpu.fault("cuMemcpyDtoDAsync", number, LAUNCH_FAILED)
                found = state_worker.answer(model, sampled=True)
                gpu.fault("", -1, 0)
                if model.device is None:
                    gpu.configure(**DEVICE)
                assert found.token_ids == state_worker.plain(path, sampled=True), (slots, number)
                assert state_worker.answer(model).token_ids == state_worker.plain(path), (slots, number)
                taken += model.device is None
    assert taken > 2, taken


def go_on_divided(gpu, name, layers, begin, end, *, sampled=False, **options):
    """Let a GPU that computes some layers fail in the second answer of a conversation, and go on.

    Args:
        gpu: the device.
        name: of the family.
        layers: on the GPU.
        begin: lets it fail.
        end: returns to a GPU that works, when nothing is open there.
        sampled: whether the second answer is drawn.
        **options: of the load.

    Returns:
        Whether the CPU took its place.
    """
    path, kv = state_worker.package(name), "int8"
    with divided_worker.divided(gpu, path, layers, on_device_error="cpu", **options) as model:
        longer = [*state_worker.PROMPT, *state_worker.answer(model).token_ids, 9, 8]
        begin()
        found = state_worker.answer(model, longer, sampled=sampled)
        # What fails behind the last token, where states are copied, is noticed by the next answer.
        again = state_worker.answer(model, longer, sampled=sampled)
        if model.device is None:
            check_taken_over(model, found if found.warnings else again)
        wanted = divided_worker.plain(path, kv, tuple(longer), sampled=sampled)
        assert (found.token_ids, again.token_ids) == (wanted, wanted), (name, layers)
        if found.warnings:
            assert again.usage.cached_tokens == len(longer) - 1, (name, layers, again.usage)
        for text in ([*longer, *wanted, 7], state_worker.PROMPT):
            assert state_worker.answer(model, text).token_ids == divided_worker.plain(path, kv, tuple(text)), name
        model._cache.check()
        is_taken_over = model.device is None
    gc.collect()
    end()
    return is_taken_over


def fail_divided(gpu, name, layers, function, number, code=LAUNCH_FAILED, **options):
    """Let a call of a function fail in such a conversation; return whether the CPU took the GPU's place."""

    def end():
        gpu.fault("", -1, 0)
        gpu.configure(**DEVICE)

    return go_on_divided(gpu, name, layers, lambda: gpu.fault(function, number, code), end, **options)


def case_divided(gpu):
    """Of a model with layers on both sides the CPU computes all again, wherever the GPU has failed."""
    for number, (name, layers) in enumerate(DIVIDED):
        assert fail_divided(gpu, name, layers, "cuMemcpyDtoHAsync", 1, spec="off", sampled=number % 2 > 0), name
    assert fail_divided(gpu, "qwen3_5", 3, "cuMemcpyDtoDAsync", 0)
    assert fail_divided(gpu, "qwen3_5", 2, "cuMemcpyHtoDAsync", 30, UNKNOWN)


def case_divided_everywhere(gpu):
    """The same at many calls, with drafts and without."""
    calls = (
        ("cuLaunchKernel", LAUNCH_FAILED), ("cuMemcpyDtoHAsync", LAUNCH_FAILED), ("cuMemcpyHtoDAsync", UNKNOWN),
        ("cuMemcpyDtoDAsync", UNKNOWN), ("cuMemAlloc", OUT_OF_MEMORY),
    )  # fmt: skip
    for name, layers in (*DIVIDED, ("falcon_h1", 1), ("qwen3_5_moe", 2)):
        taken = 0
        for function, code in calls:
            for number in (0, 1, 2, 5, 13, 34, 89):
                options = {"spec": "off" if number % 3 else "suffix", "sampled": number % 2 > 0}
                taken += fail_divided(gpu, name, layers, function, number, code, **options)
        print(name, taken, flush=True)
        assert taken > 12, (name, taken)


def case_divided_slots(gpu):
    """Answers under way go on with the CPU, each where it was, from a GPU that had some of the layers."""
    taken = 0
    for name in ("qwen3_5", "lfm2", "gemma4_text"):
        path = state_worker.package(name)
        pinned = {**PINNED, "kv": "int8", "ctx": 192}
        room = models.room(gpu, path, None, **pinned) - 1
        for function, number in (("cuLaunchKernel", 60), ("cuMemcpyDtoHAsync", 3), ("cuMemcpyHtoDAsync", 20)):
            asked = {"device": gpu.device, "gpu_providers": models.provider(gpu), "device_memory": room, **pinned}
            with load_package(path, slots=3, on_device_error="cpu", **asked) as model:
                assert 0 < model.plan.choice.gpu_layers < divided_worker.layers_of(path)
                model.speculation.costs = FREE_ROWS
                gpu.fault(function, number, LAUNCH_FAILED)
                prompts = [tuple(state_worker.PROMPT[:length]) for length in (40, 5, 23, 31)]
                options = {"max_tokens": state_worker.TOKENS, "repetition_guard": False, **GREEDY}
                results = list(model.generate_many([(list(prompt), options) for prompt in prompts]))
                gpu.configure(**DEVICE)
                for result, prompt in zip(results, prompts, strict=True):
                    assert result.token_ids == divided_worker.plain(path, "int8", prompt), (name, function, number)
                assert (model.device, model.slots) == (None, 3), (name, function, number)
                check_taken_over(model, next(result for result in results if result.warnings))
                taken += sum(bool(result.warnings) for result in results)
                model._batch.check()
            gc.collect()
    assert taken > 20, taken


def case_networks(gpu):
    """What drafts on the GPU itself, in fewer bits or up to an exit, or follows its passes, fails in a draft, too."""
    for path, options in (
        (state_worker.package("lfm2", weights="nested8"), {"spec": "self", "kv": "int4x2"}),
        (state_worker.package("lfm2", exits=(1, 3)), {"spec": "exit"}),
        (package_ahead(), {"spec": "mtp"}),
    ):
        taken = 0
        for number in (3, 10, 25):
            with opened(gpu, path, on_device_error="cpu", costs=CheapDrafts(), draft_max=7, **options) as model:
                gpu.fault("cuMemcpyDtoHAsync", number, LAUNCH_FAILED)
                found = state_worker.answer(model)
                assert found.token_ids == state_worker.plain(path), (path, number)
                taken += bool(found.warnings)
                gpu.configure(**DEVICE)
        assert taken > 1, path


def case_nothing_is_left(gpu):
    """What was on the GPU is given back when the CPU takes its place."""
    gc.collect()
    before = gpu.live()
    with on_cpu(gpu, spec="off") as model:
        gpu.fault("cuMemAlloc", 0, OUT_OF_MEMORY)
        check_taken_over(model, answer(model))
        gpu.fault("", -1, 0)
        gc.collect()
        assert gpu.live().bytes == before.bytes, (gpu.live(), before)
        assert gpu.live().graphs == before.graphs == 0


def case_stopped(gpu):
    """An answer can be cancelled behind that, and one that was left is no hindrance."""
    with on_cpu(gpu, spec="off") as model:
        gpu.fault("cuMemcpyDtoHAsync", 2, LAUNCH_FAILED)
        for count, _ in enumerate(model.stream(PROMPT, max_tokens=8, repetition_guard=False, **GREEDY)):
            if count == 4:
                break
        gpu.configure(**DEVICE)
        assert model.device is None
        stop(model, 3)
        assert answer(model).token_ids == plain(package())


def case_no_room(gpu):
    """Where the CPU has no memory for the model the error says both, and the model is closed."""
    with on_cpu(gpu, spec="off") as model:
        model._options = model._options.but(memory=1 << 20)
        gpu.fault("cuMemcpyDtoHAsync", 2, LAUNCH_FAILED)
        expect(DeviceLost, "The CPU cannot go on", lambda: answer(model))
        expect(ModelClosed, "", lambda: answer(model))
    gpu.configure(**DEVICE)


def case_errors(gpu):
    """Without the option each failure is an error of its own; and where the CPU has no memory either, that is said."""
    for code, kind in ((LAUNCH_FAILED, DeviceLost), (UNKNOWN, DeviceFailed)):
        with opened(gpu, package(), spec="off") as model:
            gpu.fault("cuMemcpyDtoHAsync", 0, code)
            expect(kind, "The GPU failed", lambda: answer(model))
            gpu.configure(**DEVICE)
    with opened(gpu, package(), spec="off") as model:
        gpu.fault("cuMemAlloc", 0, OUT_OF_MEMORY)
        expect(DeviceMemoryExhausted, "memory", lambda: answer(model))
        gpu.fault("", -1, 0)


def case_divided_hangs(gpu):
    """A GPU with some of the layers hangs. The last case of a process as well."""
    assert go_on_divided(gpu, "qwen3_5", 3, lambda: gpu.hang(4), lambda: None)


def case_hangs(gpu):
    """Who waits for a device that hangs gives up; the CPU goes on. The last case of a process: it stays so."""
    with on_cpu(gpu, spec="off") as model, opened(gpu, package(), spec="off") as other:
        gpu.hang(4)
        found = answer(model)
        assert found.token_ids == plain(package())
        check_taken_over(model, found)
        for _ in range(2):
            expect(DeviceHung, "does not answer", lambda: answer(other))


if __name__ == "__main__":
    main(globals(), **DEVICE)
