"""Model families at run time: passes of any size, trees, windows that wrap around, every format of the cache."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from edge_rt.package.manifest import KV_FORMATS
from edge_rt.runtime.forward.io_binding_native import NativeIOBinding
from edge_rt.runtime.forward.io_binding_portable import PortableIOBinding
from tests.helpers.family_cases import load_case, write_folder
from tests.helpers.graphs import Built
from tests.helpers.native_profile import require_native
from tests.helpers.passes import Passes, same_bits
from tests.helpers.portable_profile import require_portable_windows

NAMES = (
    *(
        "qwen3_window",
        "llama_linear",
        "gemma3_text_other",
        "gemma2",
        "phi3_partial",
        "ministral3",
        "smollm3",
        "granite",
        "olmo3",
    ),
    *(
        "exaone4_window",
        "hunyuan_v1_dense",
        "stablelm",
        "stablelm_3b",
        "smollm3_window",
        "lfm2",
        "lfm2_bias",
        "gemma4_text",
        "gemma4_text_keys",
        "gemma4_text_experts",
    ),
)
CASES = {name: load_case(name) for name in NAMES}
FORMATS = KV_FORMATS["native"]
TOLERANCE = 1e-4
CONTEXT = 96
LARGEST_PASS = 16


def built(name, folder, profile):
    """Return a graph whose matrices are floats."""
    activations = "int8" if profile == "native" else "float"
    return Built(write_folder(folder / "folder", CASES[name]), folder, activations, profile=profile)


@pytest.fixture(scope="module", params=NAMES)
def model(request, tmp_path_factory):
    require_native()
    return CASES[request.param], built(request.param, tmp_path_factory.mktemp("m"), "native")


def passes(found, kv_format, largest_pass=LARGEST_PASS):
    """Return a runner; rows of layers with a window are used again where passes are short."""
    interface = NativeIOBinding(
        found.used, CONTEXT, kv_format, largest_pass=largest_pass
    )  # fmt: skip
    return Passes(interface, found.graph)


def error(logits, case):
    return float(np.abs(logits - case.logits).max() / np.abs(case.logits).max())


def tokens_of(case):
    return [int(token) for token in case.tokens]


@pytest.mark.parametrize("kv_format", FORMATS)
def test_passes_of_any_size_and_trees(model, kv_format):
    """Rows have the bits that they have alone, and floats are those of transformers."""
    case, found = model
    tokens = tokens_of(case)
    ring, plain = passes(found, kv_format), passes(found, kv_format, CONTEXT)
    expected = plain.append_in(len(tokens), tokens)
    # Longrope has other frequencies here: a context that is planned is not the length of a text.
    if kv_format == "f32" and not any(rope.long_frequencies for rope in found.used.ropes):
        assert error(expected, case) < TOLERANCE
    same_bits(ring.append_in(5, tokens[:30]), expected[:30])
    # Three levels, of which the path in the middle is the text.
    tree = [7, tokens[30], tokens[31], 9, tokens[32], 11]
    same_bits(ring.tree(tree, [-1, -1, 1, 1, 2, 2], path=[1, 2, 4])[[1, 2, 4]], expected[30:33])
    same_bits(ring.append_in(1, tokens[33:]), expected[33:])


@pytest.mark.parametrize(
    "name", ["gemma3_text_other", "phi3_partial", "ministral3", "hunyuan_v1_dense", "stablelm_3b", "llama_linear"]
)
def test_portable_passes(name, tmp_path):
    require_portable_windows()
    case, found = CASES[name], built(name, tmp_path, "portable")
    tokens = tokens_of(case)
    whole, parts = (Passes(PortableIOBinding(found.used, CONTEXT, "f32"), found.graph, "portable") for _ in range(2))
    expected = whole.append_in(len(tokens), tokens)
    logits = np.concatenate([parts.append_in(7, tokens[:35]), parts.append_in(1, tokens[35:])])
    assert np.abs(logits - expected).max() / np.abs(expected).max() < TOLERANCE


@pytest.mark.parametrize(("context", "length"), [("short", 16), ("long", 96)])
def test_longrope_goes_by_the_planned_context(tmp_path, context, length):
    require_native()
    case, found = CASES["phi3_partial"], built("phi3_partial", tmp_path, "native")
    (rope,) = found.used.ropes
    assert rope.short_context == 16
    chosen = rope.frequencies if context == "short" else rope.long_frequencies
    fixed = dataclasses.replace(
        found.used, ropes=(dataclasses.replace(rope, frequencies=chosen, long_frequencies=chosen),)
    )
    logits = [
        Passes(NativeIOBinding(decoder, length, "f32"), found.graph).append(tokens_of(case)[:14])
        for decoder in (found.used, fixed)
    ]
    same_bits(*logits)
