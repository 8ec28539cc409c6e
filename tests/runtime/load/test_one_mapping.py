"""Everything that a loaded model reads of its weights lies in one mapping of them."""

from __future__ import annotations

import gc
import sys

import pytest

from edge_rt.export import export_model
from edge_rt.system.process_memory import read_mappings
from tests.helpers.gguf_factory import write_llama_gguf
from tests.helpers.models import load_package
from tests.helpers.native_profile import require_native
from tests.helpers.small import FREE_ROWS, GREEDY
from tests.runtime.test_head_model import head_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="mappings are read in /proc")


def mappings_of(package):
    path = str((package / "weights.bin").resolve())
    return [one for one in read_mappings() if one.path == path]


def use(package, **options):
    """Draft with a model; return the mappings of its weights while it is open and once it is closed."""
    with load_package(package, **options) as model:
        model.speculation.costs = FREE_ROWS
        drafted = model.generate("Hello", max_tokens=30, **GREEDY)
        assert drafted.token_ids == model.generate("Hello", max_tokens=30, spec="off", **GREEDY).token_ids
        opened = mappings_of(package)
    gc.collect()
    return opened, mappings_of(package)


@pytest.mark.parametrize("mode", ["auto", "exit", "head"])
def test_segments_exits_and_a_head(agreeing, tmp_path, mode):
    drafter = None if mode == "exit" else head_of(agreeing.whole, tmp_path / "head").path
    opened, closed = use(agreeing.cut, spec=mode, drafter=drafter)
    assert (len(opened), closed) == (1, [])


def test_a_graph_that_drafts_with_fewer_bits(tmp_path):
    require_native()
    kinds = dict.fromkeys(("weight_type", "embedding_type", "output_type"), "F32")
    write_llama_gguf(tmp_path / "m.gguf", **kinds)
    export_model(tmp_path / "m.gguf", tmp_path / "package", profile="native", weights="nested8")
    opened, closed = use(tmp_path / "package", spec="self")
    assert (len(opened), closed) == (1, [])


def test_a_second_model(agreeing, native_package):
    opened, closed = use(agreeing.whole, spec=f"model:{native_package}")
    assert (len(opened), closed) == (1, [])
