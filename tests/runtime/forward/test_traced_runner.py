"""Passes of a traced package: rows of the cache are read and written in place."""

from __future__ import annotations

import numpy as np
import pytest

from edge_rt.errors import InvalidPackage, UnsupportedModel
from edge_rt.export.options import ExportOptions
from edge_rt.export.traced.export import export_traced
from edge_rt.ort.binding import StopSwitch
from edge_rt.ort.session import Session, pool_size
from edge_rt.package.reader import open_package
from edge_rt.runtime.forward.io_binding import open_io_binding
from edge_rt.runtime.forward.io_binding_portable import TracedIOBinding
from edge_rt.runtime.forward.runner import ModelRunner
from tests.helpers.fake_model import tiny_model
from tests.helpers.traced_factory import VOCAB, TracedModel, tracer_of, write_folder

MODEL = TracedModel()
IDS = [(5 + 41 * i) % len(VOCAB) for i in range(50)]
WHOLE = MODEL.logits(IDS)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    root = tmp_path_factory.mktemp("traced")
    folder = write_folder(root / "small", MODEL)
    export_traced(folder, root / "out", ExportOptions(), 0.0, tracer_of(MODEL))
    return open_package(root / "out")


@pytest.fixture
def runner(package):
    session = Session(package.file("model.onnx"), threads=pool_size() or 2, profile="traced")
    runner = ModelRunner(session, open_io_binding(package.manifest, 64, None), StopSwitch())
    yield runner
    runner.close()


def close_to(found, expected):
    return np.abs(found - expected).max() < 1e-5 * np.abs(WHOLE).max()


@pytest.mark.parametrize("chunk", [1, 3, 16, 50])
def test_chunks_give_the_logits_of_the_whole(runner, chunk):
    for start in range(0, len(IDS), chunk):
        ids = IDS[start : start + chunk]
        assert close_to(runner.forward(ids, start, len(ids)).logits, WHOLE[start : start + len(ids)])


def test_any_rows_may_want_logits(runner):
    assert close_to(runner.forward(IDS[:20], 0, 3, logit_rows=[17, 0, 9]).logits, WHOLE[[17, 0, 9]])
    assert close_to(runner.forward(IDS[20:30], 20, 2).logits, WHOLE[28:30])


def test_rows_written_again_count_only_as_written_last(runner):
    runner.forward(IDS[:10], 0, 1)
    runner.forward([7, 7, 7, 7, 7], 10, 1)
    assert close_to(runner.forward(IDS[10:20], 10, 10).logits, WHOLE[10:20])
    assert close_to(runner.forward(IDS[5:12], 5, 7).logits, WHOLE[5:12])


def test_a_pass_writes_no_row_but_its_own(package):
    session = Session(package.file("model.onnx"), threads=pool_size() or 2, profile="traced")
    binding = open_io_binding(package.manifest, 64, "f32")
    runner = ModelRunner(session, binding, StopSwitch())
    binding.fill(64)
    before = {name: buffer.copy() for name, buffer in binding.buffers.items()}
    runner.forward(IDS[:4], 6, 1)
    for name, buffer in binding.buffers.items():
        changed = (buffer != before[name]).any(axis=(1, 2))
        assert np.flatnonzero(changed).tolist() == [6, 7, 8, 9]


def test_a_chain_may_be_spelt_out_and_a_tree_is_refused(runner):
    assert close_to(runner.forward(IDS[:3], 0, 3, parents=[-1, 0, 1]).logits, WHOLE[:3])
    with pytest.raises(UnsupportedModel, match="in a chain only"):
        runner.forward(IDS[:3], 0, 3, parents=[-1, 0, 0])


def test_a_graph_of_another_shape_is_refused(package):
    session = Session(package.file("model.onnx"), threads=pool_size() or 2, profile="traced")
    other = TracedIOBinding(tiny_model(num_layers=2, num_kv_heads=3, head_dim=8), 16, "f32")
    with pytest.raises(InvalidPackage, match="does not fit its manifest"):
        other.check(session)
