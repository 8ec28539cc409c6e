"""A second model that drafts on the CPU beside passes of a Vulkan device, slowed by a stated delay, or as it is."""

from __future__ import annotations

import threading
from contextlib import contextmanager

from edge_rt.errors import DeviceLost
from edge_rt.runtime.forward.cancel import CancelToken
from tests.gpu.emulated import main
from tests.gpu.models import PROMPT, SAMPLED, answer, expect, package, provider
from tests.helpers.models import load_package
from tests.helpers.small import GREEDY

# Of a submit, of which a pass has some; the provider cuts passes into more where submits take long.
DELAY = "delay_us=15000"
TOKENS = 10
ABC = {"type": "array", "items": {"enum": ["ab", "abc", "b"]}, "minItems": 3, "maxItems": 6}


@contextmanager
def opened(gpu, settings="", **options):
    """Load a package with itself as the second model; the first answer measures what passes cost.

    Args:
        settings: of the layer once it is loaded.
    """
    options = {"spec": f"model:{package()}", "kv": "f16", **options}
    with load_package(package(), device=gpu.device, gpu_providers=provider(gpu), ctx=256, **options) as model:
        gpu.set(settings)
        try:
            yield model
        finally:
            gpu.set("")


def check_quiet(model):
    assert not any(thread.name == "edge-rt drafts" for thread in threading.enumerate())
    model._cache.check()


def expected(prompt=PROMPT, **options):
    with load_package(package(), kv="f16", spec="off", ctx=256) as model:
        return answer(model, prompt, max_tokens=TOKENS, **options).token_ids


def case_off_as_it_is(gpu):
    """The device computes on the CPU's cores. The other cases have it in the guise of a GPU."""
    with opened(gpu) as model:
        found = answer(model, max_tokens=TOKENS)
        assert found.token_ids == expected(**GREEDY)
        assert found.spec.beside == "off: the device is a program on the CPU", found.spec.beside
        assert found.spec.beside_n == 0


def case_on_where_it_is_slow(gpu):
    with opened(gpu, DELAY) as model:
        for options in (GREEDY, SAMPLED, {**GREEDY, "response_format": ABC}, {**SAMPLED, "response_format": ABC}):
            found = answer(model, max_tokens=TOKENS, **options)
            assert found.token_ids == expected(**options), options
            print(found.spec, flush=True)
            assert found.spec.beside == "on", found.spec.beside
            # A format may leave nothing to draft.
            assert found.spec.beside_n > 0 or "response_format" in options
            check_quiet(model)


def case_auto(gpu):
    """With texts that draft as well, and in slots; on or off, as a busy machine has it."""
    for more in ({}, {"slots": 2}):
        with opened(gpu, DELAY, spec="auto", drafter=package(), **more) as model:
            for options in (GREEDY, SAMPLED):
                found = answer(model, max_tokens=TOKENS, **options)
                assert found.token_ids == expected(**options), options
                assert found.spec.beside is not None
                check_quiet(model)


def case_stopped(gpu):
    whole = expected(**GREEDY)
    with opened(gpu, DELAY) as model:
        for count in (1, 2, 3, 5):
            token, seen = CancelToken(), []

            def stop(event, token=token, seen=seen, count=count):
                seen.append(event)
                if len(seen) == count:
                    token.cancel()

            model.generate(PROMPT, max_tokens=TOKENS, cancel=token, on_token=stop, repetition_guard=False, **GREEDY)
            check_quiet(model)
            assert answer(model, max_tokens=TOKENS).token_ids == whole


def case_lost(gpu):
    """The device is lost at submits in the middle: an error, or the CPU goes on, with nothing beside any more."""
    whole = expected(**GREEDY)
    for number in (1, 3, 6):
        for takes_over in (False, True):
            options = {"on_device_error": "cpu"} if takes_over else {}
            with opened(gpu, DELAY, **options) as model:
                answer(model, "Hello", max_tokens=4)
                gpu.set(f"{DELAY} vkQueueSubmit={number}:lost")
                if takes_over:
                    found = answer(model, max_tokens=TOKENS)
                    gpu.set("")
                    assert found.token_ids == whole, number
                    assert found.warnings
                    assert found.spec.beside == "off: the CPU computes the model as well", found.spec.beside
                    assert answer(model, max_tokens=TOKENS).token_ids == whole
                else:
                    expect(DeviceLost, "", lambda model=model: answer(model, max_tokens=TOKENS))
                    gpu.set("")
                check_quiet(model)


if __name__ == "__main__":
    main(globals())
