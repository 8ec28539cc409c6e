"""Models with experts, convolutions, states or shared keys of which a GPU computes some layers: the CPU's bits.

The case ``every_family`` takes minutes, and fails with the names of all families whose results differ.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np

from edge_rt.errors import EdgeRTError
from edge_rt.export import export_model
from edge_rt.package.reader import open_package
from tests.gpu import models
from tests.gpu.emulated import main
from tests.gpu.exit_worker import agreeing, drafted_trees, windowed
from tests.gpu.family_worker import REFUSED, logits
from tests.gpu.models import DEVICE, FOLDER, PINNED, provider
from tests.gpu.plan_worker import check
from tests.gpu.slots_worker import answer_twice
from tests.gpu.state_worker import PROMPT, answer, check_cancelled, package
from tests.helpers.ahead_models import write_ahead_folder
from tests.helpers.arrivals import check_arrivals
from tests.helpers.cheap_drafts import FREE_ROWS, CheapDrafts
from tests.helpers.family_data import CASES
from tests.helpers.models import load_package
from tests.helpers.tiny_adapters import adapters_of

LARGEST_DRAFT = 20  # of whose rows all logits are compared


TREES = {"hidden": True, "spec": "exit", "kv": "int4", "prefill_chunk": 20}


@cache
def plain_trees(path):
    with load_package(path, ctx=256, **TREES) as cpu:
        return drafted_trees(cpu)


def layers_of(path):
    return open_package(path).manifest.model.num_layers


def room(gpu, path, layers, **options):
    """Return the most bytes of a GPU with which no more layers are there: states of earlier texts get what is left."""
    more = [layers + 1] if layers + 1 < layers_of(path) else []
    return min(models.room(gpu, path, count, **options) for count in (*more, None)) - 1


@contextmanager
def divided(gpu, path, layers, **options):
    """Load a package on a GPU whose memory is enough for some of its layers only."""
    asked = {"ctx": 256, **PINNED, "draft_max": LARGEST_DRAFT, **options}
    if asked["spec"] == "off":
        del asked["draft_max"]
    planned = {name: value for name, value in asked.items() if name not in ("slots", "costs")}
    own = {"device": gpu.device, "gpu_providers": provider(gpu), "device_memory": room(gpu, path, layers, **planned)}
    with load_package(path, **own, **asked) as model:
        model.speculation.costs = FREE_ROWS
        assert model.plan.choice.gpu_layers == layers, model.plan.choice
        yield model


@cache
def plain_logits(path, kv):
    with load_package(path, spec="off", ctx=256, kv=kv) as cpu:
        return [found.tobytes() for found in logits(cpu)]


@cache
def plain(path, kv, prompt=tuple(PROMPT), sampled=False):
    with load_package(path, spec="off", ctx=256, kv=kv) as cpu:
        return answer(cpu, list(prompt), sampled=sampled).token_ids


def check_places(model, path, layers):
    """The CPU computes the first layers, and no node of the others."""
    first = layers_of(path) - layers
    nodes = [name.partition("/")[0].partition(".")[0] for name in model.describe()["cpu_nodes"]]
    assert {name for name in nodes if name.startswith("layer")} == {f"layer{number}" for number in range(first)}


def compare(gpu, path, layers, kv="int8", **options):
    """Compare passes, trees, answers with drafts, and what goes on from them.

    Returns:
        How many rows were drafted, and how many states of earlier texts were kept.
    """
    drafted = 0
    with divided(gpu, path, layers, kv=kv, **options) as model:
        check_places(model, path, layers)
        assert [found.tobytes() for found in logits(model)] == plain_logits(path, kv), (path, layers)
        for sampled in (False, True):
            found = answer(model, sampled=sampled)
            assert found.token_ids == plain(path, kv, sampled=sampled), (path, layers, sampled)
            drafted += found.spec.rows_drafted
            model._cache.check()
        longer = (*PROMPT, *plain(path, kv), 9, 8)
        found = answer(model, list(longer))
        assert found.token_ids == plain(path, kv, longer), (path, layers)
        if (kept := model.plan.choice.checkpoints) > 1:
            # The states have seen another answer: it begins with those that were kept of the prompt.
            assert found.usage.cached_tokens >= len(PROMPT) - 1, found.usage
        model.reset()
        assert answer(model).token_ids == plain(path, kv), (path, layers)
    return np.array((drafted, kept))


def compare_all(gpu, path, **options):
    """Compare with every number of layers that may be on the GPU."""
    counts = [layers_of(path) - first for first in open_package(path).manifest.model.divisions]
    assert counts, path
    return sum(compare(gpu, path, layers, spec="suffix", **options) for layers in counts)


def case_texts(gpu):
    """Experts beside convolutions, and beside states, with both on either side; layers that read others' keys."""
    for name, layers in (("lfm2_moe", 3), ("qwen3_5_moe", 2), ("gemma4_text", 4)):
        assert compare(gpu, package(name), layers, spec="suffix").all() or name != "qwen3_5_moe", name


def case_shared_keys(gpu):
    """Gemma 4, whose last layers read the keys of two before them: drafts of all kinds, slots, and passes that stop."""
    path = package("gemma4_text")
    with divided(gpu, path, 4) as model:
        check_cancelled(model, plain(path, "int8"))
    for exits in ((2,), (4,), (1, 3, 5)):
        cut = package("gemma4_text", exits=exits)
        for layers in (4, 5):
            assert compare(gpu, cut, layers, spec="exit", costs=CheapDrafts())[0] > 0
    nested = package("gemma4_text", weights="nested8")
    for layers in (4, 5):
        assert compare(gpu, nested, layers, "int4x2", spec="self", costs=CheapDrafts())[0] > 0
    share_passes(gpu, path, **{**PINNED, "kv": "f16"})


