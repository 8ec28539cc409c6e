"""Models with short convolutions: every drafter gives plain texts, chats go back, and memory is what was planned."""

from __future__ import annotations

import functools

import pytest

from edge_rt.errors import InvalidPackage
from edge_rt.export import export_model
from edge_rt.memory.device import GENERIC_GPU, presets
from edge_rt.memory.plan import Request, make_plan
from edge_rt.package.kv_formats import KV_FORMAT
from edge_rt.package.reader import open_package
from edge_rt.runtime.forward.io_binding_native import NativeIOBinding
from tests.helpers.drafted_texts import PROMPT, check_drafted
from tests.helpers.family_cases import load_case, write_folder, write_gguf
from tests.helpers.models import load_package
from tests.helpers.native_profile import require_native
from tests.helpers.packages import copied, edit_manifest
from tests.helpers.small import FREE_ROWS, GREEDY

CASE = load_case("lfm2")
OPTIONS = {"profile": "native", "calibration": None, "accept_loss": True}


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """A package whose weights are nested, and one that is cut at exits."""
    require_native()
    folder = tmp_path_factory.mktemp("conv")
    source = write_folder(folder / "model", CASE)
    export_model(source, folder / "nested", weights="nested8", **OPTIONS)
    export_model(source, folder / "cut", weights="int8", exits=(1, 3), **OPTIONS)
    return folder


def test_a_file_becomes_the_package_of_the_folder(packages, tmp_path):
    write_gguf(tmp_path / "m.gguf", CASE)
    export_model(tmp_path / "m.gguf", tmp_path / "p", weights="nested8", **OPTIONS)
    weights = [folder / "weights.bin" for folder in (packages / "nested", tmp_path / "p")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        *(("nested", spec) for spec in ("suffix", "ngram", "recycling", "self", "auto")),
        ("cut", "exit"),
        ("cut", "auto"),
    ],
)
def test_drafted_texts_are_the_plain_ones(packages, name, spec):
    kv = "int4x2" if spec == "self" else "f16"
    with load_package(packages / name, spec=spec, kv=kv) as model:
        drafted, _ = check_drafted(model)
    assert drafted > 0


@pytest.mark.parametrize("name", ["nested", "cut"])
def test_a_manifest_with_convolutions_of_another_size_is_refused(packages, tmp_path, name):
    def change(document):
        for kind in document["decoder"]["kinds"]:
            if kind.get("short_conv") is not None:
                kind["short_conv"]["taps"] += 1

    found = copied(packages / name, tmp_path)
    edit_manifest(found, change)
    with pytest.raises(InvalidPackage, match=r"of layer 0 is not as large.* read \[3, 96\] .*not \[4, 96\]"):
        open_package(found)


def test_texts_are_gone_on_with_after_a_restart(packages, tmp_path):
    prompt = [(5 + (7 * i)) % 200 for i in range(300)]
    options = {"prefill_chunk": 32, "draft_max": 7, "ctx": 500, "prompt_cache": tmp_path / "prompts"}
    with load_package(packages / "nested", spec="off") as model:
        first = model.generate(prompt, max_tokens=90, **GREEDY)
        text = [*prompt, *first.token_ids, 9, 8, 7, 6]
        then = model.generate(text, max_tokens=8, logprobs=2, **GREEDY)
        other = model.generate([*prompt, 9], max_tokens=8, logprobs=2, **GREEDY)
    with load_package(packages / "nested", spec="suffix", **options) as model:
        # The ring has less than the answer when that ends.
        assert model._cache.largest_pass < 90
        model.speculation.costs = FREE_ROWS
        assert model.generate(prompt, max_tokens=90, **GREEDY).token_ids == first.token_ids
        assert model.save_rows(tmp_path / "chat.rows", text) == len(text) - 5
    for asked, computed, cached in ((text, then, len(text) - 5), ([*prompt, 9], other, len(prompt) - 1)):
        with load_package(packages / "nested", spec="suffix", **options) as model:
            found = model.generate(asked, max_tokens=8, logprobs=2, **GREEDY)
            assert (found.usage.cached_tokens, found.warnings) == (cached, ())
            assert (found.token_ids, found.logprobs) == (computed.token_ids, computed.logprobs)
            model._cache.check()
    for path in (tmp_path / "prompts").glob("*/*.state"):
        path.unlink()
    with load_package(packages / "nested", spec="off") as model, model.passes() as (runner, cache):
        model.load_rows(tmp_path / "chat.rows")
        assert model._prompts.restore(cache, text) == len(text) - 5
        cache.check()
        with cache.reserve(5) as rows:
            restored = runner.forward(text[cache.length :], rows.start, 5).logits.copy()
        cache.truncate(0)
        with cache.reserve(200) as rows:
            runner.forward(text[:200], rows.start, 1)
            rows.commit(text[:200])
        with cache.reserve(len(text) - 200) as rows:
            computed = runner.forward(text[200:], rows.start, 5).logits
        assert restored.tobytes() == computed.tobytes()


