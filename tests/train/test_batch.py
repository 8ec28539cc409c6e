"""Several sequences computed together have the bits that each has alone."""

from __future__ import annotations

import numpy as np
import pytest

from edge_rt.errors import UnsupportedModel
from edge_rt.export import export_model
from edge_rt.ort.binding import StopSwitch
from edge_rt.ort.session import Session, pool_size
from edge_rt.package.reader import open_package
from edge_rt.runtime.forward.io_binding import open_io_binding
from edge_rt.runtime.forward.outputs import TopTokens
from edge_rt.runtime.forward.runner import ModelRunner
from edge_rt.system.machine import usable_cpus
from edge_rt.train.batch import BatchRunner
from tests.helpers.gguf_factory import write_llama_gguf
from tests.helpers.segmented import CutPasses

CAPACITY = 64
THREADS = usable_cpus()


@pytest.fixture(scope="module")
def package(native_package):
    return open_package(native_package)


def test_the_cache_has_the_format_that_the_package_is_run_with(package):
    usual = package.manifest.kv_formats[0]
    assert usual == "int8"
    (text,) = texts(1, 20)
    with batch(package, 1, kv_format=None) as runner:
        (rows,) = runner.forward([text], [True])
        assert np.array_equal(rows.hidden, Alone(package, usual).compute(text)[0])


def batch(package, sequences, **more):
    options = {"capacity": CAPACITY, "kv_format": "f16", "threads": pool_size() or THREADS, "most_rows": 64, **more}
    return BatchRunner(package, sequences=sequences, **options)


class Alone:
    """The same tokens through the graph of the package, one sequence at a time."""

    def __init__(self, package, kv_format="f16"):
        self.binding = open_io_binding(package.manifest, CAPACITY, kv_format, hidden=True)
        session = Session(
            package.file("model.onnx"),
            threads=pool_size() or THREADS,
            profile="native",
            more_outputs=self.binding.more_outputs,
        )
        self.runner = ModelRunner(session, self.binding, StopSwitch())

    def compute(self, token_ids):
        found = self.runner.forward(token_ids, 0, len(token_ids))
        return found.hidden.copy(), found.logits.copy()


def texts(count, size):
    return [[(7 + 31 * place + 5 * index) % 419 for index in range(size)] for place in range(count)]


@pytest.mark.parametrize("kv_format", ["f16", "int8", "int4"])
def test_hidden_states_have_the_bits_of_a_sequence_alone(package, kv_format):
    sequences = texts(3, 20)
    cuts = ([5, 1, 14], [1, 18, 1], [7, 7, 6])
    alone = Alone(package, kv_format)
    with batch(package, 3, kv_format=kv_format) as runner:
        found = [[], [], []]
        begins = [0, 0, 0]
        for turn in range(3):
            pieces = []
            for place, sequence in enumerate(sequences):
                end = begins[place] + cuts[place][turn]
                pieces.append(sequence[begins[place] : end])
                begins[place] = end
            rows = runner.forward(pieces, [True, False, turn == 2])
            assert [one.ids is not None for one in rows] == [True, False, turn == 2]
            for place, one in enumerate(rows):
                found[place].append(one.hidden.copy())
                if one.ids is not None:
                    _, logits = alone.compute(sequences[place][: begins[place]])
                    order = np.argsort(-logits[-1], kind="stable")[: len(one.ids)]
                    assert np.array_equal(one.ids, order)
                    assert np.array_equal(one.logits, logits[-1][order])
        for place, sequence in enumerate(sequences):
            hidden, _ = alone.compute(sequence)
            assert np.array_equal(np.concatenate(found[place]), hidden)


def test_a_sequence_that_begins_anew_forgets(package):
    first, second = texts(2, 12)
    with batch(package, 2) as runner:
        runner.forward([first, second], [False, False])
        runner.lengths[0] = 0
        found = runner.forward([second, first], [False, False])[0].hidden.copy()
    hidden, _ = Alone(package).compute(second)
    assert np.array_equal(found, hidden)


@pytest.mark.parametrize("kv_format", ["f16", "int8"])
def test_graphs_of_a_package_with_exits_are_joined(agreeing, kv_format):
    """States behind the last layer have the bits of one graph, states at exits those that a draft's passes give."""
    whole, cut = open_package(agreeing.whole), open_package(agreeing.cut)
    sequences = texts(2, 14)
    found = {}
    for package in (whole, cut):
        with batch(package, 2, kv_format=kv_format) as runner:
            rows = runner.forward(sequences, [True, False])
            found[package.id] = [(one.hidden.copy(), [state.copy() for state in one.exits]) for one in rows]
            likely = rows[0].ids.copy()
        found[package.id].append(likely)
    for (one, none), (other, exits) in zip(found[whole.id][:2], found[cut.id][:2], strict=True):
        assert np.array_equal(one, other)
        assert none == []
        assert len(exits) == len(cut.manifest.exits)
    assert np.array_equal(found[whole.id][2], found[cut.id][2])
    for segments in range(1, len(cut.manifest.exits) + 1):
        passes, kept = CutPasses(agreeing.cut, kv_format), []
        passes.runner.adapt(segments, Keeping(kept))
        passes.draft(sequences[1], segments)
        assert np.array_equal(np.concatenate(kept), found[cut.id][1][1][segments - 1])


class Keeping:
    """An adapter that keeps the states that it is asked about."""

    def __init__(self, kept):
        self._kept = kept

    def likely(self, hidden, token_id):
        self._kept.append(hidden.copy())
        return TopTokens(np.zeros((1, 1), np.int32), np.zeros((1, 1), np.float32), np.zeros(1, np.float32))


def test_a_model_with_windows_is_refused(tmp_path):
    source = tmp_path / "w.gguf"
    write_llama_gguf(source, context=128, extra_metadata={"llama.attention.sliding_window": 32})
    export_model(source, tmp_path / "w", profile="native")
    package = open_package(tmp_path / "w")
    with pytest.raises(UnsupportedModel, match="inputs that a batch does not know"):
        batch(package, 2)
