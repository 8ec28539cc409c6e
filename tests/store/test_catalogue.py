"""The catalogue: its data, names that are fetched, hashes of first fetches, and what its models would take."""

from __future__ import annotations

import dataclasses
import json
from datetime import date

import pytest

import edge_rt
from edge_rt.errors import DownloadError, InputError, ModelNotFound
from edge_rt.export.families.registry import MODEL_TYPES
from edge_rt.export.opening import package_sizes
from edge_rt.memory.device import presets
from edge_rt.memory.shape import shape_of_model
from edge_rt.package.manifest import KV_FORMATS
from edge_rt.runtime.load.options import LoadOptions
from edge_rt.runtime.load.planning import plan_package
from edge_rt.runtime.speculation.cost_model import RowCosts
from edge_rt.store.catalogue import (
    CatalogueModel,
    first_fetch_path,
    load_catalogue,
    model_of,
    read_catalogue,
    read_first_fetch,
)
from edge_rt.store.catalogue_plan import MeasuredModel, expected_speed, foreseen_shape, slowness
from edge_rt.store.fetch import fetch_source
from edge_rt.store.pull import pull
from edge_rt.store.resolve import resolve
from edge_rt.store.sources_hub import HubOptions
from tests.helpers.catalogue_files import tensors_of, with_fewer_tokens, write_header
from tests.helpers.fake_hub import serve_fake_hub
from tests.helpers.family_cases import load_case, write_gguf
from tests.helpers.gguf_factory import write_llama_gguf
from tests.store.builders import MODEL, options_with, sha256

CATALOGUE = load_catalogue()
FIRST_OF_FAMILY = {model.config["model_type"]: name for name, model in reversed(CATALOGUE.items())}
TINY = CatalogueModel(
    "tiny-1b", "Tiny", "org/tiny-GGUF", "tiny-Q4_K_M.gguf", "Q4_K_M", 100_000, "mit", "https://example.org/tiny",
    "tests", date(2026, 11, 26), CATALOGUE["llama-3.2-1b"].config,
)  # fmt: skip


def test_every_model_is_whole():
    assert len(CATALOGUE) >= 30
    assert len({str(model.reference) for model in CATALOGUE.values()}) == len(CATALOGUE)
    for model in CATALOGUE.values():
        assert model.config["model_type"] in MODEL_TYPES
        assert 1024 <= model.context_length <= 1 << 18
        assert model.listed <= date(2026, 11, 27)
        # One line of a terminal has to do.
        assert len(model.good_at) <= 64
        assert model.page.startswith("https://huggingface.co/")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("size_mb = 5", "size_mb = 0", "wrong value under 'size_mb'"),
        ("size_mb = 5", 'size_mb = "5"', "wrong value under 'size_mb'"),
        ("size_mb = 5\n", "", "lacks the key 'size_mb'"),
        ("size_mb = 5", "size_mb = 5\nsize = 5", "unknown key 'size'"),
        ('"org/m"', '"m"', "wrong value under 'repo'"),
        ("m-Q8_0.gguf", "m-Q8_0.bin", "wrong value under 'file'"),
        ("m-Q8_0.gguf", "m.gguf", "no valid name, or its file no type"),
        ("[m]", "[M]", "no valid name"),
        ('"https://hub/m"', '"hub/m"', "wrong value under 'page'"),
        ("2026-01-01", '"today"', "wrong value under 'listed'"),
        ('model_type = "llama", ', "", "wrong value under 'config'"),
        ("size_mb = 5", "size_mb = ", "not valid TOML"),
    ],
)
def test_wrong_data_is_refused(tmp_path, old, new, message):
    text = (
        '[m]\ntitle = "M"\nrepo = "org/m"\nfile = "m-Q8_0.gguf"\nsize_mb = 5\nlicense = "mit"\npage = "https://hub/m"\n'
        'good_at = "tests"\nlisted = 2026-01-01\nconfig = { model_type = "llama", max_position_embeddings = 64 }\n'
    )
    path = tmp_path / "c.toml"
    path.write_text(text)
    assert read_catalogue(path)["m"].weights == "Q8_0"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match=message):
        read_catalogue(path)


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_numbers_of_a_model_give_the_bytes_that_the_listing_shows(name):
    tensors = sum(size for _, _, size in tensors_of(CATALOGUE[name]).values())
    assert tensors + 6_000_000 == pytest.approx(CATALOGUE[name].size_bytes, rel=0.05)