def test_a_text_goes_back_behind_what_was_restored(packages, tmp_path):
    """What a convolution sees was restored behind 199 tokens, not behind fewer."""
    text = [5 + (13 * i * i + 7 * i) % 180 for i in range(200)]
    back = [*text[:195], 9, 8, 7, 6]
    load = functools.partial(load_package, packages / "nested", spec="off", ctx=400)
    with load(prompt_cache=tmp_path) as model:
        model.generate(text, max_tokens=4, **GREEDY)
    with load(prompt_cache=tmp_path) as model:
        assert model.generate([*text, 3, 4], max_tokens=1, **GREEDY).usage.cached_tokens > 195
        found = model.generate(back, max_tokens=8, logprobs=1, **GREEDY)
    with load() as model:
        plain = model.generate(back, max_tokens=8, logprobs=1, **GREEDY)
    assert (found.token_ids, found.logprobs) == (plain.token_ids, plain.logprobs)


def test_a_chat_goes_back_by_as_many_tokens_as_a_pass_has(packages):
    with load_package(packages / "nested", spec="off", prefill_chunk=16, draft_max=7) as model:
        first = model.generate(PROMPT, max_tokens=20, **GREEDY)
        text = [*PROMPT, *first.token_ids]
        # The end of the answer is taken back, as templates do that drop thoughts.
        near = model.generate([*text[:-30], 9, 8], max_tokens=8, **GREEDY)
        assert near.usage.cached_tokens == len(text) - 30
        far = model.generate([*text[:5], 9, 8], max_tokens=8, **GREEDY)
        assert far.usage.cached_tokens == 0
        model.reset()
        assert model.generate([*text[:-30], 9, 8], max_tokens=8, **GREEDY).token_ids == near.token_ids


def test_the_plan_counts_the_rows_that_there_are(packages):
    manifest = open_package(packages / "nested").manifest
    model, convs = manifest.model, len(manifest.model.conv_layers)
    with load_package(packages / "nested", kv="int8", ctx=400, prefill_chunk=100) as loaded:
        term = next(term for term in loaded.plan.terms if term.name == "kv_cache")
        there = NativeIOBinding(model, 400, "int8", largest_pass=loaded.plan.choice.largest_pass).cache_bytes
        of_token = KV_FORMAT["int8"].token_bytes(model.num_kv_heads, model.head_dim)
        rows = 128  # three taps and 100 rows, up to a multiple of 64
        assert term.bytes == 400 * (model.num_layers - convs) * of_token + rows * convs * 4 * model.hidden_size
        assert f"{rows} rows x {convs} short convolutions x {4 * model.hidden_size} B" in term.text
        # Each layer's part begins at a multiple of 64.
        assert 0 <= there - term.bytes < 64 * model.num_layers


def test_what_is_not_there_yet_is_said(packages):
    with load_package(packages / "nested") as model:
        with_gpu = presets()[GENERIC_GPU].device
        assert with_gpu.gpu is not None
        assert make_plan(model.plan.shape, with_gpu, Request()).device.gpu is not None
