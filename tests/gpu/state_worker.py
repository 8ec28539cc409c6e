"""Models with short convolutions and with states on the emulated GPU: every answer is the CPU's."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from edge_rt.errors import Cancelled, MemoryBudgetExceeded
from edge_rt.export import export_model
from edge_rt.runtime.forward.cancel import CancelToken
from tests.gpu.emulated import main
from tests.gpu.models import DEVICE, FOLDER, expect, opened
from tests.gpu.plan_worker import check
from tests.helpers.cheap_drafts import CheapDrafts
from tests.helpers.family_cases import load_case, write_folder
from tests.helpers.models import load_package
from tests.helpers.small import GREEDY

# Logits with a wide spread: what is likely can be guessed.
SHARP = {
    "lfm2": {},
    "qwen3_5": {},
    "nemotron_h_dense": {},
    "granite_h_dense": {"logits_scaling": 0.1},
    "falcon_h1": {"lm_head_multiplier": 3.0},
}
PROMPT = [5 + (7 * i) % 11 for i in range(40)]
SAMPLED = {"temperature": 1.0, "seed": 3}
TOKENS = 12


@cache
def package(name, **options):
    """Return the package of a family's small model."""
    folder = Path(FOLDER.name) / "-".join([name, *map(str, options.values())])
    source = write_folder(folder / "model", load_case(name), config=SHARP.get(name, {}))
    asked = {"weights": "int8", **options}
    export_model(source, folder / "p", profile="native", calibration=None, accept_loss=True, **asked)
    return folder / "p"


@cache
def plain(path, prompt=tuple(PROMPT), sampled=False):
    """Return the tokens that the CPU answers."""
    with load_package(path, spec="off", ctx=256) as model:
        return answer(model, list(prompt), sampled=sampled).token_ids


def answer(model, prompt=PROMPT, *, sampled=False):
    return model.generate(prompt, max_tokens=TOKENS, repetition_guard=False, **(SAMPLED if sampled else GREEDY))


def compare(gpu, path, **options):
    """Answer twice, so that passes are recorded; go on, and begin anew."""
    drafted = 0
    with opened(gpu, path, prefill_chunk=16, draft_max=7, **options) as model:
        for sampled in (False, True):
            for _ in range(2):
                found = answer(model, sampled=sampled)
                assert found.token_ids == plain(path, sampled=sampled), (path, options, sampled)
                drafted += 0 if found.spec is None else found.spec.rows_drafted
                model._cache.check()
        longer = (*PROMPT, *plain(path), 9, 8)
        found = answer(model, list(longer))
        assert found.token_ids == plain(path, longer)
        if model.plan.shape.recurrent_layers:
            # The states have seen another answer: it begins with those that were kept of the prompt.
            assert found.usage.cached_tokens >= len(PROMPT) - 1, found.usage
        model.reset()
        assert answer(model).token_ids == plain(path)
    return drafted


def case_texts(gpu):
    # Drafts of the others begin with passes of one row as well.
    for name in ("lfm2", "falcon_h1"):
        assert compare(gpu, package(name), spec="off") == 0


def case_drafts(gpu):
    for name in SHARP:
        assert compare(gpu, package(name), spec="suffix") > 0


def case_more_drafts(gpu):
    """Short convolutions whose layers are read with fewer bits, or to an exit."""
    assert compare(gpu, package("lfm2", weights="nested8"), spec="self", kv="int4x2", costs=CheapDrafts()) > 0
    assert compare(gpu, package("lfm2", exits=(1, 3)), spec="exit", costs=CheapDrafts()) > 0


def check_cancelled(model, wanted):
    """Stop answers behind their first tokens; each time the next one is as ever."""
    for count in range(1, 4):
        token, seen = CancelToken(), 0
        try:
            for _ in model.stream(PROMPT, max_tokens=TOKENS, cancel=token, repetition_guard=False, **GREEDY):
                seen += 1
                if seen == count:
                    token.cancel()
        except Cancelled:
            pass
        model._cache.check()
        assert answer(model).token_ids == wanted, count


def case_cancelled(gpu):
    """A pass that is stopped, or whose result nobody takes, leaves states as they were."""
    path = package("qwen3_5")
    with opened(gpu, path, spec="off") as model:
        check_cancelled(model, plain(path))


def case_refused(gpu):
    """A GPU that is too small for states says so."""
    path = package("qwen3_5")
    small = {"memory": 1 << 30, "device_memory": 128 << 20}
    expect(MemoryBudgetExceeded, "memory of the GPU", lambda: opened(gpu, path, **small).__enter__())


def case_planned(gpu):
    """What lies on the GPU is what was planned, while passes become larger."""
    for name in ("lfm2", "qwen3_5", "falcon_h1"):
        check(gpu, package(name), spec="suffix", kv="f16", generated=24)


if __name__ == "__main__":
    main(globals(), **DEVICE)
