from __future__ import annotations

from pathlib import Path

import pytest

from edge_rt.errors import ConfigError, StorageError
from edge_rt.store.config import Config, Preset, default_store_root, load_config, store_root


def write(tmp_path, text):
    path = tmp_path / "config.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_no_file_is_an_empty_one(tmp_path):
    assert load_config(tmp_path / "none.toml") == Config()
    assert store_root(config=Config()) == default_store_root()


@pytest.mark.parametrize(
    ("text", "expected"),
    [('store = "/data/s"', Path("/data/s")), ('store = "~/s"', Path.home() / "s"), ("", None)],
)
def test_store_key(tmp_path, text, expected):
    assert load_config(write(tmp_path, text)).store == expected


def test_a_relative_store_starts_at_the_file(tmp_path):
    assert store_root(config=load_config(write(tmp_path, 'store = "s"'))) == tmp_path / "s"


def test_the_flag_goes_before_the_file(tmp_path):
    assert store_root(tmp_path / "flag", config=Config(store=tmp_path / "s")) == tmp_path / "flag"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('stor = "/x"', "unknown key 'stor'"),
        ("store = 3", "'store' is not a path"),
        ('store = ""', "'store' is not a path"),
        ('store = "a\\u0000b"', "'store' is not a path"),
        ('memory = "lots"', "'memory' is not a size. Got 'lots'"),
        ("memory = true", "'memory' is not a size. Got 'True'"),
        ('memory = "0"', "'memory' is not a size. Got '0', it must be above 0"),
        ('experts = "some"', "'experts' is not auto, resident or a size. Got 'some'. Write it as experts = \"auto\""),
        ("experts = true", "'experts' is not auto, resident or a size"),
        ("model = 3", "'model' is not a model"),
        ('ctx = "4096"', "'ctx' is not a whole number"),
        ('device = "vulcan"', r"'device' is no device: 'vulcan'\. Did you mean vulkan\?"),
        ("device = 1", "'device' is no device: '1'"),
        ('device_memory = "some"', "'device_memory' is not a size. Got 'some'. Write it as device_memory = "),
        ('on_device_error = "gpu"', "'on_device_error' is not error or cpu. It is 'gpu'"),
        ("on_device_error = true", "'on_device_error' is not error or cpu"),
        ("threads = 0", "'threads' is not a whole number of at least 1"),
        ("sampling = 3", "'sampling' is not a table"),
        ("[sampling]\ntemp = 0.5", "unknown sampling value 'temp'"),
        ("[sampling]\ntop_p = 2", "'sampling.top_p' is not a number above 0 and up to 1. It is 2"),
        ("presets = 3", "'presets' is not a table"),
        ("[presets]\npoet = 3", "'presets.poet' is not a table"),
        ('[presets.Poet]\nmodel = "m"', "'presets.Poet' is not a table under the name of a model"),
        ("[presets.poet]\nctx = 64", "'presets.poet.model' is not a model"),
        ('[presets.poet]\nmodel = "poet"', "'presets.poet.model' is not a model"),
        ('[presets.poet]\nmodel = "m"\nseed = 1', r"unknown value in \[presets.poet\] 'seed'"),
        ('[presets.poet]\nmodel = "m"\nsystem = 1', "'presets.poet.system' is not a text"),
        ('[presets.poet]\nmodel = "m"\nctx = 0', "'presets.poet.ctx' is not a whole number"),
        ('[presets.poet]\nmodel = "m"\nmemory = "much"', "'presets.poet.memory' is not a size"),
        ('[presets.poet]\nmodel = "m"\n[presets.poet.sampling]\ntop_p = 2', "'presets.poet.sampling.top_p' is not"),
        ('store = "~nobody-of-that-name/x"', "names an unknown user"),
        ("store = ", "not valid TOML"),
        (b"store = '\xff'", "not valid TOML"),
        (b"#" * (2 << 20), "too large"),
    ],
)
def test_wrong_files_are_refused(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(write(tmp_path, text))
    assert str(tmp_path / "config.toml") in str(caught.value)


def test_all_keys(tmp_path):
    text = 'store = "/s"\nmodel = "m"\nmemory = 600\nctx = 64\nthreads = 2\n[sampling]\ntop_k = 3\ntemperature = 0'
    sampling = {"top_k": 3, "temperature": 0}
    expected = Config(Path("/s"), model="m", memory="600", ctx=64, threads=2, sampling=sampling)
    assert load_config(write(tmp_path, text)) == expected


def test_keys_of_devices(tmp_path):
    text = 'device = "vulkan:0"\ndevice_memory = "4GiB"\non_device_error = "cpu"'
    expected = Config(device="vulkan:0", device_memory="4GiB", on_device_error="cpu")
    assert load_config(write(tmp_path, text)) == expected


def test_presets(tmp_path):
    text = (
        '[presets.poet]\nmodel = "qwen3-0.6b"\nsystem = "Rhyme."\nctx = 64\nmemory = "1GiB"\nmax_tokens = 9\n'
        'sampling = { temperature = 1.2 }\n[presets.plain]\nmodel = "m"\n'
    )
    poet = Preset("qwen3-0.6b", "Rhyme.", "1GiB", 64, 9, {"temperature": 1.2})
    assert load_config(write(tmp_path, text)).presets == {"poet": poet, "plain": Preset("m")}


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(StorageError, match="cannot be read"):
        load_config(tmp_path)
