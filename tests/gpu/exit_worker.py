"""Packages with exits on a GPU: drafts of the first layers, and the CPU's bits and text whatever is drafted."""

from __future__ import annotations

import gc
import random
from functools import cache
from pathlib import Path

import numpy as np

from edge_rt.cli.render.inspect_report import placement_facts
from edge_rt.device.names import parse_device
from edge_rt.errors import DeviceMemoryExhausted, EdgeRTError, MemoryBudgetExceeded
from tests.gpu.emulated import OUT_OF_MEMORY, SOME, main
from tests.gpu.models import (
    DEVICE,
    FOLDER,
    PROMPT,
    SAMPLED,
    answer,
    check_nothing_is_left,
    expect,
    opened,
    plain,
    provider,
    stop,
)
from tests.helpers.cheap_drafts import CheapDrafts
from tests.helpers.models import load_package
from tests.helpers.segmented import WINDOW, make_agreeing_pair, make_window_pair, pair_in
from tests.helpers.small import GREEDY
from tests.helpers.tiny_adapters import adapters_of

UNKNOWN = 999
TOKEN_IDS = [(5 + 41 * i) % 419 for i in range(400)]


@cache
def agreeing():
    """Return packages of one checkpoint, whole and cut, whose exits often say what the whole model does."""
    make_agreeing_pair(Path(FOLDER.name) / "agreeing")
    return pair_in(Path(FOLDER.name) / "agreeing")


@cache
def windowed():
    """Return packages of one checkpoint, whole and cut, with a sliding window."""
    make_window_pair(Path(FOLDER.name) / "windowed")
    return pair_in(Path(FOLDER.name) / "windowed")


def exits(gpu, path=None, **options):
    """Load a package with exits on a GPU, where drafts pay."""
    return opened(gpu, path or agreeing().cut, costs=CheapDrafts(), **{"spec": "exit", **options})


def structures(rng, count):
    """Yield parents of trees, nodes of them in the order in which they are drafted, and rows whose logits are wanted.

    Some drafts have a node that is not in the tree.
    """
    for _ in range(count):
        nodes = rng.randint(2, 12)
        parents = [-1, *(rng.randint(0, row - 1) for row in range(1, nodes))]
        drafted = [0]
        while len(drafted) < rng.randint(1, nodes):
            drafted.append(rng.choice([row for row in range(nodes) if row not in drafted and parents[row] in drafted]))
        if rng.random() < 0.3:
            drafted.append(nodes)
        yield parents, drafted, rng.sample(range(nodes), rng.randint(1, nodes))


def drafted_trees(model):
    """Return the results of trees that go on with drafted nodes, each shape of them three times; then of a prompt."""
    rng, found = random.Random(3), []
    with model.passes() as (runner, rows):
        rows.truncate(0)
        for start, end in ((0, 17), (17, 18)):
            with rows.reserve(end - start) as reserved:
                found.append(runner.forward(TOKEN_IDS[start:end], reserved.start, 1).logits.copy())
                reserved.commit(TOKEN_IDS[start:end])
        for parents, drafted, wanted in structures(rng, 3):
            segments = rng.randint(1, runner.num_segments - 1)
            for _ in range(3):
                tokens = rng.sample(range(3, 400), len(parents))
                rows.ahead.begin(rows.length, segments)
                rows.make_room(len(drafted))
                for node in drafted:
                    above = 0 if node == len(parents) else parents[node]
                    token = 400 if node == len(parents) else tokens[node]
                    top = runner.draft(token, -1 if above < 0 else drafted.index(above))
                    found += [top.ids.copy(), top.logits.copy(), top.log_sum_exp.copy()]
                path = [0]
                while below := [row for row in range(len(parents)) if parents[row] == path[-1]]:
                    path.append(rng.choice(below))
                path = path[: rng.randint(1, 3)]
                with rows.reserve(len(parents), parents) as reserved:
                    outputs = runner.forward(tokens, reserved.start, len(wanted), parents=parents, logit_rows=wanted)
                    found += [outputs.logits.copy(), outputs.hidden.copy(), outputs.top.ids.copy()]
                    reserved.commit([tokens[node] for node in path], path)
                rows.check()
        rows.truncate(0)
        # More rows than there is memory for between the segments.
        with rows.reserve(70) as reserved:
            found.append(runner.forward(TOKEN_IDS[:70], reserved.start, 2).logits.copy())
            reserved.commit(TOKEN_IDS[:70])
    return found


def case_placed(gpu):
    path = agreeing().cut
    facts = placement_facts(path, parse_device(gpu.device), provider(gpu))
    assert facts["cpu_nodes"] == []
    assert list(facts["nodes"]) == [gpu.provider]
    # Six layers, the embedding, and twice what makes logits.
    assert facts["nodes"][gpu.provider] > 6 + 1 + 2 * 2
    with exits(gpu) as model:
        assert model.describe()["device"]["device"] == gpu.device


