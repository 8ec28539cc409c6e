import math

import gguf
import pytest

from edge_rt.errors import InvalidModelFile
from edge_rt.export.sources import gguf_types
from edge_rt.export.sources.gguf_header import read_header
from tests.helpers.gguf_factory import FLOAT32, FLOAT64, INT64, Q8_0, STRING, good_raw, raw_kv, raw_scalar


def test_block_formats_are_those_of_the_gguf_library():
    ours = {type_id: tuple(block) for type_id, block in gguf_types.GGML_TYPES.items()}
    for kind, (items, size) in gguf.GGML_QUANT_SIZES.items():
        assert ours[int(kind)] == (kind.name, items, size)


@pytest.fixture(scope="module")
def header(tmp_path_factory):
    raw = good_raw().kv("nan", FLOAT32, math.nan).kv("inf", FLOAT64, math.inf).kv("huge", INT64, 1 << 62)
    raw.raw(raw_kv("name\u202e", STRING, raw_scalar(STRING, "x" * 200)))
    return read_header(raw.tensor("last", (32,), Q8_0).write(tmp_path_factory.mktemp("getters") / "good.gguf"))


def test_getters_return_typed_values(header):
    assert header.get_int("test.type5", minimum=-3, maximum=-3) == -3
    assert header.get_float("test.type6", minimum=0.5, maximum=0.5) == 0.5
    assert isinstance(header.get_float("test.type4"), float)
    assert header.get_bool("test.type7") is True
    assert header.get_str("general.architecture") == "llama"
    assert header.get_list("test.strings", str) == ["Ġa", "b", ""]
    assert header.get_list("test.ints", int, max_length=3) == [1, -2, 3]
    assert header.get_list("test.bools", bool) == [True, False]
    assert header.get_list("test.floats", float) == [0.5, -1.5]


def test_getters_return_the_default_for_an_absent_key(header):
    assert header.get_int("absent", default=5, minimum=7) == 5
    assert header.get_float("absent", default=None) is None
    assert header.get_bool("absent", default=False) is False
    assert header.get_str("absent", default="x") == "x"
    assert header.get_list("absent", str, default=None) is None


GETTER_REFUSALS = {
    "int absent": (lambda h: h.get_int("absent"), ["'absent'", "missing"]),
    "float absent": (lambda h: h.get_float("absent"), ["'absent'", "missing"]),
    "bool absent": (lambda h: h.get_bool("absent"), ["'absent'", "missing"]),
    "str absent": (lambda h: h.get_str("absent"), ["'absent'", "missing"]),
    "list absent": (lambda h: h.get_list("absent", int), ["'absent'", "missing"]),
    "int is float": (lambda h: h.get_int("test.type6"), ["'test.type6'", "At byte", "float 0.5", "an integer"]),
    "int is bool": (lambda h: h.get_int("test.type7"), ["'test.type7'", "bool True", "an integer"]),
    "int is str": (lambda h: h.get_int("test.type8", default=1), ["'test.type8'", "str 'text'"]),
    "int is array": (lambda h: h.get_int("test.ints"), ["'test.ints'", "array of 3 int32"]),
    "int too small": (lambda h: h.get_int("test.type1", minimum=0), ["'test.type1'", "too small", "-1, limit 0"]),
    "int too large": (lambda h: h.get_int("huge", maximum=9), ["'huge'", "too large", f"{1 << 62}, limit 9"]),
    "float is str": (lambda h: h.get_float("general.architecture"), ["str 'llama'", "a number"]),
    "float is bool": (lambda h: h.get_float("test.type7"), ["bool True", "a number"]),
    "float is NaN": (lambda h: h.get_float("nan"), ["'nan'", "not finite", "At byte"]),
    "float is infinite": (lambda h: h.get_float("inf"), ["'inf'", "not finite"]),
    "float too small": (lambda h: h.get_float("test.type6", minimum=0.75), ["too small", "0.5, limit 0.75"]),
    "float too large": (lambda h: h.get_float("test.type6", maximum=0.25), ["too large", "0.5, limit 0.25"]),
    "bool is int": (lambda h: h.get_bool("test.type0"), ["'test.type0'", "int 1", "a truth value"]),
    "str is int": (lambda h: h.get_str("test.type0"), ["'test.type0'", "int 1", "a string"]),
    "list is scalar": (lambda h: h.get_list("test.type0", int), ["'test.type0'", "int 1", "an array of int"]),
    "list of others": (lambda h: h.get_list("test.ints", str), ["'test.ints'", "int32", "an array of str"]),
    "list of int is of bool": (lambda h: h.get_list("test.bools", int), ["'test.bools'", "bool", "an array of int"]),
    "list too long": (lambda h: h.get_list("test.ints", int, max_length=2), ["too long", "3 items, limit 2"]),
    "text is escaped and short": (lambda h: h.get_int("name\u202e"), ["'name\\u202e'", "str 'xxx", "...'"]),
}


@pytest.mark.parametrize("case", GETTER_REFUSALS)
def test_getter_refuses(case, header):
    call, named = GETTER_REFUSALS[case]
    with pytest.raises(InvalidModelFile) as caught:
        call(header)
    for fragment in ["good.gguf", *named]:
        assert fragment in str(caught.value)
    assert len(str(caught.value)) < 400
