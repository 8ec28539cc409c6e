"""Reads headers made up at random, good and bad ones: of GGUF, of safetensors, and the index of several files.

One million of each unless told otherwise. Good ones must be read as they were written; bad ones, in which one or two
things are wrong, must raise an error of edge-rt and nothing else, or give tensors that lie inside their file. Reading
one takes less than 2 s, and all of them together no more than 64 MiB. Not part of CI, where
``tests/export/sources/test_headers_at_random.py`` runs fewer::

    python -m tests.fuzz_headers [--runs N] [--seed N] [gguf] [safetensors] [index]
"""

from __future__ import annotations

import argparse
import json
import math
import random
import signal
import struct
import tempfile
import time
from collections import Counter
from pathlib import Path

from edge_rt.errors import EdgeRTError, StorageError
from edge_rt.export.sources.gguf_header import read_header
from edge_rt.export.sources.gguf_types import GGML_TYPES
from edge_rt.export.sources.safetensors_folder import DTYPE_BYTES, read_folder
from edge_rt.system.process_memory import peak_rss_bytes
from tests.helpers.gguf_factory import (
    ARRAY,
    BOOL,
    FLOAT32,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    RawGGUF,
    raw_array,
    raw_kv,
    raw_scalar,
    raw_string,
    raw_tensor_info,
    u32,
    u64,
)

LIMIT_S = 2
LIMIT_BYTES = 64 << 20
LIES = (
    0,
    1,
    2,
    3,
    7,
    31,
    33,
    255,
    4097,
    65_536,
    1 << 22,
    1 << 31,
    (1 << 32) - 1,
    1 << 40,
    (1 << 63) - 1,
    (1 << 64) - 1,
)
TEXTS = ("", "a", "Ġthe", "\U0001f600", "x" * 300, "blk.0.attn_q.weight", "general.alignment", "\0", "a\nb")
VALUES = {
    UINT8: (0, 255), INT8: (-128, 127), UINT16: (0, 65_535), INT16: (-32_768, 32_767), UINT32: (0, 2**32 - 1),
    INT32: (-(2**31), 2**31 - 1), UINT64: (0, 2**64 - 1), INT64: (-(2**63), 2**63 - 1),
}  # fmt: skip
SHAPES = ((), (0,), (1,), (7,), (32,), (3, 2), (2, 0, 5), (1, 1, 1, 1))


class TooSlow(BaseException):
    """An input took longer than the limit; no ``except Exception`` hides it."""


def too_slow(number, frame):
    raise TooSlow(f"more than {LIMIT_S} s of processor time")


# --- GGUF -----------------------------------------------------------------------------------------


def scalar(rng, kind):
    if kind in VALUES:
        return rng.choice([0, 1, rng.randint(*VALUES[kind])])
    return {BOOL: rng.random() < 0.5, STRING: rng.choice(TEXTS)}.get(kind, rng.choice([0.0, -1.5, 1024.0]))


def good_gguf(rng):
    """Return a well-formed file, its metadata, and shapes by name of its tensors."""
    raw, metadata, shapes = RawGGUF(), {}, {}
    if rng.random() < 0.3:
        raw.alignment = rng.choice([8, 16, 64, 4096])
        raw.kv("general.alignment", UINT32, raw.alignment)
        metadata["general.alignment"] = raw.alignment
    for number in range(rng.randint(0, 6)):
        key, kind = f"test.key{number}", rng.randrange(13)
        if kind == ARRAY:
            item = rng.choice([kind for kind in range(13) if kind != ARRAY])
            metadata[key] = [scalar(rng, item) for _ in range(rng.choice([0, 1, 5, 60]))]
            raw.array(key, item, metadata[key])
        else:
            metadata[key] = scalar(rng, kind)
            raw.kv(key, kind, metadata[key])
    for number in range(rng.randint(0, 4)):
        type_id = rng.choice(list(GGML_TYPES))
        dims = (GGML_TYPES[type_id].items * rng.randint(1, 2), *(rng.randint(1, 3) for _ in range(rng.randint(0, 3))))
        place(raw, f"t{number}", dims, type_id)
        shapes[f"t{number}"] = dims
    return raw, metadata, shapes


