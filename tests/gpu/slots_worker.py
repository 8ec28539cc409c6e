"""Several answers in the passes of one model on the emulated GPU: every answer is the CPU's."""

from __future__ import annotations

from tests.gpu.emulated import main
from tests.gpu.models import DEVICE, opened, package as attention_package
from tests.gpu.plan_worker import check
from tests.gpu.state_worker import PROMPT, TOKENS, answer, package as state_package, plain
from tests.helpers.small import GREEDY

PROMPTS = [tuple(PROMPT[:length]) for length in (40, 5, 23, 40, 12, 31)]


def compare(gpu, path, **options):
    """Answer all prompts in three slots, twice: then some of them begin with rows that others left."""
    with opened(gpu, path, slots=3, prefill_chunk=16, draft_max=7, **options) as model:
        assert model.slots == 3, model.plan.given_up
        drafted = 0
        for _ in range(2):
            asked = [(list(prompt), {"max_tokens": TOKENS, "repetition_guard": False, **GREEDY}) for prompt in PROMPTS]
            found = list(model.generate_many(asked))
            assert [one.token_ids for one in found] == [plain(path, prompt) for prompt in PROMPTS], (path, options)
            model._batch.check()
            drafted += sum(0 if one.spec is None else one.spec.rows_drafted for one in found)
        return drafted


def case_texts(gpu):
    for spec, drafts in (("off", False), ("suffix", True)):
        assert (compare(gpu, attention_package(), spec=spec) > 0) is drafts


def case_states(gpu):
    drafted = {name: compare(gpu, state_package(name), spec="suffix") for name in ("qwen3_5", "granite_h_dense")}
    assert drafted["qwen3_5"] > 0, drafted


def case_windows(gpu):
    """Layers with a window or a convolution have one slot there, and say so."""
    for path in (attention_package(window=32), state_package("lfm2")):
        with opened(gpu, path, slots=2, spec="off") as model:
            assert model.slots == 1
            assert answer(model).token_ids == plain(path)
            assert "on a GPU" in str(model.plan.why_answers_wait)


def case_planned(gpu):
    for path in (attention_package(), state_package("qwen3_5")):
        check(gpu, path, spec="suffix", kv="f16", generated=24, slots=3)


if __name__ == "__main__":
    main(globals(), **DEVICE)
