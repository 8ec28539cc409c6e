"""Whatever a GGUF file holds, reading its header ends soon, within its memory, and without a crash."""

import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from edge_rt.errors import InputError, InvalidModelFile
from edge_rt.export.sources import gguf_reader
from edge_rt.export.sources.gguf_header import read_header
from tests.export.sources.refusal import refusal
from tests.helpers.examples import share_of
from tests.helpers.gguf_factory import (
    ARRAY,
    BOOL,
    FLOAT64,
    INT32,
    Q4_1,
    STRING,
    RawGGUF,
    good_raw,
    raw_kv,
    raw_string,
    u32,
    u64,
    write_llama_gguf,
)

REPOSITORY = Path(__file__).parents[3]
MIB = 1 << 20
BIG = 1 << 63

# --- truncation, mutation -------------------------------------------------------------------------


def test_cut_anywhere_is_refused(tmp_path):
    good = tmp_path / "good.gguf"
    write_llama_gguf(good)
    data = good.read_bytes()
    header = read_header(good)
    end = max(tensor.offset + tensor.nbytes for tensor in header.tensors.values())
    rng = random.Random(1)
    in_header = rng.sample(range(65, header.data_offset), 60)
    for length in [*range(65), *in_header, *rng.sample(range(header.data_offset, end), 40), end - 1]:
        bad = tmp_path / "bad.gguf"
        bad.write_bytes(data[:length])
        refusal(bad, InvalidModelFile)


NUMBERS = [0, 1, 2, 7, 32, 255, 1 << 16, 1 << 31, 1 << 32, 1 << 40, BIG - 1, BIG, 2**64 - 1]
EDITS = st.one_of(
    st.tuples(st.just("byte"), st.integers(0, 1200), st.integers(0, 255)),
    st.tuples(st.just("u32"), st.integers(0, 1200), st.sampled_from(NUMBERS)),
    st.tuples(st.just("u64"), st.integers(0, 1200), st.sampled_from(NUMBERS)),
    st.tuples(st.just("drop"), st.integers(0, 1200), st.integers(1, 40)),
    st.tuples(st.just("double"), st.integers(0, 1200), st.integers(1, 40)),
    st.tuples(st.just("cut"), st.integers(0, 2000), st.just(0)),
)


def mutated(data, edits):
    data = bytearray(data)
    for kind, at, value in edits:
        if kind == "byte":
            data[at : at + 1] = bytes([value])
        elif kind == "u32":
            data[at : at + 4] = u32(value & 0xFFFFFFFF)
        elif kind == "u64":
            data[at : at + 8] = u64(value)
        elif kind == "drop":
            del data[at : at + value]
        elif kind == "double":
            data[at:at] = data[at : at + value]
        else:
            del data[at:]
    return bytes(data)


def read_or_refused(path):
    """Return the header, or None where it is refused; any other exception fails the test."""
    try:
        return read_header(path)
    except InputError:
        return None


@settings(max_examples=share_of(400))
@given(st.lists(EDITS, min_size=1, max_size=4))
def test_mutated_file_is_read_or_refused(edits):
    data = mutated(good_raw().build(), edits)
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(data)
        file.flush()
        started = time.process_time()
        header = read_or_refused(Path(file.name))
        if header is not None:
            assert header.metadata.keys() == header.values.keys()
            assert all(tensor.offset + tensor.nbytes <= len(data) for tensor in header.tensors.values())
        assert time.process_time() - started < 1


@settings(max_examples=share_of(100))
@given(st.binary(max_size=200))
def test_random_bytes_after_the_magic_are_read_or_refused(data):
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(b"GGUF" + u32(3) + data)
        file.flush()
        header = read_or_refused(Path(file.name))
        assert header is None or len(header.tensors) <= len(data)


# --- time and memory ------------------------------------------------------------------------------


def test_costliest_refused_file_stays_within_seconds_and_64_mib(tmp_path):
    strings = gguf_reader.MAX_STRING_ITEMS
    text = raw_kv("text", STRING, raw_string("x" * (MIB - 4) + "\U0001f600"))
    costly = u32(STRING) + u64(strings) + (u64(4) + "\U0001f600".encode()) * strings
    rest = 10 * MIB // 8
    numbers = raw_kv("numbers", ARRAY, u32(FLOAT64) + u64(rest) + bytes(8 * rest))
    path = RawGGUF(kvs=[text, raw_kv("strings", ARRAY, costly), numbers]).kv("k", BOOL, 2).write(tmp_path / "bad.gguf")
    assert path.stat().st_size > 28 * MIB
    # A process of its own: its peak resident memory is the measure, and shows that no library is needed.
    program = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from edge_rt.export.sources.gguf_header import read_header\n"
        "from edge_rt.system.process_memory import peak_rss_bytes\n"
        "before, start = peak_rss_bytes(), time.process_time()\n"
        "try:\n"
        "    read_header(Path(sys.argv[1]))\n"
        "except Exception as error:\n"
        "    after, end = peak_rss_bytes(), time.process_time()\n"
        "    print(type(error).__name__, end - start, after - before, 'numpy' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    name, seconds, extra_bytes, numpy_loaded = done.stdout.split()
    assert name == "InvalidModelFile"
    # A tenth of that on an idle machine; processor time as well grows where two threads share a core.
    assert float(seconds) <= 6
    assert int(extra_bytes) <= 64 * MIB
    assert numpy_loaded == "False"


def test_header_of_a_real_vocabulary_is_read_at_once(tmp_path):
    tokens = [f"Ġtoken{index}" for index in range(50_000)]
    raw = RawGGUF().array("tokenizer.ggml.tokens", STRING, tokens)
    raw.array("tokenizer.ggml.token_type", INT32, [1] * len(tokens))
    raw.array("tokenizer.ggml.merges", STRING, [f"Ġto ken{index}" for index in range(49_000)])
    path = raw.tensor("token_embd.weight", (32, 50_000), Q4_1).write(tmp_path / "large.gguf")
    started = time.process_time()
    header = read_header(path)
    assert time.process_time() - started < 0.5
    assert header.get_list("tokenizer.ggml.tokens", str) == tokens


# --- sparse files -------------------------------------------------------------------------------


@pytest.mark.parametrize("raw", [RawGGUF(), good_raw()], ids=["no tensors", "good header"])
def test_sparse_file_of_100_gb_is_refused(raw, tmp_path):
    path = raw.write(tmp_path / "sparse.gguf")
    os.truncate(path, 100 << 30)
    started = time.process_time()
    assert "most of the file belongs to no tensor" in refusal(path, InvalidModelFile)
    assert time.process_time() - started < 1


def test_sparse_file_of_zeros_is_refused(tmp_path):
    path = tmp_path / "sparse.gguf"
    path.touch()
    os.truncate(path, 100 << 30)
    assert "not a GGUF file" in refusal(path, InvalidModelFile)
