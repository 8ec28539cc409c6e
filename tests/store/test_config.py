from __future__ import annotations

from pathlib import Path

import pytest

from edge_rt.errors import ConfigError, StorageError
from edge_rt.store.config import Config, default_store_root, load_config, store_root


def write(tmp_path, text):
    path = tmp_path / "config.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_no_file_is_an_empty_one(tmp_path):
    assert load_config(tmp_path / "none.toml") == Config()
    assert store_root(config=tmp_path / "none.toml") == default_store_root()


@pytest.mark.parametrize(
    ("text", "expected"),
    [('store = "/data/s"', Path("/data/s")), ('store = "~/s"', Path.home() / "s"), ("", None)],
)
def test_store_key(tmp_path, text, expected):
    assert load_config(write(tmp_path, text)).store == expected


def test_a_relative_store_starts_at_the_file(tmp_path):
    assert store_root(config=write(tmp_path, 'store = "s"')) == tmp_path / "s"


def test_the_flag_wins_even_over_a_broken_file(tmp_path):
    assert store_root(tmp_path / "flag", config=write(tmp_path, "= broken")) == tmp_path / "flag"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('stor = "/x"', "unknown key 'stor'"),
        ("store = 3", "'store' is not a path"),
        ('store = ""', "'store' is not a path"),
        ('store = "a\\u0000b"', "'store' is not a path"),
        ('store = "~nobody-of-that-name/x"', "names an unknown user"),
        ("store = ", "not valid TOML"),
        (b"store = '\xff'", "not valid TOML"),
        (b"#" * (2 << 20), "too large"),
    ],
)
def test_wrong_files_are_refused(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        load_config(write(tmp_path, text))


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(StorageError, match="cannot be read"):
        load_config(tmp_path)
