import struct
import time
import tracemalloc
from pathlib import Path

import gguf
import pytest

from edge_rt.errors import InvalidModelFile, UnsupportedModel
from edge_rt.export.sources import gguf_reader, gguf_types, model_file as gguf_source
from edge_rt.export.sources.gguf_header import read_header
from tests.export.sources.refusal import refusal
from tests.helpers.gguf_factory import (
    ARRAY,
    BOOL,
    F32,
    FLOAT32,
    INT32,
    STRING,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    RawGGUF,
    good_raw,
    raw_array,
    raw_kv,
    raw_string,
    raw_tensor_info,
    u32,
    u64,
    write_llama_gguf,
)

REPOSITORY = Path(__file__).parents[3]
MIB = 1 << 20
BIG = 1 << 63

# --- refusals -------------------------------------------------------------------------------------


def kv(key, value_type, value, **options):
    return RawGGUF().raw(raw_kv(key, value_type, value, **options))


def info(*arguments, **options):
    return RawGGUF().info(raw_tensor_info(*arguments, **options))


def aligned(value, value_type=UINT32):
    return RawGGUF().kv("general.alignment", value_type, value)


def nested_arrays(depth):
    """An array that holds an array that holds ... one byte."""
    return kv("k", ARRAY, (u32(ARRAY) + u64(1)) * depth + u32(UINT8) + u64(1) + b"\0")


def two_tensors(**options):
    return RawGGUF().tensor("a").tensor(**options)


def many_strings(count):
    return raw_kv("k", ARRAY, u32(STRING) + u64(count) + bytes(8 * count))


def cut(raw, missing):
    return raw.build()[:-missing]