def case_cancelled(gpu):
    """A pass that is stopped, or whose result nobody takes, leaves states on both sides as they were."""
    path = package("qwen3_5")
    with divided(gpu, path, 3) as model:
        check_cancelled(model, plain(path, "int8"))


def case_more_drafts(gpu):
    """Chains of a model with fewer bits, whose graph is divided as well, and of a block that predicts ahead."""
    path = package("lfm2", weights="nested8")
    for layers in range(1, layers_of(path)):
        assert compare(gpu, path, layers, "int4x2", spec="self", costs=CheapDrafts())[0] > 0
    folder = Path(FOLDER.name) / "ahead of states"
    write_ahead_folder(folder / "model", "qwen3_5")
    export_model(folder / "model", folder / "p", profile="native", weights="int8", calibration=None, accept_loss=True)
    for layers in (1, 3):
        assert compare(gpu, folder / "p", layers, spec="mtp", costs=CheapDrafts()).all()


def case_slots(gpu):
    """Answers that share passes, come, leave and are cancelled, with what each slot keeps on both sides."""
    for name in ("qwen3_5", "lfm2"):
        share_passes(gpu, package(name), **PINNED)


def share_passes(gpu, path, **pinned):
    asked = {"device": gpu.device, "gpu_providers": provider(gpu), "slots": 3, **pinned}
    asked["device_memory"] = models.room(gpu, path, None, ctx=192, **pinned) - 1
    with load_package(path, ctx=192, **asked) as model:
        assert 0 < model.plan.choice.gpu_layers < layers_of(path)
        answer_twice(model, path)
        planned, unseen = model.plan.sizes.gpu, model.plan.device.gpu.context_bytes
        assert gpu.held_bytes() <= planned.total - unseen, (gpu.held_bytes(), planned)
    del asked["spec"], asked["prefill_chunk"]
    assert check_arrivals(path, np.random.default_rng(4), 9, modes=("suffix", "off"), most=250, **asked) > 4


def case_exits(gpu):
    """Drafts of the first layers, which are on either side, or on both; trees go on with them."""
    path = agreeing().cut
    for layers in range(1, layers_of(path)):
        compare_exits(gpu, layers)
        with divided(gpu, path, layers, **TREES) as model:
            for index, (one, other) in enumerate(zip(drafted_trees(model), plain_trees(path), strict=True)):
                assert one.tobytes() == other.tobytes(), (layers, index)


def case_exit(gpu):
    """The same with the division in the middle of a graph, between two exits."""
    compare_exits(gpu, 4)


def case_exit_modes(gpu):
    """Adapters that guess on the CPU, all that drafts at once, windows, slots, and passes that are stopped."""
    path, kv = agreeing().cut, "int8"
    adapters = adapters_of(path, Path(FOLDER.name) / "adapters of layers").path
    for layers, drafter in ((2, adapters), (3, adapters), (4, None), (5, adapters)):
        with divided(gpu, path, layers, spec="auto", drafter=drafter, costs=CheapDrafts()) as model:
            found = answer(model)
            assert found.token_ids == plain(path, kv), layers
            assert found.spec.rows_drafted > 0, layers
            for count in (1, 3):
                models.stop(model, count)
                assert answer(model).token_ids == plain(path, kv), (layers, count)
    asked = {**PINNED, "ctx": 192, "spec": "exit"}
    own = {"device": gpu.device, "gpu_providers": provider(gpu), "costs": CheapDrafts()}
    for layers in (1, 3, None):
        count = models.room(gpu, windowed().cut, layers, **asked) - (layers is None)
        with load_package(windowed().cut, device_memory=count, **asked, **own) as model:
            assert 0 < model.plan.choice.gpu_layers < layers_of(windowed().cut)
            assert answer(model).token_ids == plain(windowed().cut, kv), layers
    count = models.room(gpu, path, None, **asked) - 1
    with load_package(path, device_memory=count, slots=3, **asked, **own) as model:
        assert 0 < model.plan.choice.gpu_layers < layers_of(path)
        answer_twice(model, path)


def compare_exits(gpu, layers):
    drafted, _ = compare(gpu, agreeing().cut, layers, spec="exit", costs=CheapDrafts())
    assert drafted > 0, layers


def case_planned(gpu):
    """What lies on the GPU is what was planned, states of earlier texts included."""
    for name, layers in (("qwen3_5_moe", 2), ("lfm2_moe", 2), ("nemotron_h_latent", 2), ("gemma4_text", 4)):
        check(gpu, package(name), spec="suffix", kv="f16", generated=24, layers=layers, room=room)
    for path, cuts in ((agreeing().cut, (1, 2, 3, 4, 5)), (models.package(layers=3, exits=(2,)), (1, 2))):
        for layers in cuts:
            options = {"spec": "exit", "costs": CheapDrafts(), "sizes": (1, 4, 10, 40), "ctx": 256}
            check(gpu, path, kv="f16", generated=6, layers=layers, room=room, **options)


def case_every_family(gpu):
    """Every number of layers of all that have experts, short convolutions or states, or share keys."""
    failed, total = {}, np.zeros(2, int)
    for name in CASES:
        if name in REFUSED or not is_one(package(name)):
            continue
        try:
            total += compare_all(gpu, package(name))
        except (AssertionError, EdgeRTError) as error:
            failed[name] = repr(error)
        print(name, failed.get(name, "ok"), flush=True)
    assert not failed, failed
    assert total.all(), total


def is_one(path):
    model = open_package(path).manifest.decoder
    shares = model.kv_layers != model.attention_layers
    return bool(model.expert_layers or model.conv_layers or model.recurrent_layers or shares)


if __name__ == "__main__":
    main(globals(), **DEVICE)
