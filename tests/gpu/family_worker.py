"""Small models of every family on a GPU: logits of passes, trees and texts are the CPU's.

The case ``every_family`` takes minutes, and fails with the names of all families whose results differ.
"""

from __future__ import annotations

from pathlib import Path

from edge_rt.errors import EdgeRTError
from edge_rt.export import export_model
from tests.gpu.emulated import main
from tests.gpu.models import DEVICE, FOLDER, divided, opened
from tests.gpu.plan_worker import check
from tests.gpu.slots_worker import compare as compare_slots
from tests.gpu.state_worker import answer, compare, package
from tests.helpers.ahead_models import write_ahead_folder
from tests.helpers.cheap_drafts import CheapDrafts
from tests.helpers.embedding_folder import write_embedding_folder
from tests.helpers.family_data import CASES
from tests.helpers.models import load_package

# Heads that differ, keys of earlier layers and further embeddings; values that are keys; experts beside.
GEMMA4 = ("gemma4_text", "gemma4_text_keys", "gemma4_text_experts")
REFUSED = ("cohere2", "stablelm_parallel")
"""What export refuses."""
# A pass of many rows, of one, of a few, and a tree behind them.
SIZES = (20, 1, 7)
TREE = [-1, -1, 1, 1, 2, 2]


def logits(model):
    """Return the logits of passes of several sizes, and of a tree."""
    found, vocabulary = [], model.package.manifest.model.vocab_size
    tokens = [(5 + 41 * i) % vocabulary for i in range(sum(SIZES) + len(TREE))]
    with model.passes() as (runner, cache):
        cache.truncate(0)
        for count in SIZES:
            first = cache.length
            with cache.reserve(count) as reserved:
                found.append(runner.forward(tokens[first : first + count], first, count).logits.copy())
                reserved.commit(tokens[first : first + count])
        first = cache.length
        with cache.reserve(len(TREE), TREE):
            found.append(runner.forward(tokens[first:], first, len(TREE), parents=TREE).logits.copy())
    return found


def compare_family(gpu, name, **options):
    """Compare a family's logits, and its text with drafts, in passes that are recorded; all nodes are on the device."""
    path = package(name)
    with opened(gpu, path, spec="suffix", draft_max=7, **options) as model:
        description = model.describe()
        assert (description["device"]["device"], description["cpu_nodes"]) == (gpu.device, []), description
        found, texts = logits(model), [answer(model) for _ in range(2)]
        assert sum(text.spec.rows_drafted for text in texts) > 0
        model._cache.check()
    with load_package(path, spec="off", ctx=256, **options) as cpu:
        for number, expected in enumerate(logits(cpu)):
            assert found[number].tobytes() == expected.tobytes(), number
        expected = answer(cpu).token_ids
        assert [text.token_ids for text in texts] == [expected] * 2, (texts, expected)


def case_gemma4(gpu):
    for name in GEMMA4:
        compare_family(gpu, name)


def check_answers(path, kv, on_gpu):
    """Compare answers, drawn ones too, with those of the CPU and a cache of a format."""
    found = []
    for way in (load_package(path, spec="off", ctx=256, kv=kv), on_gpu):
        with way as model:
            found.append([answer(model, sampled=sampled).token_ids for sampled in (False, True)])
    assert found[0] == found[1], (path, found)


def case_gemma4_drafts(gpu):
    """Drafts of the first layers and of fewer bits, and answers that share passes."""
    assert compare(gpu, package("gemma4_text", exits=(2,)), spec="exit", costs=CheapDrafts()) > 0
    assert compare_slots(gpu, package("gemma4_text"), spec="suffix") > 0
    path = package("gemma4_text", weights="nested8")
    check_answers(path, "int4x2", opened(gpu, path, spec="self", kv="int4x2", costs=CheapDrafts(), draft_max=7))


def case_gemma4_divided(gpu):
    """The first layers on the CPU, with heads that differ on both sides."""
    path = package("gemma4_text_keys")
    for layers in (1, 3):
        check_answers(path, "int8", divided(gpu, path, layers))


def case_kv_formats(gpu):
    """Rows of the cache in every format, of heads that differ."""
    for kv in ("f32", "f16", "int4"):
        compare_family(gpu, "gemma4_text", kv=kv)


def embedding(mode):
    """Return the package of a model for embeddings."""
    folder = Path(FOLDER.name) / mode
    if not folder.is_dir():
        source = write_embedding_folder(folder / "model", mode=mode)
        export_model(source, folder / "p", profile="native", weights="int8", calibration=None, accept_loss=True)
    return folder / "p"


def case_embeddings(gpu):
    """Vectors of texts of one pass and of several, alone and together, between answers; memory is what was planned."""
    texts = ["The little boat left the harbour at dawn.", "x", "Count from one to ten: 1, 2, 3, 4, 5. " * 3]
    for mode in ("lasttoken", "mean_tokens"):
        path = embedding(mode)
        with load_package(path, spec="off", ctx=256) as cpu:
            expected, text = cpu.embed(texts), answer(cpu).token_ids
        for options in ({}, {"slots": 2}, {"prefill_chunk": 16}):
            with opened(gpu, path, spec="off", memory=1 << 30, **options) as model:
                for _ in range(2):
                    assert model.embed(texts).tobytes() == expected.tobytes(), (mode, options)
                    assert answer(model).token_ids == text
                gpu_sizes, unseen = model.plan.sizes.gpu, model.plan.device.gpu.context_bytes
                assert gpu_sizes.weights < gpu.held_bytes() <= gpu_sizes.total - unseen


def package_ahead():
    """Return the package of a model with a block that predicts ahead."""
    folder = Path(FOLDER.name) / "ahead"
    if not folder.is_dir():
        source, _ = write_ahead_folder(folder / "model")
        export_model(source, folder / "p", profile="native", weights="int8", calibration=None, accept_loss=True)
    return folder / "p"


def case_ahead(gpu):
    """Such a block computes on the CPU, and reads the stream of all rows of the device's passes."""
    assert compare(gpu, package_ahead(), spec="mtp", costs=CheapDrafts()) > 0


def case_planned(gpu):
    """What lies on the GPU is what was planned, while passes become larger."""
    check(gpu, package("gemma4_text"), spec="suffix", kv="f16", generated=8)
    check(gpu, package_ahead(), spec="mtp", kv="f16", generated=8, sizes=(1, 10, 40), costs=CheapDrafts())


def case_every_family(gpu):
    found = {}
    for name in CASES:
        if name not in REFUSED:
            try:
                compare_family(gpu, name)
            except (AssertionError, EdgeRTError) as error:
                found[name] = repr(error)
            print(name, found.get(name, "ok"), flush=True)
    assert not found, found


if __name__ == "__main__":
    main(globals(), **DEVICE)