# Each: what is wrong, the file, the error, and what its message must name besides the file.
REFUSALS = {
    "empty": (b"", InvalidModelFile, ["magic number", "At byte 0", "limit 0"]),
    "short magic": (b"GGU", InvalidModelFile, ["magic number", "limit 3"]),
    "magic": (RawGGUF(magic=b"GGML"), InvalidModelFile, ["not a GGUF file", "At byte 0", "b'GGML'"]),
    "safetensors": (u64(2) + b"{}", InvalidModelFile, ["not a GGUF file", "At byte 0"]),
    "zip": (b"PK\3\4" + bytes(64), InvalidModelFile, ["not a GGUF file", "At byte 0"]),
    "big-endian magic": (b"FUGG" + struct.pack(">IQQ", 3, 0, 0), UnsupportedModel, ["big-endian", "At byte 0"]),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), UnsupportedModel, ["big-endian", "At byte 4", "version 3"]),
    "version 0": (RawGGUF(version=0), UnsupportedModel, ["format version", "At byte 4", "version 0", "limit 2 to 3"]),
    "version 1": (RawGGUF(version=1), UnsupportedModel, ["format version", "At byte 4", "version 1"]),
    "version 4": (RawGGUF(version=4), UnsupportedModel, ["format version", "At byte 4", "version 4"]),
    "version 2^31": (RawGGUF(version=1 << 31), UnsupportedModel, ["format version", "At byte 4", str(1 << 31)]),
    "tensors 2^63": (RawGGUF(n_tensors=BIG), InvalidModelFile, ["number of tensors", "At byte 8", str(BIG)]),
    "tensors 2^32": (RawGGUF(n_tensors=1 << 32), InvalidModelFile, ["number of tensors", "At byte 8"]),
    "tensors -1": (RawGGUF(n_tensors=2**64 - 1), InvalidModelFile, ["number of tensors", "At byte 8"]),
    "tensors over the limit": (
        RawGGUF(n_tensors=16_385, trailing=bytes(MIB)), InvalidModelFile, ["number of tensors", "limit 16384"],
    ),
    "tensors over the rest": (
        RawGGUF(n_tensors=3, trailing=bytes(64)), InvalidModelFile, ["number of tensors", "3, limit 2"],
    ),
    "keys 2^63": (RawGGUF(n_kv=BIG), InvalidModelFile, ["number of metadata keys", "At byte 16", str(BIG)]),
    "keys 2^32": (RawGGUF(n_kv=1 << 32), InvalidModelFile, ["number of metadata keys", "At byte 16"]),
    "keys -1": (RawGGUF(n_kv=2**64 - 1), InvalidModelFile, ["number of metadata keys", "At byte 16"]),
    "keys over the limit": (
        RawGGUF(n_kv=4097, trailing=bytes(MIB)), InvalidModelFile, ["number of metadata keys", "limit 4096"],
    ),
    "key length 2^63": (
        kv("k", UINT8, b"\0", key_length=BIG), InvalidModelFile, ["metadata key 0", "At byte 24", "limit 65535"],
    ),
    "key length 0": (kv("", UINT8, bytes(8)), InvalidModelFile, ["metadata key 0 is empty", "At byte 24"]),
    "key too long": (kv("k" * 65_536, UINT8, b"\0"), InvalidModelFile, ["metadata key 0", "65536", "limit 65535"]),
    "key beyond the file": (
        kv("k", UINT8, b"\0", key_length=99), InvalidModelFile, ["metadata key 0", "99 bytes", "byte 32", "limit 32"],
    ),
    "key not UTF-8": (kv(b"a\xff", UINT8, b"\0"), InvalidModelFile, ["not UTF-8", "At byte 33", "0xff"]),
    "key with NUL": (kv(b"a\0b", UINT8, b"\0"), InvalidModelFile, ["control character", "At byte 24", "0x00"]),
    "key with escape": (kv(b"a\x1b[2J", UINT8, b"\0"), InvalidModelFile, ["control character", "0x1b", "\\x1b[2J"]),
    "value type 13": (kv("k", 13, bytes(8)), InvalidModelFile, ["value type", "'k'", "At byte 33", "type 13"]),
    "value type 255": (kv("k", 255, bytes(8)), InvalidModelFile, ["value type", "'k'", "type 255", "limit 12"]),
    "value cut short": (cut(kv("k", UINT64, u64(1)), 26), InvalidModelFile, ["'k'", "8 bytes", "limit 1"]),
    "bool 2": (kv("k", BOOL, b"\2"), InvalidModelFile, ["'k'", "At byte 37", "2, limit 1"]),
    "bool array": (
        kv("k", ARRAY, raw_array(BOOL, [1, 0, 7])), InvalidModelFile, ["'k'", "bool", "At byte 51", "7, limit 1"],
    ),
    "array length 2^63 of bytes": (
        kv("k", ARRAY, u32(UINT8) + u64(BIG)), InvalidModelFile, ["array length", "'k'", "At byte 41", str(BIG)],
    ),
    "array length 2^63 of strings": (
        kv("k", ARRAY, u32(STRING) + u64(BIG)), InvalidModelFile, ["array length", "'k'", "At byte 41", str(BIG)],
    ),
    "array length 2^40": (kv("k", ARRAY, u32(UINT8) + u64(1 << 40)), InvalidModelFile, ["array length", str(1 << 40)]),
    "array length 2^61 x 8 wraps": (
        kv("k", ARRAY, u32(UINT64) + u64(1 << 61)), InvalidModelFile, ["array length", str(1 << 61)],
    ),
    "array longer than the rest": (
        kv("k", ARRAY, raw_array(INT32, [1], length=100)), InvalidModelFile, ["array length", "100, limit 3"],
    ),
    "too many items": (
        kv("k", ARRAY, u32(UINT8) + u64((4 << 20) + 1) + bytes((4 << 20) + 1)),
        InvalidModelFile, ["array length", "limit 4194304"],
    ),
    "too many items together": (
        RawGGUF().array("a", UINT8, [0]).raw(raw_kv("k", ARRAY, u32(UINT8) + u64(4 << 20) + bytes(4 << 20))),
        InvalidModelFile, ["array length", "'k'", "limit 4194303"],
    ),
    "too many strings": (
        lambda: RawGGUF().raw(many_strings((3 << 19) + 1)), InvalidModelFile, ["array length", "limit 1572864"],
    ),
    "too many strings together": (
        lambda: RawGGUF().array("a", STRING, ["x"]).raw(many_strings(3 << 19)),
        InvalidModelFile, ["array length", "'k'", "limit 1572863"],
    ),
    "array item type 13": (kv("k", ARRAY, u32(13) + u64(0)), InvalidModelFile, ["item type", "'k'", "At byte 37"]),
    "nested arrays": (nested_arrays(1), InvalidModelFile, ["'k'", "array of arrays", "At byte 37", "limit 1"]),
    "nested arrays, depth 1000": (nested_arrays(1000), InvalidModelFile, ["'k'", "array of arrays"]),
    "string length 2^63": (
        kv("k", STRING, raw_string("x", length=BIG)), InvalidModelFile, ["'k'", "At byte 37", str(BIG), "limit"],
    ),
    "string longer than the rest": (
        kv("k", STRING, raw_string("x", length=99)), InvalidModelFile, ["'k'", "At byte 45", "99 bytes", "limit"],
    ),
    "string not UTF-8": (kv("k", STRING, raw_string(b"ab\xc3")), InvalidModelFile, ["'k'", "UTF-8", "At byte 47"]),
    "surrogate": (kv("k", STRING, raw_string(b"\xed\xa0\x80")), InvalidModelFile, ["'k'", "UTF-8", "At byte 45"]),
    "too much text": (
        RawGGUF().kv("a", STRING, "x" * MIB).kv("b", STRING, "x" * MIB), InvalidModelFile, ["'b'", f"limit {2 * MIB}"],
    ),
    "item length 2^63": (
        kv("k", ARRAY, u32(STRING) + u64(1) + raw_string("x", length=BIG)),
        InvalidModelFile, ["item 0", "'k'", "At byte 49", str(BIG)],
    ),
    "item longer than the rest": (
        kv("k", ARRAY, u32(STRING) + u64(2) + raw_string("x") + raw_string("y", length=77)),
        InvalidModelFile, ["item 1", "'k'", "At byte 66", "77 bytes", "limit"],
    ),
    "item length beyond the file": (
        cut(kv("k", ARRAY, u32(STRING) + u64(2) + raw_string("x" * 16)), 23), InvalidModelFile, ["item 1", "8 bytes"],
    ),
    "item not UTF-8": (
        kv("k", ARRAY, u32(STRING) + u64(2) + raw_string("x") + raw_string(b"\xff")),
        InvalidModelFile, ["item 1", "'k'", "UTF-8", "At byte 66"],
    ),
    "key twice": (
        RawGGUF().kv("k", UINT8, 1).kv("k", UINT8, 1), InvalidModelFile, ["'k'", "twice", "At byte 38", "byte 24"],
    ),
    "token types unequal": (
        RawGGUF().array("tokenizer.ggml.tokens", STRING, ["a", "b"]).array("tokenizer.ggml.token_type", INT32, [1]),
        InvalidModelFile, ["'tokenizer.ggml.token_type'", "1 items, limit 2"],
    ),
    "scores unequal": (
        RawGGUF().array("tokenizer.ggml.tokens", STRING, ["a"]).array("tokenizer.ggml.scores", FLOAT32, [1, 2]),
        InvalidModelFile, ["'tokenizer.ggml.scores'", "2 items, limit 1"],
    ),
    "split": (RawGGUF().kv("split.count", UINT16, 3), UnsupportedModel, ["split.count 3", "At byte 24", "--merge"]),
    "split 65535": (RawGGUF().kv("split.count", UINT16, 65_535), UnsupportedModel, ["split.count 65535"]),
    "split of wrong type": (RawGGUF().kv("split.count", STRING, "3"), InvalidModelFile, ["split.count", "str, limit"]),
    "alignment 0": (aligned(0), InvalidModelFile, ["'general.alignment'", "At byte 49", "0, limit"]),
    "alignment 4": (aligned(4), InvalidModelFile, ["'general.alignment'", "4, limit"]),
    "alignment 13": (aligned(13), InvalidModelFile, ["'general.alignment'", "13, limit"]),
    "alignment 2^31": (aligned(1 << 31), InvalidModelFile, ["'general.alignment'", str(1 << 31), "65536"]),
    "alignment of wrong type": (aligned(32, UINT64), InvalidModelFile, ["'general.alignment'", "UINT64", "UINT32"]),
    "alignment is an array": (
        RawGGUF().array("general.alignment", UINT32, [32]), InvalidModelFile, ["'general.alignment'", "ARRAY"],
    ),
    "tensor name empty": (info("", [1], F32, 0), InvalidModelFile, ["tensor 0 is empty", "At byte 24"]),
    "tensor name too long": (info("n" * 65, [1], F32, 0), InvalidModelFile, ["tensor 0", "65 bytes, limit 64"]),
    "tensor name ../x": (info("../x", [1], F32, 0), InvalidModelFile, ["tensor 0", "path", "'../x'", "At byte 24"]),
    "tensor name a\\b": (info("a\\b", [1], F32, 0), InvalidModelFile, ["tensor 0", "path", "At byte 24"]),
    "tensor name with NUL": (info("a\0", [1], F32, 0), InvalidModelFile, ["tensor 0", "control", "At byte 24"]),
    "tensor name not UTF-8": (info(b"\x80", [1], F32, 0), InvalidModelFile, ["tensor 0", "UTF-8", "At byte 32"]),
    "tensor name 2^63": (
        RawGGUF().info(raw_string(b"x" * 40, length=BIG)), InvalidModelFile, ["tensor 0", str(BIG), "limit 64"],
    ),
    "tensor twice": (two_tensors(name="a"), InvalidModelFile, ["'a'", "twice", "At byte 57", "byte 24"]),
    "0 dimensions": (info("t" * 16, [], F32, 0), InvalidModelFile, ["dimensions", "0, limit 1 to 4", "At byte 48"]),
    "5 dimensions": (info("t", [1] * 5, F32, 0), InvalidModelFile, ["dimensions", "'t'", "5, limit 1 to 4"]),
    "2^32-1 dimensions": (info("t", [1], F32, 0, n_dims=2**32 - 1), InvalidModelFile, ["dimensions", "4294967295"]),
    "dimension 0": (info("t", [32, 0], F32, 0), InvalidModelFile, ["dimension 1", "'t'", "0, for", "At byte 45"]),
    "dimension -1": (info("t", [2**64 - 1], F32, 0), InvalidModelFile, ["dimension 0", str(2**64 - 1), "limit"]),
    "elements wrap to 4": (
        info("t", [4194305, 4194305, 211106198978564], F32, 0), InvalidModelFile, ["dimension 1", "4194305", "limit"],
    ),
    "elements wrap to 0": (info("t", [1 << 32, 1 << 32], F32, 0), InvalidModelFile, ["dimension 1", "limit"]),
    "type 4": (info("t", [32], 4, 0), UnsupportedModel, ["'t'", "removed", "Q4_2", "At byte 45"]),
    "type 5": (info("t", [32], 5, 0), UnsupportedModel, ["'t'", "removed", "Q4_3"]),
    "type 31": (info("t", [32], 31, 0), UnsupportedModel, ["'t'", "removed", "Q4_0_4_4"]),
    "type 43": (info("t", [32], 43, 0), UnsupportedModel, ["'t'", "quantisation", "unknown", "43", "At byte 45"]),
    "type 2^32-1": (info("t", [32], 2**32 - 1, 0), UnsupportedModel, ["'t'", "unknown", str(2**32 - 1)]),
    "offset unaligned": (
        RawGGUF(data=bytes(99)).info(raw_tensor_info("t", [1], F32, 1)), InvalidModelFile,
        ["offset", "'t'", "not aligned", "At byte 49", "1, limit"],
    ),
    "offset unaligned to the file's": (
        aligned(64).info(raw_tensor_info("t", [1], F32, 32)), InvalidModelFile, ["not aligned", "multiples of 64"],
    ),
    "offset beyond the file": (
        RawGGUF().tensor(offset=1 << 20), InvalidModelFile, ["'t'", "beyond the file", "At byte 24", "limit 192"],
    ),
    "offset 2^64-32": (RawGGUF().tensor(offset=2**64 - 32), InvalidModelFile, ["'t'", "beyond the file"]),
    "tensors overlap": (two_tensors(name="b", offset=96), InvalidModelFile, ["'b'", "overlaps", "'a'", "At byte 57"]),
    "tensors at one place": (two_tensors(name="b", offset=0), InvalidModelFile, ["overlaps"]),
    "last tensor short by 1": (cut(good_raw(), 1), InvalidModelFile, ["'blk.0.attn_q.weight'", "beyond the file"]),
    "trailing data": (RawGGUF(trailing=bytes(2 * MIB)).tensor(), InvalidModelFile, ["no tensor", "limit"]),
    "hole": (
        RawGGUF(data=bytes(4 * MIB)).info(raw_tensor_info("a", [MIB // 2], F32, 0)), InvalidModelFile,
        ["unused", "no tensor", f"{2 * MIB} bytes of"],
    ),
}  # fmt: skip


def build(source):
    source = source() if callable(source) else source
    return source if isinstance(source, bytes) else source.build()


@pytest.mark.parametrize("case", REFUSALS)
def test_malformed_file_is_refused(case, tmp_path):
    source, error, named = REFUSALS[case]
    path = tmp_path / "bad.gguf"
    path.write_bytes(build(source))
    started = time.process_time()
    message = refusal(path, error)
    seconds = time.process_time() - started
    # Apart from the time, because tracing makes it several times slower.
    tracemalloc.start()
    assert refusal(path, error) == message
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    for fragment in ["bad.gguf", "At byte", "limit", *named]:
        assert fragment in message
    assert "\x1b" not in message
    assert len(message) < 600
    assert seconds <= 2
    assert peak <= 64 * MIB
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("type_id", gguf_types.GGML_TYPES)
def test_tensor_larger_than_the_file_is_refused_in_every_type(type_id, tmp_path):
    path = info("t", [1 << 20, 1 << 20], type_id, 0).write(tmp_path / "bad.gguf")
    assert "beyond the file" in refusal(path, InvalidModelFile)


@pytest.mark.parametrize("type_id", [key for key, value in gguf_types.GGML_TYPES.items() if value.items > 1])
def test_row_of_half_a_block_is_refused_in_every_type(type_id, tmp_path):
    block = gguf_types.GGML_TYPES[type_id]
    path = info("t", [block.items // 2, 2], type_id, 0).write(tmp_path / "bad.gguf")
    message = refusal(path, InvalidModelFile)
    assert "whole blocks" in message
    assert f"multiples of {block.items} for {block.name}" in message


def test_header_over_its_limit_is_refused(tmp_path):
    size = gguf_source.MAX_HEADER_BYTES // 4
    arrays = [raw_kv(f"k{index}", ARRAY, u32(UINT64) + u64(size // 8) + bytes(size)) for index in range(4)]
    path = RawGGUF(kvs=arrays).write(tmp_path / "bad.gguf")
    message = refusal(path, InvalidModelFile)
    assert "header is too large" in message
    assert f"limit {32 * MIB}" in message


# --- good files -----------------------------------------------------------------------------------


def same_as_library(path):
    """Assert that gguf's own reader sees what `read_header` saw; return the latter."""
    header, library = read_header(path), gguf.GGUFReader(path)
    fields = {key: value.contents() for key, value in library.fields.items() if not key.startswith("GGUF.")}
    assert header.metadata == fields
    assert list(header.metadata) == list(fields)
    assert [type(value) for value in header.metadata.values()] == [type(value) for value in fields.values()]
    assert [(t.name, t.shape, t.type_id, t.type_name, t.offset, t.nbytes) for t in header.tensors.values()] == [
        (t.name, tuple(t.shape), t.tensor_type, t.tensor_type.name, t.data_offset, t.n_bytes) for t in library.tensors
    ]
    assert [t.elements for t in header.tensors.values()] == [t.n_elements for t in library.tensors]
    assert (header.alignment, header.data_offset) == (library.alignment, library.data_offset)
    assert header.file_size == path.stat().st_size
    return header


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weight_type": "F32", "embedding_type": "F16", "tied": False},
        {"weight_type": "Q4_0", "types": {"blk.1.attn_v.weight": "Q8_0"}, "rope_freqs": True},
        {"extra_metadata": {"general.alignment": 8}},
        {"extra_metadata": {"general.alignment": 4096, "a.large": 1 << 40, "a.list": [0.5, 1.0]}},
    ],
    ids=["default", "floats", "mixed", "alignment 8", "alignment 4096"],
)
def test_written_file_reads_as_with_the_gguf_library(options, tmp_path):
    write_llama_gguf(tmp_path / "good.gguf", **options)
    header = same_as_library(tmp_path / "good.gguf")
    assert header.version == 3
    assert header.tensors["token_embd.weight"].shape == (64, 419)


@pytest.mark.parametrize("version", [2, 3])
def test_every_value_type_reads_as_with_the_gguf_library(version, tmp_path):
    raw = good_raw()
    raw.version = version
    header = same_as_library(raw.write(tmp_path / "good.gguf"))
    assert header.version == version
    assert header.metadata["test.type10"] == 1 << 63
    assert header.metadata["test.type7"] is True
    assert header.metadata["test.bools"] == [True, False]
    assert header.metadata["test.strings"] == ["Ġa", "b", ""]


def test_link_to_a_file_is_followed(tmp_path):
    good_raw().write(tmp_path / "good.gguf")
    (tmp_path / "link.gguf").symlink_to("good.gguf")
    assert len(read_header(tmp_path / "link.gguf").tensors) == 3


def test_single_part_of_a_split_is_a_whole_model(tmp_path):
    raw = good_raw().kv("split.count", UINT16, 1)
    assert read_header(raw.write(tmp_path / "good.gguf")).get_int("split.count") == 1


def test_tensor_order_on_disk_is_free(tmp_path):
    raw = RawGGUF(data=bytes(256)).info(raw_tensor_info("b", [32], F32, 128)).info(raw_tensor_info("a", [32], F32, 0))
    header = read_header(raw.write(tmp_path / "good.gguf"))
    assert [header.tensors[name].offset - header.data_offset for name in "ab"] == [0, 128]


def test_limits_admit_a_vocabulary_of_262144_tokens_and_514906_merges():
    strings = 262_144 + 514_906
    assert 2 * strings <= gguf_reader.MAX_STRING_ITEMS
    assert 2 * (strings + 2 * 262_144) <= gguf_types.MAX_ARRAY_ITEMS
    assert 2 * 20 * strings <= gguf_source.MAX_HEADER_BYTES


def test_representation_stays_short(tmp_path):
    write_llama_gguf(tmp_path / "good.gguf")
    assert len(repr(read_header(tmp_path / "good.gguf"))) < 500
