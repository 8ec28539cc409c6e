"""Experts that are read into a cache: the same bits as in memory, whatever is in the cache; and reads that go wrong."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from edge_rt.errors import ConfigError, StorageError
from edge_rt.export import export_model
from edge_rt.memory.plan import make_plan
from edge_rt.memory.speed import pass_seconds, row_costs
from edge_rt.ort.mapped_weights import MappedWeights
from edge_rt.package.expert_sizes import expert_matrices, expert_sizes
from edge_rt.package.reader import open_package
from edge_rt.runtime.load.options import LoadOptions
from edge_rt.runtime.load.planning import plan_package
from tests.helpers.family_cases import load_case, write_folder
from tests.helpers.models import load_package
from tests.helpers.native_profile import require_native
from tests.helpers.small import GREEDY

PROMPT = [5 + (7 * i) % 11 for i in range(70)]
OTHER = [9 + (5 * i) % 23 for i in range(40)]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    require_native()
    folder = tmp_path_factory.mktemp("experts")
    source = write_folder(folder / "model", load_case("qwen3_moe"))
    export_model(source, folder / "package", profile="native", calibration=None, accept_loss=True, weights="int8")
    return folder / "package"


@pytest.fixture(scope="module")
def sizes(path):
    return expert_sizes(open_package(path))


class File:
    """Reads a file as the cache does, with faults where they are wanted; ``before(offset)`` is called first."""

    def __init__(self, path):
        self.file = os.open(path / "weights.bin", os.O_RDONLY)
        self.fault = None
        self.before = None
        self.reads = 0

    def __call__(self, address, count, offset):
        self.reads += 1
        if self.before is not None:
            self.before(offset)
        if self.fault is not None:
            return self.fault
        data = os.pread(self.file, count, offset)
        ctypes.memmove(address, data, len(data))
        return len(data)


def texts(model):
    model.reset()
    first = model.generate(PROMPT, max_tokens=30, **GREEDY)
    return [first.token_ids, model.generate(OTHER, max_tokens=30, temperature=1.0, seed=4).token_ids]


def test_bits_do_not_depend_on_what_is_in_the_cache(path, sizes):
    with load_package(path, experts="resident") as model:
        resident = texts(model)
        assert model.expert_reads() is None
    for count in (sizes.least_bytes, (sizes.least_bytes + sizes.most_bytes) // 2, 10 * sizes.most_bytes):
        with load_package(path, experts=count) as model:
            assert texts(model) == resident
            reads = model.expert_reads()
            assert reads.misses > 0
            assert reads.hits > 0
            before = reads.misses
            assert texts(model) == resident
            held = model.plan.choice.expert_bytes == sizes.most_bytes
            assert (model.expert_reads().misses == before) == held


def test_a_prompt_whose_experts_do_not_fit_is_read_in_lots(path, sizes):
    # 70 rows have nearly all experts of a layer; the cache has those of one row.
    with load_package(path, experts=sizes.least_bytes) as model, load_package(path, experts="resident") as other:
        pool = sizes.pools[0]
        result = model.generate(PROMPT, max_tokens=1, **GREEDY)
        assert result.experts.misses > pool.demand
        assert result.experts.read_bytes >= result.experts.misses * pool.stored_bytes
        assert result.token_ids == other.generate(PROMPT, max_tokens=1, **GREEDY).token_ids


def test_a_read_that_fails_is_told_and_nothing_is_lost(path, sizes):
    file = File(path)
    with load_package(path, experts="resident") as model:
        chat = [model.generate(tokens, max_tokens=20, **GREEDY).token_ids for tokens in (PROMPT, OTHER)]
    with load_package(path, experts=sizes.least_bytes, expert_reader=file) as model:
        assert model.generate(PROMPT, max_tokens=20, **GREEDY).token_ids == chat[0]
        file.fault = -errno.EIO
        with pytest.raises(StorageError, match=r"weights.bin cannot be read. Input/output error."):
            model.generate(OTHER, max_tokens=20, **GREEDY)
        file.fault = 0
        with pytest.raises(StorageError, match="shorter while the model runs"):
            model.generate(OTHER, max_tokens=20, **GREEDY)
        assert model.expert_reads().failures > 0
        file.fault = None
        assert model.generate(OTHER, max_tokens=20, **GREEDY).token_ids == chat[1]
        assert model.generate(PROMPT, max_tokens=20, **GREEDY).token_ids == chat[0]


def test_a_file_that_is_cut_short_while_a_model_runs_is_an_error(path, sizes, tmp_path):
    shutil.copytree(path, tmp_path / "cut")
    with load_package(tmp_path / "cut", experts=sizes.least_bytes) as model:
        expected = model.generate(PROMPT, max_tokens=20, **GREEDY).token_ids
        whole = (tmp_path / "cut" / "weights.bin").read_bytes()
        os.truncate(tmp_path / "cut" / "weights.bin", 4096)
        with pytest.raises(StorageError, match="shorter while the model runs"):
            model.generate(OTHER, max_tokens=20, **GREEDY)
        with (tmp_path / "cut" / "weights.bin").open("r+b") as file:
            file.write(whole)
        assert model.generate(PROMPT, max_tokens=20, **GREEDY).token_ids == expected


def test_who_waits_for_a_read_or_for_a_slot_can_be_stopped(path, sizes):
    file, is_reading, goes_on = File(path), threading.Event(), threading.Event()
    tensors = {name: place for graph in open_package(path).tensors.values() for name, place in graph.items()}
    slow = [tensors[f"layer1.{name}.tiles"] for name in ("gate_up", "down")]
    with load_package(path, experts=sizes.least_bytes, expert_reader=file) as model:
        expected = model.generate(OTHER, max_tokens=10, **GREEDY).token_ids

        def wait(offset):
            if any(place.offset - 4096 < offset < place.offset + place.length for place in slow):
                is_reading.set()
                assert goes_on.wait(60)

        file.before = wait
        with ThreadPoolExecutor(1) as threads:
            try:
                stream = model.stream_ids(PROMPT, model.usual_config.with_options(max_tokens=10, **GREEDY))
                answer = threads.submit(stream.result)
                assert is_reading.wait(60)
                stream.cancel()
                # The disk has not answered yet.
                assert answer.result(60).finish_reason == "cancelled"
                # The slots of layer 1 wait for it, and what is left is too few for what this answer wants of layer 0.
                stream = model.stream_ids(OTHER, model.usual_config.with_options(max_tokens=10, **GREEDY))
                answer = threads.submit(stream.result)
                with pytest.raises(TimeoutError):
                    answer.result(0.3)
                stream.cancel()
                assert answer.result(60).finish_reason == "cancelled"
            finally:
                goes_on.set()
        file.before = None
        assert model.generate(OTHER, max_tokens=10, **GREEDY).token_ids == expected


def test_an_expert_that_was_read_in_part_when_its_pass_was_stopped_is_read_anew(path, sizes):
    file, third, goes_on, reads = File(path), threading.Event(), threading.Event(), iter(range(1, 1 << 30))
    with load_package(path, experts=sizes.least_bytes, expert_reader=file) as model:
        expected = model.generate(PROMPT, max_tokens=10, **GREEDY).token_ids
        model.generate(OTHER, max_tokens=10, **GREEDY)
        stream = model.stream_ids(PROMPT, model.usual_config.with_options(max_tokens=10, **GREEDY))

        def stop(_):
            number = next(reads)
            if number == 2:
                # The second half of the other expert is not begun: this reader finds that it was stopped.
                third.wait(60)
                stream.cancel()
            elif number == 3:
                third.set()
                goes_on.wait(60)

        file.before = stop
        assert stream.result().finish_reason == "cancelled"
        late = threading.Timer(0.3, goes_on.set)
        late.start()
        assert model.generate(PROMPT, max_tokens=10, **GREEDY).token_ids == expected
        late.join()


@pytest.fixture(scope="module")
def whole(path):
    return plan_package(open_package(path), LoadOptions(spec="off", ctx=256, experts="resident"))


def made(whole, budget, experts=None):
    return make_plan(whole.shape, whole.device, replace(whole.request, budget_bytes=budget, experts=experts))


def test_experts_stay_where_they_fit(whole):
    assert made(whole, whole.total_bytes).choice.expert_bytes is None


def test_the_cache_gets_what_is_left_and_the_least_is_told(whole, sizes):
    least = made(whole, whole.total_bytes).minimum.host
    last = 0
    for budget in range(least, whole.total_bytes - (1 << 14), 1 << 14):
        found = made(whole, budget)
        assert found.fits
        if found.choice.expert_bytes is None:
            continue
        assert sizes.least_bytes <= found.choice.expert_bytes < sizes.stored_bytes
        assert found.total_bytes <= budget
        # One more expert of every layer would not fit.
        assert found.total_bytes > budget - 4 * sizes.pools[0].slot_bytes
        last = found.choice.expert_bytes
        assert any("are read when they are wanted" in text for text in found.given_up)
    assert last
    assert not made(whole, least - 1).fits


def test_a_cache_below_one_token_is_refused_with_the_least(path, sizes):
    with pytest.raises(ConfigError, match="too small for one token"):
        load_package(path, experts=sizes.least_bytes - 1)
    with pytest.raises(ConfigError, match=r"'experts' .* auto, resident or a size"):
        load_package(path, experts="some")
    with pytest.raises(ConfigError, match="Got 1 bytes"):
        load_package(path, experts=1)


def test_a_usual_size_is_that_of_models_with_experts(path, sizes):
    package, usual = open_package(path), LoadOptions(spec="off", ctx=256, usual_experts=sizes.least_bytes)
    assert plan_package(package, usual).choice.expert_bytes == sizes.least_bytes
    # What is asked for goes before it.
    assert plan_package(package, usual.but(experts="resident")).choice.expert_bytes is None


def test_what_drafts_reads_the_copies(path, sizes):
    package = open_package(path)
    weights = MappedWeights(package)
    pools = [(pool.slot_bytes, pool.demand) for pool in sizes.pools]
    place = next(graph["embedding.tiles"] for graph in package.tensors.values() if "embedding.tiles" in graph)
    asked = place.offset, place.length, np.uint8, (place.length,)
    mapped = weights.array(*asked)
    weights.cache_experts(pools, expert_matrices(package), 256, None)
    assert np.shares_memory(mapped, weights.file.bytes)
    assert not np.shares_memory(weights.array(*asked), weights.file.bytes)
    assert np.array_equal(weights.array(*asked), mapped)


def test_what_is_missed_costs_time_and_more_rows_miss_more(whole, sizes):
    found = made(whole, None, experts=sizes.least_bytes)
    choice, device = found.choice, found.device
    resident = pass_seconds(whole.shape, device, whole.choice)
    missed = sizes.missed_bytes(sizes.least_bytes)
    assert pass_seconds(whole.shape, device, choice) == pytest.approx(resident + missed / device.read_bandwidth)
    dear, usual = row_costs(whole.shape, device, choice), device.computes.row_cost
    assert (dear[0], usual[0][1]) == ((1, 1.0), 1.0)
    # Two rows have nearly twice as many experts; dense weights they share.
    assert dear[1][0] == usual[1][0]
    assert dear[1][1] > usual[1][1]
    assert dear == sorted(dear)


def test_unions_and_hits_follow_the_formula(sizes):
    pool = sizes.pools[0]
    share = pool.chosen / pool.count
    assert sizes.union_factor(1) == pytest.approx(1)
    assert sizes.union_factor(4) == pytest.approx((1 - (1 - share) ** 4) / share)
    assert sizes.hit_share(sizes.most_bytes) == pytest.approx(1)
    assert sizes.hit_share(sizes.least_bytes) == pytest.approx(share)


def test_answers_that_share_passes_share_the_cache(path, sizes):
    asked = [(PROMPT, {"max_tokens": 20, **GREEDY}), (OTHER, {"max_tokens": 20, "temperature": 1.0, "seed": 4}),
             (PROMPT[:30], {"max_tokens": 12, **GREEDY}), (OTHER[:9], {"max_tokens": 25, **GREEDY})]  # fmt: skip
    with load_package(path, experts="resident", spec="off") as model:
        alone = [model.generate(prompt, **options).token_ids for prompt, options in asked]
    file = File(path)
    with load_package(path, experts=sizes.least_bytes, expert_reader=file, slots=3) as model:
        assert model.slots == 3
        assert [answer.token_ids for answer in model.generate_many(asked)] == alone
        model._batch.check()
        # A read that fails ends those of its pass, and nothing else.
        model.reset()
        file.fault = -errno.EIO
        assert all(isinstance(answer, StorageError) for answer in model.generate_many(asked[:3]))
        file.fault = None
        assert [answer.token_ids for answer in model.generate_many(asked)] == alone
        model._batch.check()
