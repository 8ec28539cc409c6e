"""Numbers of GGUF headers that no family can use."""

from __future__ import annotations

import pytest

from edge_rt.errors import InvalidModelFile, UnsupportedModel
from edge_rt.export.families.header_reader import HeaderReader
from edge_rt.export.sources.gguf_header import read_header
from tests.helpers.gguf_factory import BOOL, FLOAT32, INT32, STRING, RawGGUF

KEY = "blocks"


def reader_of(tmp_path, item_type, items):
    path = RawGGUF().array(f"some.{KEY}", item_type, items).tensor().write(tmp_path / "m.gguf")
    return HeaderReader(read_header(path), "some")


@pytest.mark.parametrize(
    ("item_type", "items", "words"),
    [
        (INT32, [], "'some.blocks' has 0 values"),
        (STRING, [], "'some.blocks' has 0 values"),
        (INT32, [4, 5, 4], "'some.blocks' has 2 values, from 4 to 5"),
        (INT32, [-1], "'some.blocks' has 1 values"),
        (FLOAT32, [4.0, 4.0], "'some.blocks' has 1 values, from 4.0"),
        (BOOL, [True], "'some.blocks' has 1 values, from True"),
        (STRING, ["4"], "'some.blocks' has 1 values, from '4'"),
    ],
)
def test_an_array_in_the_place_of_one_number(tmp_path, item_type, items, words):
    with pytest.raises(UnsupportedModel, match=words):
        reader_of(tmp_path, item_type, items).count(KEY, 10)


@pytest.mark.parametrize(("item_type", "items"), [(BOOL, [True]), (INT32, [1, 2]), (FLOAT32, [1.0, 0.0]), (INT32, [])])
def test_an_array_that_has_no_truth_value_for_every_layer(tmp_path, item_type, items):
    with pytest.raises(InvalidModelFile, match=r"some\.blocks.* for 2 layers"):
        reader_of(tmp_path, item_type, items).flags(KEY, 2)
