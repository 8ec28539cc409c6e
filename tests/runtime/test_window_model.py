"""Models with a sliding window: fewer rows of the cache than tokens, and the bits of a cache that has them all."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from edge_rt.errors import VersionMismatch
from edge_rt.export import export_model
from edge_rt.ort.binding import StopSwitch
from edge_rt.ort.session import Session, pool_size
from edge_rt.package.manifest import KV_FORMATS
from edge_rt.package.reader import open_package
from edge_rt.runtime.forward.io_binding import open_io_binding
from edge_rt.runtime.forward.io_binding_native import NativeIOBinding
from edge_rt.runtime.forward.io_binding_portable import PortableIOBinding
from edge_rt.runtime.forward.runner import ModelRunner
from edge_rt.system.machine import usable_cpus
from tests.helpers.examples import share_of
from tests.helpers.gguf_factory import write_llama_gguf
from tests.helpers.graphs import Built
from tests.helpers.models import load_package
from tests.helpers.native_profile import require_native
from tests.helpers.passes import Passes, same_bits
from tests.helpers.portable_profile import require_portable_windows, windows_refusal
from tests.helpers.small import GREEDY

WINDOW = 24
CONTEXT = 320
LARGEST_PASS = 40
TOKEN_IDS = [(5 + 41 * i) % 419 for i in range(300)]
PROMPT = "The little boat left the harbour at dawn, and the sea was calm. " * 4
FORMATS = KV_FORMATS["native"]


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    require_native()
    folder = tmp_path_factory.mktemp("window")
    metadata = {"llama.attention.sliding_window": WINDOW}
    write_llama_gguf(folder / "m.gguf", context=CONTEXT, extra_metadata=metadata)
    export_model(folder / "m.gguf", folder / "p", profile="native")
    return folder / "p"


def opened(package, kv_format, largest_pass=LARGEST_PASS):
    manifest = open_package(package).manifest
    return Passes(open_io_binding(manifest, CONTEXT, kv_format, largest_pass=largest_pass), package / "model.onnx")


@pytest.fixture(scope="module", params=FORMATS)
def model(request, package):
    return opened(package, request.param)


@pytest.fixture(scope="module")
def whole(model, package):
    """Logits of every token, computed with a row for every position."""
    plain = opened(package, model.interface.kv_format, largest_pass=CONTEXT)
    assert plain.interface.window.capacity == CONTEXT
    return plain.append_in(64, TOKEN_IDS)


@pytest.fixture(autouse=True)
def empty(request):
    if "model" in request.fixturenames:
        request.getfixturevalue("model").cache.truncate(0)


def test_the_cache_holds_the_window_and_the_largest_pass(model):
    rows = 64  # 24 + 40
    assert [buffer.shape[2] for buffer in model.interface.buffers] == [rows] * 2
    assert model.interface.row_map is None
    assert model.interface.cache_bytes == model.interface.row_bytes * rows


@pytest.mark.parametrize("size", [1, 3, 16, 17, 40])
def test_passes_of_any_size(model, whole, size):
    same_bits(model.append_in(size, TOKEN_IDS), whole)


def test_rolled_back_to_every_position_and_computed_again(model, whole):
    kept = set()
    # Where rows lie does not depend on what a row holds: one format at every position, the others at some.
    lengths = range(150) if model.interface.kv_format == FORMATS[0] else (*range(0, 150, 10), 108, 109, 149)
    for length in lengths:
        model.cache.truncate(0)
        model.append_in(25, TOKEN_IDS[:150])
        start = model.cache.truncate(length)
        kept.add(start)
        assert start in (0, length)
        same_bits(model.append_in(8, TOKEN_IDS[start:180]), whole[start:180])
    # 64 rows, 150 tokens: 86 positions are lost, and behind 109 tokens the next one sees position 86.
    assert kept == {0, *(length for length in lengths if length >= 109)}


@settings(max_examples=share_of(20))
@given(st.data())
def test_trees_and_rollbacks_leave_no_trace(package, data):
    model, plain = opened(package, "int8"), opened(package, "int8", largest_pass=CONTEXT)
    for _ in range(data.draw(st.integers(1, 30))):
        count = data.draw(st.integers(1, 12))
        if model.cache.length + count > CONTEXT:
            break
        token_ids = data.draw(st.lists(st.integers(3, 418), min_size=count, max_size=count))
        parents = [data.draw(st.integers(-1, row - 1)) for row in range(count)]
        path = [data.draw(st.integers(0, count - 1))]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        same_bits(model.tree(token_ids, parents, path), plain.tree(token_ids, parents, path))
        if data.draw(st.integers(0, 4)) == 0:
            kept = model.cache.truncate(max(0, model.cache.length - data.draw(st.integers(0, 20))))
            plain.cache.truncate(kept)


@pytest.mark.parametrize("kv_format", FORMATS)
def test_speculative_answers_are_the_plain_ones(package, kv_format):
    accepted = 0
    for sampling in (GREEDY, {"temperature": 0.7, "seed": 5}):
        answers = []
        for spec, chunk in (("off", 300), ("off", 7), ("suffix", 16)):
            with load_package(package, kv=kv_format, spec=spec, prefill_chunk=chunk) as model:
                # The second time what is still in the cache is not computed again.
                results = [model.generate(PROMPT, max_tokens=150, **sampling) for _ in range(2)]
                answers += [result.token_ids for result in results]
                accepted += sum(result.spec.draft_n_accepted for result in results if result.spec is not None)
        assert answers == answers[:1] * 6
    assert accepted > 0


def test_a_conversation_computes_what_the_window_has_lost(package):
    with load_package(package, prefill_chunk=16, spec="off", draft_max=7) as model:
        first = model.generate(TOKEN_IDS[:100], max_tokens=5, **GREEDY)
        follow = [*TOKEN_IDS[:100], *first.token_ids, 7, 8, 9]
        near = model.generate(follow, max_tokens=5, **GREEDY)
        assert near.usage.cached_tokens == 104
        # The end is taken back, and most of the text.
        far = model.generate([*TOKEN_IDS[:50], 11], max_tokens=5, **GREEDY)
        assert far.usage.cached_tokens == 0
        model.reset()
        assert model.generate([*TOKEN_IDS[:50], 11], max_tokens=5, **GREEDY).token_ids == far.token_ids
        model.reset()
        assert model.generate(follow, max_tokens=5, **GREEDY).token_ids == near.token_ids
    bytes_per_token = 2 * 2 * 2 * 18
    assert far.memory.kv_bytes == 55 * bytes_per_token
    assert near.memory.kv_bytes == 64 * bytes_per_token


def every_other_layer_has_it(decoder):
    """Return a description in which every other layer has the window."""
    (kind,) = decoder.kinds
    windowed = dataclasses.replace(kind, attention=dataclasses.replace(kind.attention, window=WINDOW))
    pattern = tuple(layer % 2 for layer in range(decoder.num_layers))
    return dataclasses.replace(decoder, kinds=(kind, windowed), pattern=pattern)


def test_layers_with_and_without_a_window(tmp_path):
    """And each in a format of its own: a graph has both kinds of map, bits are those of a row for every position."""
    require_native()
    write_llama_gguf(tmp_path / "m.gguf", layers=3, context=CONTEXT)
    built = Built(
        tmp_path / "m.gguf", tmp_path, "int8", profile="native",
        change_decoder=every_other_layer_has_it,
    )  # fmt: skip
    formats = ("f16", "int8", "f32")

    def interface(largest_pass):
        return NativeIOBinding(built.used, CONTEXT, formats, largest_pass=largest_pass)

    ring, plain = (Passes(interface(size), built.graph) for size in (LARGEST_PASS, CONTEXT))
    assert [buffer.shape for buffer in ring.interface.buffers] == [
        (2, 2, CONTEXT, 32), (2, 2, 64, 18), (2, 2, CONTEXT, 64),
    ]  # fmt: skip
    expected = plain.append_in(40, TOKEN_IDS)
    same_bits(ring.append_in(7, TOKEN_IDS), expected)
    assert ring.cache.truncate(290) == 290
    tree = ([3, 4, TOKEN_IDS[290], TOKEN_IDS[291]], [-1, 0, -1, 2])
    same_bits(ring.tree(*tree, path=[2, 3])[2:], expected[290:292])
    same_bits(ring.append_in(3, TOKEN_IDS[292:]), expected[292:])
    assert ring.cache.truncate(200) == 0
    same_bits(ring.append_in(9, TOKEN_IDS), expected)


def test_portable_packages_mask_what_is_not_seen(tmp_path):
    """In passes of any size, over a cache that has all rows."""
    require_portable_windows()
    metadata = {"llama.attention.sliding_window": WINDOW}
    write_llama_gguf(tmp_path / "m.gguf", context=CONTEXT, extra_metadata=metadata)
    built = Built(tmp_path / "m.gguf", tmp_path)
    expected = built.reference(TOKEN_IDS)
    for size in (300, 33, 1):
        session = Session(built.graph, threads=pool_size() or usable_cpus(), profile="portable")
        interface = PortableIOBinding(built.used, CONTEXT, "f32")
        assert interface.window is None
        runner, parts = ModelRunner(session, interface, StopSwitch()), []
        for start in range(0, 300, size):
            token_ids = TOKEN_IDS[start : start + size]
            parts.append(runner.forward(token_ids, start, len(token_ids)).logits.copy())
        errors = np.abs(np.concatenate(parts) - expected).max(axis=1) / expected.std(axis=1)
        assert errors.max() < 1e-4


def test_portable_packages_load_only_where_the_window_is_right(small_package, tmp_path):
    folder = Path(shutil.copytree(small_package, tmp_path / "p"))
    manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    manifest["decoder"]["kinds"][0]["attention"]["window"] = WINDOW
    (folder / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    refusal = windows_refusal()
    if refusal is None:
        with load_package(folder) as model:
            assert model.generate(PROMPT, max_tokens=1, **GREEDY).usage.completion_tokens == 1
        return
    with pytest.raises(VersionMismatch, match=r"sees one token too many\. The window is of 24 tokens") as caught:
        load_package(folder)
    assert (caught.value.what, caught.value.action) == (refusal.what, refusal.action)