def place(raw, name, dims, type_id):
    """Add a tensor of zeros."""
    raw.data += bytes(-len(raw.data) % raw.alignment)
    raw.infos.append(raw_tensor_info(name, dims, type_id, len(raw.data)))
    raw.data += bytes(math.prod(dims) // GGML_TYPES[type_id].items * GGML_TYPES[type_id].size)


def lying_entry(rng):
    """Return a metadata entry in which something is wrong, or that is rare."""
    kind, lie = rng.randrange(7), rng.choice(LIES)
    if kind == 0:
        return raw_kv("lie", STRING, raw_string("text", length=lie))
    if kind == 1:
        return raw_kv("lie", ARRAY, raw_array(rng.choice([UINT8, STRING, FLOAT64, BOOL]), [1] * 0, length=lie))
    if kind == 2:
        return raw_kv("lie", ARRAY, u32(ARRAY) + u64(lie) + u32(UINT8) + u64(0))
    if kind == 3:
        return raw_kv("lie", lie & 0xFFFFFFFF, bytes(8))
    if kind == 4:
        return raw_kv(rng.choice([b"", b"\xff\xfe", "test.key0", "k" * 70_000]), FLOAT32, raw_scalar(FLOAT32, math.nan))
    if kind == 5:
        return raw_kv("lie", BOOL, bytes([rng.randrange(256)]))
    return raw_kv("lie", INT16, raw_scalar(INT16, 1), key_length=lie)


def spoil_gguf(rng, raw):
    """Make one thing wrong in the parts of a file; return what."""
    kind = rng.choice(["counts", "entry", "info", "alignment", "version", "data", "trailing"])
    if kind == "counts":
        name = rng.choice(["n_tensors", "n_kv"])
        setattr(raw, name, rng.choice(LIES))
    elif kind == "entry":
        raw.raw(lying_entry(rng))
    elif kind == "info":
        dims = [rng.choice(LIES) for _ in range(rng.randint(0, 5))]
        type_id = rng.choice([*GGML_TYPES, 4, 5, 31, 99, (1 << 32) - 1])
        count = rng.choice([None, *(lie & 0xFFFFFFFF for lie in LIES)])
        name = rng.choice(["lie", "t0", b"", b"\xff", "n" * 65])
        raw.info(raw_tensor_info(name, dims, type_id, rng.choice(LIES), n_dims=count))
    elif kind == "alignment":
        raw.kv("general.alignment", rng.choice([UINT32, UINT64, INT32]), rng.choice([0, 1, 3, 24, 1 << 20]))
    elif kind == "version":
        raw.version = rng.choice([0, 1, 2, 4, 3 << 24, 0xFFFFFFFF])
    elif kind == "data":
        raw.data = raw.data[: rng.randint(0, len(raw.data))]
    else:
        raw.trailing = bytes(rng.choice([1, 31, 33, 5000]))
    return kind


def spoil_bytes(rng, content):
    """Change, cut or double some bytes; return what is left."""
    data = bytearray(content)
    at = rng.randrange(min(len(data), 2000) or 1)
    kind = rng.randrange(5)
    if kind == 0:
        data[at : at + 1] = bytes([rng.randrange(256)])
    elif kind == 1:
        data[at : at + 8] = u64(rng.choice(LIES))
    elif kind == 2:
        data[at : at + 4] = u32(rng.choice(LIES) & 0xFFFFFFFF)
    elif kind == 3:
        del data[at : at + rng.choice([1, 4, 8, len(data)])]
    else:
        data[at:at] = data[at : at + rng.randint(1, 40)]
    return bytes(data)


def run_gguf(rng, folder):
    """Read one file; return what it was and what became of it."""
    raw, metadata, shapes = good_gguf(rng)
    kind = "good" if rng.random() < 0.3 else rng.choice(["parts", "bytes", "both"])
    what = kind
    if kind in ("parts", "both"):
        what = spoil_gguf(rng, raw)
    content = raw.build()
    if kind in ("bytes", "both"):
        content, what = spoil_bytes(rng, content), f"{what} and bytes" if kind == "both" else kind
    path = folder / "m.gguf"
    path.write_bytes(content)
    header = guarded(lambda: read_header(path))
    if header is None:
        assert kind != "good"
        return f"{what}: refused"
    assert all(tensor.offset + tensor.nbytes <= len(content) for tensor in header.tensors.values())
    if kind == "good":
        assert header.metadata == metadata, (header.metadata, metadata)
        assert {name: tensor.shape for name, tensor in header.tensors.items()} == shapes
    else:
        # What is an array stays bytes until it is asked for.
        guarded(lambda: dict(header.metadata))
    return f"{what}: read"


# --- safetensors ----------------------------------------------------------------------------------


def good_entries(rng, first):
    """Return the entries of a file, and how many bytes its data has."""
    entries, at = {}, 0
    for number in range(rng.randint(1, 4)):
        dtype, shape = rng.choice(list(DTYPE_BYTES)), rng.choice(SHAPES)
        size = math.prod(shape) * DTYPE_BYTES[dtype]
        entries[f"{first}{number}"] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    return entries, at


WRONG = (
    None,
    -1,
    1 << 40,
    1 << 70,
    1.0,
    0.5,
    True,
    "",
    "F4",
    [],
    {},
    [[]],
    [0],
    [0, 1, 2],
    [-1, 3],
    [1, 0],
    ["0", 1],
    "x" * 99,
)


def spoil_entries(rng, entries):
    """Make one thing wrong in the entries of a file, in place; return what."""
    name = rng.choice(list(entries))
    kind = rng.choice(["entry", "field", "missing field", "new field", "offsets", "metadata", "shape"])
    if kind == "entry":
        entries[name] = rng.choice(WRONG)
    elif kind == "metadata":
        entries["__metadata__"] = rng.choice([*WRONG, {"format": "pt"}, {"a": 1}])
    elif not isinstance(entries[name], dict):
        return "entry"
    elif kind == "field":
        entries[name][rng.choice(["dtype", "shape", "data_offsets"])] = rng.choice(WRONG)
    elif kind == "missing field":
        del entries[name][rng.choice(list(entries[name]))]
    elif kind == "new field":
        entries[name][rng.choice(["x", "Dtype"])] = 1
    elif kind == "offsets":
        entries[name]["data_offsets"] = [rng.choice([0, 1, 8, 24, 1 << 40]), rng.choice([0, 4, 24, 25, (1 << 64) - 1])]
    else:
        entries[name]["shape"] = [rng.choice([0, 1, 3, -1, 1 << 20, 1 << 41]) for _ in range(rng.randint(0, 10))]
    return kind


def file_of(rng, entries, size, *, is_good):
    """Return a file of safetensors; a bad one may lie about its length or lack bytes."""
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    length = rng.choice(LIES) if not is_good and rng.random() < 0.2 else len(text)
    return struct.pack("<Q", length) + text + bytes(size)


def run_safetensors(rng, folder):
    """Read one file; return what it was and what became of it."""
    entries, size = good_entries(rng, "t")
    kind = "good" if rng.random() < 0.3 else rng.choice(["parts", "bytes", "size"])
    expected = {name: tuple(entry["shape"]) for name, entry in entries.items()}
    what = spoil_entries(rng, entries) if kind == "parts" else kind
    if kind == "size":
        size = max(0, size + rng.choice([-1, 1, 100]))
    content = file_of(rng, entries, size, is_good=kind in ("good", "bytes"))
    if kind == "bytes":
        content = spoil_bytes(rng, content)
    (folder / "model.safetensors").write_bytes(content)
    return outcome(folder, what, expected if kind == "good" else None)


def run_index(rng, folder):
    """Read an index and its one to three files; return what it was and what became of it."""
    expected, mapped = {}, {}
    kind = "good" if rng.random() < 0.3 else rng.choice(["map", "files", "document", "bytes"])
    for number in range(rng.randint(1, 3)):
        file = f"model-{number}.safetensors"
        entries, size = good_entries(rng, chr(97 + number))
        expected |= {name: tuple(entry["shape"]) for name, entry in entries.items()}
        mapped |= dict.fromkeys(entries, file)
        if kind == "files" and rng.random() < 0.6:
            spoil_entries(rng, entries)
        (folder / file).write_bytes(file_of(rng, entries, size, is_good=kind != "files"))
    if kind == "map":
        name = rng.choice([*mapped, "extra"])
        names = ["model-0.safetensors", "model-9.safetensors", "../x.safetensors", "/x.safetensors", "a\0.safetensors"]
        mapped[name] = rng.choice(
            [
                *names,
                "model.safetensors.index.json",
                ".safetensors",
                "é" * 200 + ".safetensors",
                "\ud800.safetensors",
                *WRONG,
            ]
        )
        if rng.random() < 0.3:
            mapped.pop(rng.choice(list(mapped)))
    document = {"weight_map": mapped}
    if kind == "document":
        document = rng.choice([[], {}, {"weight_map": rng.choice(WRONG)}, {"weight_map": {}}, "weight_map", 3, None])
    content = json.dumps(document).encode()
    if kind == "bytes":
        content = spoil_bytes(rng, content)
    (folder / "model.safetensors.index.json").write_bytes(content)
    return outcome(folder, kind, expected if kind == "good" else None)


def outcome(folder, what, expected):
    """Read a folder; return what became of it."""
    found = guarded(lambda: read_folder(folder))
    if found is None:
        assert expected is None
        return f"{what}: refused"
    sizes = [path.stat().st_size for path in found.paths]
    assert all(tensor.offset + tensor.nbytes <= sizes[tensor.file] for tensor in found.tensors.values())
    if expected is not None:
        assert {name: tensor.shape for name, tensor in found.tensors.items()} == expected
    return f"{what}: read"


# --- all ------------------------------------------------------------------------------------------


def guarded(read):
    """Return what ``read`` returns, or None where it refuses the input as it should."""
    refused = None
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    try:
        return read()
    except EdgeRTError as error:
        refused = error
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    # An input is wrong, or a file that it names cannot be opened.
    assert not isinstance(refused, StorageError) or "cannot be read" in refused.what, refused
    assert refused.what
    assert refused.numbers
    assert refused.action
    return None


KINDS = {"gguf": run_gguf, "safetensors": run_safetensors, "index": run_index}


def run(kind, runs, seed):
    """Return how often each kind of input came up; a fault is an exception."""
    counts = Counter()
    before = signal.signal(signal.SIGPROF, too_slow)
    try:
        with tempfile.TemporaryDirectory() as folder:
            for number in range(runs):
                try:
                    counts[KINDS[kind](random.Random(seed << 32 | number), Path(folder))] += 1
                except BaseException as error:
                    error.add_note(f"{kind}, seed {seed}, number {number}")
                    raise
                if number == min(1000, runs // 2):
                    began = peak_rss_bytes()
            grown = peak_rss_bytes() - began
    finally:
        signal.signal(signal.SIGPROF, before)
    assert grown <= LIMIT_BYTES, f"{kind}: memory grew by {grown} bytes"
    return counts


def main():
    """Run all kinds, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", default=tuple(KINDS))
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for kind in options.kinds:
        began, peak = time.monotonic(), peak_rss_bytes()
        counts = run(kind, options.runs, options.seed)
        grown = (peak_rss_bytes() - peak) / (1 << 20)
        print(
            f"{kind}: {options.runs} inputs, {time.monotonic() - began:.0f} s, {grown:.1f} MiB more memory", flush=True
        )
        for what, count in sorted(counts.items()):
            print(f"  {what:40} {count:7}", flush=True)


if __name__ == "__main__":
    main()