@pytest.mark.parametrize(
    ("name", "most_tokens", "error"),
    # All models with whole vocabularies take a minute. Without them the types of layers weigh more.
    [*((name, 16384, 0.05) for name in FIRST_OF_FAMILY.values())]
    + [pytest.param(name, 1 << 20, 0.04, marks=pytest.mark.slow) for name in CATALOGUE],
)
def test_a_model_is_planned_as_its_file_would_be(name, most_tokens, error, tmp_path):
    model, path = with_fewer_tokens(CATALOGUE[name], most_tokens), tmp_path / "m.gguf"
    write_header(path, model)
    sizes, foreseen = package_sizes(path), foreseen_shape(model)
    assert foreseen.model.context_length == sizes.decoder.context_length
    assert foreseen.model.layer_windows == sizes.decoder.layer_windows
    assert foreseen.weights_bytes == pytest.approx(sizes.weights_bytes, rel=error)
    shape = shape_of_model(
        sizes.decoder,
        op_profile="native",
        weights_bytes=sizes.weights_bytes,
        tokenizer_bytes=foreseen.tokenizer_bytes,
        kv_formats=KV_FORMATS["native"],
        embedding_bytes=sizes.embedding_bytes,
        table_bytes=sizes.table_bytes,
    )
    device = presets()["rpi5-8gb"].device
    of_file, of_catalogue = (plan_package(one, LoadOptions(), device) for one in (shape, foreseen))
    assert foreseen.read_bytes == pytest.approx(shape.read_bytes, rel=error + 0.01)
    assert of_catalogue.fits == of_file.fits
    assert of_catalogue.needs.host == pytest.approx(of_file.needs.host, rel=error)


def measured(shape, ms):
    return MeasuredModel("one", shape, RowCosts((1, 2), (64, 1024), ((ms, 2 * ms), (1.5 * ms, 3 * ms))))


def test_speeds_follow_from_passes_that_were_measured():
    small, large = foreseen_shape(CATALOGUE["smollm2-135m-instruct"]), foreseen_shape(CATALOGUE["llama-3.2-1b"])
    device = presets()["rpi5-8gb"].device
    own = expected_speed(small, device, [measured(small, 2.0)], "f16", "one")
    assert own.basis == "measured"
    assert own.tokens_per_second == pytest.approx(1e3 / (2.0 + 1.0 * 448 / 960))
    derived = expected_speed(large, device, [measured(small, 2.0)], "f16")
    assert derived.basis == "derived"
    # Its bytes are 8.1 times as many, its layers half as many.
    assert derived.tokens_per_second == pytest.approx(own.tokens_per_second / 5.5, rel=0.1)
    assert expected_speed(large, device, [], "f16").basis == "figures"


def test_passes_of_a_small_model_foretell_those_of_a_larger_one():
    # Least times of two models on one machine, at a depth of 64: 98 MB in 30 layers, 892 MB in 16.
    small, large = (
        dataclasses.replace(foreseen_shape(CATALOGUE[name]), read_bytes=size)
        for name, size in (("smollm2-135m-instruct", 98_223_104), ("llama-3.2-1b", 888_000_000))
    )
    flat = RowCosts((1, 2), (64,), ((2.10, 4.0),))
    device = presets()["rpi5-8gb"].device
    found = expected_speed(large, device, [MeasuredModel("small", small, flat)], "int8")
    assert 1e3 / found.tokens_per_second == pytest.approx(15.4, rel=0.25)


def test_the_bandwidth_of_a_machine_foretells_passes_that_nobody_measured():
    # Two cores of an AMD Zen 5 read 63 GB a second. Passes behind 512 tokens took 2.27 ms (median 2.59) of the small
    # model, and 13.75 (16.41) of a random one in the shape of the large one, in Q4_1.
    device = dataclasses.replace(presets()["generic"].device, bandwidth=63e9, is_measured=True)
    small, large = (foreseen_shape(CATALOGUE[name]) for name in ("smollm2-135m-instruct", "llama-3.2-1b"))
    large = dataclasses.replace(large, read_bytes=889_692_160)
    for shape, ms in ((small, (2.27, 2.59)), (large, (13.75, 16.41))):
        speed = expected_speed(shape, device, [], "int8")
        assert speed.basis == "bandwidth"
        assert all(1e3 / speed.tokens_per_second == pytest.approx(one, rel=0.25) for one in ms)


def test_passes_that_were_measured_on_a_busy_machine_are_many_times_as_slow_as_its_memory():
    small = foreseen_shape(CATALOGUE["smollm2-135m-instruct"])
    assert slowness(measured(small, 2.3), 63e9) < 1.5
    assert slowness(measured(small, 8.98), 63e9) > 2.5


# --- names ---


@pytest.fixture
def hub(tmp_path):
    with serve_fake_hub(
        repos={TINY.repo: {TINY.file: MODEL, "tiny-Q8_0.gguf": MODEL + b"8", "LICENSE": b"MIT"}}
    ) as hub:
        yield hub


@pytest.fixture
def options(hub, tmp_path):
    given = options_with(hub=HubOptions(hub.endpoint, tmp_path / "cache", "token"))
    return dataclasses.replace(given, catalogue={TINY.name: TINY})


