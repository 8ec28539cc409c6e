"""Parts of several sequences in one pass have the bits that each has alone."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import pytest

from edge_rt.errors import InferenceError, UnsupportedModel
from edge_rt.ort.binding import StopSwitch
from edge_rt.ort.session import Session, pool_size
from edge_rt.package.reader import open_package
from edge_rt.runtime.cache.row_pool import PooledCache, RowPool
from edge_rt.runtime.forward.io_binding_base import Part
from edge_rt.runtime.forward.io_binding_native import NativeIOBinding
from edge_rt.runtime.forward.runner import ModelRunner
from edge_rt.system.machine import usable_cpus
from tests.helpers.segmented import CutPasses

CAPACITY, POOL, SEQUENCES = 320, 900, 5
SHARED = 32


class Passes:
    """Passes over the package's graph, with what a cache holds as told."""

    def __init__(self, package, kv_format, **options):
        self.interface = NativeIOBinding(package.manifest.model, CAPACITY, kv_format, hidden=True, **options)
        session = Session(
            package.file("model.onnx"),
            threads=pool_size() or usable_cpus(),
            profile="native",
            more_outputs=self.interface.more_outputs,
        )
        self.runner = ModelRunner(session, self.interface, StopSwitch())


@pytest.fixture(scope="module")
def package(native_package):
    return open_package(native_package)


def bits(outputs):
    top = outputs.top
    return [array.tobytes() for array in (outputs.logits, outputs.hidden, top.ids, top.logits, top.log_sum_exp)]


def random_part(rng, text, length, size):
    """Return tokens behind the first ``length`` of a text: the next of them, or any tree."""
    if rng.random() < 0.6:
        return Part(text[length : length + size], length, int(rng.integers(0, size + 1))), size
    parents = [int(rng.integers(-1, i)) if i else -1 for i in range(size)]
    rows = sorted(rng.choice(size, int(rng.integers(1, size + 1)), replace=False).tolist())
    return Part([text[length], *rng.integers(0, 419, size - 1).tolist()], length, len(rows), parents, rows), 1


@pytest.mark.parametrize("kv_format", ["f16", "int8", "int4"])
def test_parts_have_the_bits_of_a_sequence_alone(package, kv_format):
    rng = np.random.default_rng(len(kv_format))
    together = Passes(package, kv_format, sequences=SEQUENCES, rows=POOL)
    alone = [Passes(package, kv_format) for _ in range(SEQUENCES)]
    pool = RowPool(POOL)
    caches = [PooledCache(CAPACITY, pool) for _ in range(SEQUENCES)]
    texts = [rng.integers(0, 419, CAPACITY).tolist() for _ in range(SEQUENCES)]
    for one, text in zip(alone, texts, strict=True):
        text[:SHARED] = texts[0][:SHARED]
        one.runner.forward(text[:SHARED], 0, 1)
    with caches[0].reserve(SHARED) as rows:
        together.runner.forward_many([Part(texts[0][:SHARED], 0, 1, row_map=caches[0].row_map)])
        rows.commit(texts[0][:SHARED])
    assert [cache.fork(caches[0], SHARED) for cache in caches[1:]] == [SHARED] * (SEQUENCES - 1)
    for step in range(24):
        chosen = rng.permutation(SEQUENCES)[: rng.integers(1, SEQUENCES + 1)]
        # One fills its context beside others that decode.
        sizes = [int(rng.choice([1, 1, 2, 7, 20 if step % 3 else 60])) for _ in chosen]
        parts, kept = [], []
        for number, size in zip(chosen, sizes, strict=True):
            if caches[number].length > 150:
                assert caches[number].truncate(SHARED) == SHARED
            part, taken = random_part(rng, texts[number], caches[number].length, size)
            parts.append(part._replace(row_map=caches[number].row_map))
            kept.append(taken)
        parts[0] = parts[0] if sum(part.num_logits for part in parts) else parts[0]._replace(num_logits=1)
        with ExitStack() as stack:
            reserved = [
                stack.enter_context(caches[number].reserve(len(part.token_ids), part.parents))
                for number, part in zip(chosen, parts, strict=True)
            ]
            found = [bits(outputs) for outputs in together.runner.forward_many(parts)]
            for rows, part, taken in zip(reserved, parts, kept, strict=True):
                rows.commit(part.token_ids[:taken])
        pool.check(caches)
        for number, part, one in zip(chosen, parts, found, strict=True):
            wanted = max(part.num_logits, 1)
            rows = part.logit_rows if part.num_logits else None
            outputs = alone[number].runner.forward(
                part.token_ids, part.start, wanted, parents=part.parents, logit_rows=rows
            )
            if part.num_logits:
                assert bits(outputs) == one, (step, number)


def test_a_part_that_writes_a_row_of_another_is_refused(package):
    passes = Passes(package, "f16", sequences=2, rows=POOL)
    first, second = (np.arange(begin, begin + 40, dtype=np.int32) for begin in (0, 100))
    good = [Part([1, 2, 3], 0, 1, row_map=first), Part([4, 5], 0, 1, row_map=second)]
    passes.runner.forward_many(good)
    before = [buffer.tobytes() for buffer in passes.interface.buffers]
    for place, row, message in ((4, 1, "position 1 of sequence 0"), (4, 5, "row 5 to two sequences")):
        wrong = second.copy()
        wrong[place] = row
        parts = [Part([6, 7, 8], 3, 1, row_map=first), Part([9] * 3, 2, 1, row_map=wrong)]
        with pytest.raises(InferenceError, match=message):
            passes.runner.forward_many(parts)
        assert before == [buffer.tobytes() for buffer in passes.interface.buffers]


def test_what_computes_one_sequence_at_a_time_says_so(package, agreeing):
    row_map = np.arange(CAPACITY, dtype=np.int32)
    parts = [Part([1], 0, 1, row_map=row_map), Part([1], 0, 1, row_map=row_map)]
    for passes in (Passes(package, "f16"), CutPasses(agreeing.cut, "f16")):
        with pytest.raises(UnsupportedModel, match="one sequence at a time"):
            passes.runner.forward_many(parts)
        (outputs,) = passes.runner.forward_many([Part([1, 2], 0, 2)])
        assert np.array_equal(outputs.logits, passes.runner.forward([1, 2], 0, 2).logits)