def case_kv_formats(gpu):
    """Plain, and drafted at exits; passes of a shape are recorded in all segments when they come again."""
    pair, accepted = agreeing(), 0
    for kv in ("f16", "k8v4", "int4"):
        with exits(gpu, kv=kv) as model:
            wanted = plain(pair.whole, kv)
            with gpu.starts(graphs=SOME):
                assert answer(model, spec="off", **GREEDY).token_ids == wanted, kv
            found = answer(model)
            assert found.token_ids == wanted, kv
            assert found.spec.rows_drafted > 0, kv
            accepted += found.spec.draft_n_accepted
            model._cache.check()
    assert accepted > 0


def case_modes(gpu):
    """Exits alone and in one tree with other drafters, with the model's head and with adapters; greedy and sampled."""
    pair = agreeing()
    adapters = adapters_of(pair.cut, Path(FOLDER.name) / "adapters").path
    for drafter in (None, adapters):
        for mode in ("exit", "auto"):
            with exits(gpu, spec=mode, drafter=drafter) as model:
                for sampling in (GREEDY, SAMPLED) if drafter is None else (GREEDY,):
                    found = answer(model, **sampling)
                    assert found.token_ids == plain(pair.whole, sampled=sampling is SAMPLED), (mode, drafter)
                    assert found.spec.rows_drafted > 0, (mode, drafter, sampling)


def case_trees(gpu):
    """Trees that go on with drafted nodes, wherever these are, have the CPU's bits: guesses, logits, hidden states."""
    options = {"hidden": True, "spec": "exit", "kv": "int4", "prefill_chunk": 20}
    with load_package(agreeing().cut, ctx=256, **options) as cpu:
        wanted = drafted_trees(cpu)
    with exits(gpu, **options) as model, gpu.starts(graphs=SOME):
        found = drafted_trees(model)
    for index, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert one.tobytes() == other.tobytes(), index
        assert np.isfinite(one).all(), index


def case_window(gpu):
    pair, prompt = windowed(), PROMPT * 3
    with exits(gpu, pair.cut) as model:
        found = answer(model, prompt)
        assert found.usage.prompt_tokens > WINDOW
        assert found.token_ids == plain(pair.whole, prompt=prompt)


def case_cancelled(gpu):
    """A pass that is stopped leaves the model as it was, in the middle of a draft as well."""
    pair = agreeing()
    with exits(gpu) as model:
        for count in (1, 3):
            stop(model, count)
            assert answer(model).token_ids == plain(pair.whole), count


def case_faults(gpu):
    """Whatever the driver refuses is a typed error, after which all is given back; the next load works."""
    pair = agreeing()

    def body():
        with exits(gpu) as model:
            assert answer(model, "Hello").token_ids == plain(pair.whole, prompt="Hello")

    body()
    gc.collect()
    before = gpu.live()
    assert before[:3] == (0, 0, 1), before
    faults = [("cuMemAlloc", number, OUT_OF_MEMORY) for number in (0, 7, 40, 75, 110)]
    faults += [("cuMemcpyDtoHAsync", number, UNKNOWN) for number in (0, 5)]
    faults += [("cuStreamBeginCapture", number, UNKNOWN) for number in (0, 2)]
    failures = []
    for function, number, code in faults:
        gpu.fault(function, number, code)
        try:
            body()
        except EdgeRTError as error:
            failures.append((function, type(error)))
        finally:
            gpu.fault("", -1, 0)
        gc.collect()
        assert gpu.live() == before, (function, number, gpu.live(), before)
    assert {function for function, _ in failures} == {function for function, _, _ in faults}, failures
    assert {kind for function, kind in failures if function == "cuMemAlloc"} == {DeviceMemoryExhausted}, failures
    body()


def case_full(gpu):
    """A pass that finds no memory for the rows between the graphs leaves the model as it was."""
    with exits(gpu, prefill_chunk=16) as model:
        with model.passes() as (runner, rows):
            runner.forward([7] * 16, 0, 1)
            gpu.fault("cuMemAlloc", 0, OUT_OF_MEMORY)
            try:
                expect(MemoryBudgetExceeded, "memory of the device", lambda: runner.forward([7] * 200, 0, 1))
            finally:
                gpu.fault("", -1, 0)
            rows.truncate(0)
        assert answer(model).token_ids == plain(agreeing().whole)


def case_nothing_is_left(gpu):
    """Recorded passes of all segments are given back, with the memory that they wrote to."""

    def body():
        with exits(gpu) as model:
            with gpu.starts(graphs=SOME):
                answer(model)
            assert gpu.live().graphs > 0

    check_nothing_is_left(gpu, body)


if __name__ == "__main__":
    main(globals(), **DEVICE)