@pytest.mark.parametrize("name", ["tiny-1b", "Tiny:1b", "TINY-1B"])
def test_a_name_of_the_catalogue_is_a_file_of_the_hub(store, options, name):
    resolved = resolve(name, store, options=options)
    assert (resolved.kind, resolved.name, resolved.hub) == ("hub", "tiny-1b", TINY.reference)
    assert (resolved.download_bytes, resolved.path) == (100_000, None)
    assert "will fetch about 100.0 kB from the Hugging Face hub: org/tiny-GGUF:tiny-Q4_K_M.gguf, mit" in str(
        resolved.description
    )


def test_a_folder_of_that_name_goes_first(store, options, tmp_path, monkeypatch):
    (tmp_path / "tiny-1b").mkdir()
    write_llama_gguf(tmp_path / "tiny-1b" / "m.gguf")
    monkeypatch.chdir(tmp_path)
    assert resolve("tiny-1b", store, options=options).kind == "gguf"


def test_similar_names_of_the_catalogue_are_suggested_and_not_all_of_them(store, options):
    with pytest.raises(ModelNotFound, match="Did you mean 'tiny-1b'") as caught:
        resolve("tiny-1c", store, options=options)
    assert "edge-rt models" in caught.value.action
    with pytest.raises(ModelNotFound) as caught:
        resolve("zzz", store, options=options)
    assert "tiny-1b" not in str(caught.value)


def test_a_type_names_a_file_of_a_repository(store, options):
    fetched = fetch_source("org/tiny-GGUF:q8_0", store=store, options=options)
    assert (fetched.name, fetched.path.name) == ("org--tiny-gguf--q8_0", "tiny-Q8_0.gguf")
    with pytest.raises(ModelNotFound, match=r"no GGUF file of type Q6_K. It has tiny-Q4_K_M.gguf, tiny-Q8_0.gguf"):
        fetch_source("org/tiny-GGUF:Q6_K", store=store, options=options)
    with pytest.raises(ModelNotFound, match=r"no file 'x.gguf'. Its GGUF files: tiny-Q4_K_M.gguf, tiny-Q8_0.gguf"):
        fetch_source("https://huggingface.co/org/tiny-GGUF/blob/main/x.gguf", store=store, options=options)


def test_later_fetches_are_compared_with_the_first(store, options, hub):
    assert read_first_fetch(store.root, TINY) is None
    fetch_source("tiny-1b", store=store, options=options)
    first = read_first_fetch(store.root, TINY)
    assert dict(first.hashes) == {TINY.file: sha256(MODEL)}
    store.remove("tiny-1b")
    fetch_source("tiny-1b", store=store, options=options)
    store.remove("tiny-1b")
    hub.repos[TINY.repo][TINY.file] = MODEL + b"!"
    hub.requests.clear()
    # By whatever name that file is asked for; and nothing of it is downloaded.
    for name in ("tiny-1b", str(TINY.reference)):
        with pytest.raises(DownloadError, match=r"holds another tiny-Q4_K_M\.gguf than when 'tiny-1b' was"):
            fetch_source(name, store=store, options=options)
    assert hub.downloads() == []
    first_fetch_path(store.root, TINY).unlink()
    assert fetch_source("tiny-1b", store=store, options=options).sha256 == sha256(MODEL + b"!")
    assert model_of(TINY.reference, {TINY.name: TINY}) is TINY


def test_a_hash_that_no_listing_shows_is_compared_too(store, options, hub):
    fetch_source("tiny-1b", store=store, options=options)
    record = first_fetch_path(store.root, TINY)
    record.write_text(json.dumps({**json.loads(record.read_text()), "hashes": {TINY.file: "0" * 64}}))
    hub.announced[TINY.file] = None
    with pytest.raises(DownloadError, match="holds another"):
        fetch_source("tiny-1b", store=store, options=options, force=True)


def test_a_gated_repository_names_its_licence_page(store, options, hub):
    hub.gated.add(TINY.repo)
    with pytest.raises(DownloadError, match="gated") as caught:
        fetch_source("tiny-1b", store=store, options=options)
    assert "https://huggingface.co/org/tiny-GGUF" in caught.value.action
    assert "HF_TOKEN" in caught.value.action


CHATS = {"qwen3-0.6b": "qwen3", "llama-3.2-1b": "llama_llama3", "gemma-3-1b": "gemma3_text"}


@pytest.mark.parametrize(("name", "case"), CHATS.items())
def test_from_name_to_chat(store, tmp_path, name, case):
    model = CATALOGUE[name]
    path = write_gguf(tmp_path / model.file, load_case(case), weight_type="Q8_0" if case == "qwen3" else "F32")
    with serve_fake_hub(repos={model.repo: {model.file: path.read_bytes(), "README.md": b"#"}}) as hub:
        options = options_with(hub=HubOptions(hub.endpoint, tmp_path / "cache", "token"))
        report = pull(name, store=store, options=options, accept_loss=True)
    assert (report.name, report.source.license) == (name, "apache-2.0")
    assert read_first_fetch(store.root, model) is not None
    with edge_rt.load(report.package) as loaded:
        result = loaded.chat(system="Be brief.").send("Hello", max_tokens=4, temperature=0)
    assert result.usage.completion_tokens > 0
