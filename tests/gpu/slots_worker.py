"""Several answers in the passes of one model on the emulated GPU: every answer is the CPU's."""

from __future__ import annotations

import asyncio

import numpy as np

from edge_rt.memory.sizes import sizes_of
from edge_rt.package.reader import open_package
from edge_rt.runtime.load.options import LoadOptions
from edge_rt.runtime.load.planning import plan_package
from tests.gpu.emulated import SOME, main
from tests.gpu.models import DEVICE, PINNED, opened, package as attention_package, provider
from tests.gpu.plan_worker import check
from tests.gpu.state_worker import PROMPT, TOKENS, package as state_package, plain
from tests.helpers.arrivals import check_arrivals
from tests.helpers.cheap_drafts import CheapDrafts
from tests.helpers.models import load_package
from tests.helpers.small import GREEDY

PROMPTS = [tuple(PROMPT[:length]) for length in (40, 5, 23, 40, 12, 31)]


def compare(gpu, path, **options):
    """Answer all prompts in three slots; return how much was drafted."""
    with opened(gpu, path, slots=3, prefill_chunk=16, draft_max=7, **options) as model:
        return answer_twice(model, path)


def answer_twice(model, path):
    """Answer all prompts in three slots, twice: then some of them begin with rows that others left."""
    assert model.slots == 3, model.plan.given_up
    drafted = cached = 0
    for _ in range(2):
        asked = [(list(prompt), {"max_tokens": TOKENS, "repetition_guard": False, **GREEDY}) for prompt in PROMPTS]
        found = list(model.generate_many(asked))
        assert [one.token_ids for one in found] == [plain(path, prompt) for prompt in PROMPTS], path
        model._batch.check()
        drafted += sum(0 if one.spec is None else one.spec.rows_drafted for one in found)
        cached = sum(one.usage.cached_tokens for one in found)
    # Whole blocks of prompts that came before, where it is known what layers saw of them.
    assert cached > 0, path
    return drafted


def case_texts(gpu):
    for spec, drafts in (("off", False), ("suffix", True)):
        assert (compare(gpu, attention_package(), spec=spec) > 0) is drafts


def case_states(gpu):
    drafted = {name: compare(gpu, state_package(name), spec="suffix") for name in ("qwen3_5", "granite_h_dense")}
    assert drafted["qwen3_5"] > 0, drafted


def case_windows(gpu):
    """Rows of layers with a window, or a short convolution, are each slot's own."""
    for path in (attention_package(window=32), state_package("lfm2")):
        for spec, drafts in (("off", False), ("suffix", True)):
            assert (compare(gpu, path, spec=spec) > 0) is drafts, path


def case_kept(gpu):
    """A conversation goes on from what is kept of it, in any slot, also after another one came in between."""
    for path in (attention_package(window=32), state_package("lfm2"), state_package("qwen3_5")):
        with opened(gpu, path, slots=2, spec="suffix", prefill_chunk=16, draft_max=7) as model:
            assert model.plan.choice.checkpoints == 6
            texts = [PROMPT, PROMPT[::-1]]
            for turn in range(3):
                for index, text in enumerate(texts):
                    found = model.generate(text, max_tokens=TOKENS, repetition_guard=False, **GREEDY)
                    assert found.token_ids == plain(path, tuple(text)), (path, turn)
                    if turn:
                        assert found.usage.cached_tokens > len(text) - TOKENS - 8, (path, found.usage)
                    texts[index] = [*text, *found.token_ids, 9 + index, 8]
                    model._batch.check()


def case_exits(gpu):
    """Packages with exits: whoever is computed alone drafts with the first layers."""
    for path in (attention_package(layers=3, exits=(1, 2)), attention_package(layers=3, exits=(1,), window=32)):
        compare(gpu, path, spec="exit", costs=CheapDrafts())
        with opened(gpu, path, slots=2, spec="exit", costs=CheapDrafts(), prefill_chunk=16) as model:
            found = model.generate(PROMPT, max_tokens=TOKENS, repetition_guard=False, **GREEDY)
            assert found.token_ids == plain(path)
            assert found.spec.rows_drafted > 0


def case_arrivals(gpu):
    """Answers come, leave and are cancelled in the middle."""
    options = {"device": gpu.device, "gpu_providers": provider(gpu), "kv": "int8", "slots": 3, "draft_max": 7}
    for path in (attention_package(window=32), state_package("lfm2"), state_package("qwen3_5")):
        assert check_arrivals(path, np.random.default_rng(4), 9, modes=("suffix", "off"), most=250, **options) > 4


def case_divided(gpu):
    """Of layers that the CPU computes what is kept of a text is here, of the others there."""
    for window in (None, 32):
        path = attention_package(window=window, layers=8)
        asked = {"device": gpu.device, "gpu_providers": provider(gpu), "ctx": 256, **PINNED}
        plan = plan_package(open_package(path), LoadOptions(**asked))
        whole = sizes_of(plan.shape, plan.device, plan.choice, plan.request).needs.gpu
        with load_package(path, device_memory=whole - 1000, slots=3, **asked) as model:
            assert 0 < model.plan.choice.gpu_layers < 8
            answer_twice(model, path)
            planned, figures = model.plan.sizes.gpu, model.plan.device.gpu
            most = planned.total - figures.context_bytes
            assert gpu.held_bytes() <= most, (gpu.held_bytes(), planned)


def case_served(gpu):
    """A server has met the kernels of a model before it says that it is loaded: no request waits for a compiler."""
    from tests.helpers.served import models_of

    asked = {"device": gpu.device, "gpu_providers": provider(gpu), "ctx": 256, "kv": "f16", "slots": 2}

    async def check(models):
        models.log = (lines := []).append
        with gpu.starts(kernels=SOME):
            await models.load("one")
        assert lines[0].startswith(f"one is loaded on {gpu.device} ("), lines
        compiled, drafted = gpu.compiled(), 0
        async with models.using("one") as entry:
            assert entry.model.cached_tokens == 0
            for length in (3, 9, 40):
                prompt = tuple(PROMPT[:length])
                found = await entry.model.agenerate(list(prompt), max_tokens=TOKENS, repetition_guard=False, **GREEDY)
                assert found.token_ids == plain(attention_package(), prompt), length
                drafted += 0 if found.spec is None else found.spec.rows_drafted
            if compiled:
                # Until more than 16 rows are verified at once.
                await entry.model.agenerate(list(PROMPT[:3]), max_tokens=60, repetition_guard=False, **GREEDY)
        assert gpu.compiled() == compiled, (gpu.compiled(), compiled)
        await models.close()
        return drafted

    for spec, drafts in (("off", False), ("suffix", True)):
        models = models_of({"one": attention_package()}, spec=spec, costs=CheapDrafts(), **asked)
        assert (asyncio.run(check(models)) > 0) is drafts
    # One that is asked to stop computes nothing first.
    models = models_of({"one": attention_package()}, **asked)
    models.stopping.cancel()
    with gpu.starts(kernels=0, graphs=0):
        asyncio.run(models.load("one"))
    asyncio.run(models.close())


def case_planned(gpu):
    for path in (attention_package(), attention_package(window=16), state_package("qwen3_5"), state_package("lfm2")):
        check(gpu, path, spec="suffix", kv="f16", generated=24, slots=3)
    check(gpu, attention_package(layers=2, exits=(1,)), spec="suffix", kv="f16", generated=24, slots=3)


if __name__ == "__main__":
    main(globals(), **DEVICE)
