"""Small models on the emulated GPU, and what the CPU answers."""

from __future__ import annotations

import gc
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

from edge_rt.errors import Cancelled, EdgeRTError, MemoryBudgetExceeded
from edge_rt.export import export_model
from edge_rt.memory.sizes import sizes_of
from edge_rt.package.reader import open_package
from edge_rt.runtime.forward.cancel import CancelToken
from edge_rt.runtime.load.options import LoadOptions
from edge_rt.runtime.load.planning import plan_package
from tests.gpu.emulated import OUT_OF_MEMORY
from tests.helpers.cheap_drafts import FREE_ROWS
from tests.helpers.gguf_factory import write_llama_gguf
from tests.helpers.models import load_package
from tests.helpers.small import GREEDY

PROMPT = "The little boat. The little boat"
SAMPLED = {"temperature": 1.0, "seed": 3}
TOKENS = 8
# Plans count what a driver takes for itself. The kernels' own tests draw orders of threads.
DEVICE = {"memory": 1 << 30, "seed": 0, "devices": 2}
FOLDER = tempfile.TemporaryDirectory()


@cache
def package(**options):
    """Return a small package."""
    folder = Path(FOLDER.name) / f"{len(list(Path(FOLDER.name).iterdir()))}"
    folder.mkdir()
    profile = {name: options.pop(name) for name in ("exits", "weights") if name in options}
    window = options.pop("window", None)
    more = {"llama.attention.sliding_window": window} if window else {}
    write_llama_gguf(folder / "m.gguf", context=256, extra_metadata=more, **options)
    export_model(folder / "m.gguf", folder / "package", profile="native", **profile)
    return folder / "package"


def provider(gpu):
    return gpu.providers()


@contextmanager
def opened(gpu, path, *, device=None, **options):
    """Load a package on a GPU."""
    with load_package(path, device=device or gpu.device, gpu_providers=provider(gpu), ctx=256, **options) as model:
        model.speculation.costs = FREE_ROWS
        yield model


PINNED = {"kv": "int8", "spec": "suffix", "prefill_chunk": 16, "draft_max": 8}
"""Settings of a load that leave a plan nothing to give up but layers on the GPU."""


def room(gpu, path, layers, **options):
    """Return the bytes of a GPU that are just enough for some layers of a package, or all (None), with pinned settings.

    They leave no room for states of earlier texts.
    """
    asked = LoadOptions(device=gpu.device, gpu_providers=provider(gpu), **options)
    plan = plan_package(open_package(path), asked)
    choice = replace(plan.choice, gpu_layers=layers, checkpoints=0)
    return sizes_of(plan.shape, plan.device, choice, plan.request).needs.gpu


@contextmanager
def divided(gpu, path, layers, **options):
    """Load a package on a GPU whose memory is enough for some of its layers only."""
    asked = {"ctx": 256, **PINNED, **options}
    if asked["spec"] == "off":
        del asked["draft_max"]
    with load_package(
        path, device=gpu.device, gpu_providers=provider(gpu), device_memory=room(gpu, path, layers, **asked), **asked
    ) as model:
        model.speculation.costs = FREE_ROWS
        assert model.plan.choice.gpu_layers == layers
        yield model


def answer(model, prompt=PROMPT, max_tokens=TOKENS, **options):
    return model.generate(prompt, max_tokens=max_tokens, repetition_guard=False, **(options or GREEDY))


@cache
def plain(path, kv=None, prompt=PROMPT, sampled=False):
    """Return the tokens that the CPU answers."""
    with load_package(path, kv=kv, spec="off", ctx=256) as model:
        return answer(model, prompt, **(SAMPLED if sampled else GREEDY)).token_ids


def expect(kind, text, body):
    found = None
    try:
        body()
    except EdgeRTError as error:
        found = error
    assert isinstance(found, kind), found
    assert text in str(found), found


def stop(model, count):
    """Cancel an answer behind a number of its events."""
    token, seen = CancelToken(), []
    stream = model.stream(PROMPT, max_tokens=TOKENS, cancel=token, repetition_guard=False, **GREEDY)
    try:
        for event in stream:
            seen.append(event)
            if len(seen) == count:
                token.cancel()
    except Cancelled:
        pass
    model._cache.check()


def fill_at_every_allocation(gpu, body, step=1):
    """Let allocations of the device fail, one in each run: the error is of memory, and all is given back.

    Args:
        gpu: the emulated GPU.
        body: loads a model and answers.
        step: 1: every allocation fails once; 3: every third one.
    """
    body()
    gc.collect()
    before = gpu.live()
    for number in range(0, 300, step):
        gpu.fault("cuMemAlloc", number, OUT_OF_MEMORY)
        try:
            body()
        except MemoryBudgetExceeded:
            pass
        else:
            break
        finally:
            gpu.fault("", -1, 0)
        gc.collect()
        assert gpu.live() == before, (number, gpu.live(), before)
    assert number > 10
    body()


def check_nothing_is_left(gpu, body):
    """Run what loads models and closes them twice: it leaves nothing behind but the opened GPU."""
    body()
    gc.collect()
    before = gpu.live()
    body()
    gc.collect()
    assert gpu.live() == before
    assert before[:3] == (0, 0, 1), before
