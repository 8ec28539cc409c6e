from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from edge_rt.errors import ConfigError
from edge_rt.store.naming import (
    HubReference,
    check_name,
    is_name,
    is_safe_path,
    local_name,
    parse_hub_reference,
    safe_name,
)

WINDOWS_PATHS = [
    "C:\\model.gguf", "C:/model.gguf", "C:model.gguf", "c:/org/name", "C:\\org/name", "\\\\server\\share", "org\\name",
    ".\\name",
]  # fmt: skip
TRAVERSALS = ["..", ".", "", "../x", "a/b", "/etc", ".hidden", "a\\b", "A", "ä", "a" * 97, "a\0", "a\n", "-x", "con:"]
DEVICES = ["con", "nul", "aux.gguf", "com1", "lpt9.q8_0", "prn.", "a."]


@pytest.mark.parametrize("name", [*TRAVERSALS, *DEVICES])
def test_bad_names_are_refused(name):
    with pytest.raises(ConfigError, match="not a valid model name"):
        check_name(name)


@pytest.mark.parametrize("name", ["a", "smollm2-135m-instruct", "0.5b_x", "a" * 96, "a..b"])
def test_good_names_are_kept(name):
    assert check_name(name) == name


@given(st.text(max_size=300))
def test_any_text_maps_to_a_valid_name(text):
    assert is_name(safe_name(text))
    assert is_name(local_name(text, "0123456789abcdef" * 4))


@pytest.mark.parametrize(
    ("text", "name"),
    [("con", "model-con"), ("NUL.q8_0", "model-nul.q8_0"), ("a.", "a"), ("..", "model"), ("com10", "com10")],
)
def test_names_that_windows_keeps_for_itself_are_escaped(text, name):
    assert safe_name(text) == name


def test_long_names_that_differ_at_the_end_stay_different():
    assert safe_name("x" * 200 + "a") != safe_name("x" * 200 + "b")


def test_any_part_of_a_split_file_names_its_first():
    for number in (1, 2, 3):
        reference = parse_hub_reference(f"o/n:q/F-{number:05}-of-00003.gguf")
        assert reference == HubReference("o/n", "q/F-00001-of-00003.gguf")
        assert reference.store_name == "o--n--f"


@pytest.mark.parametrize(
    ("text", "reference", "name"),
    [
        ("Org/Name", HubReference("Org/Name"), "org--name"),
        ("Org/Name:F.Q8_0.gguf", HubReference("Org/Name", "F.Q8_0.gguf"), "org--name--f.q8_0"),
        ("o/n:sub/F.gguf", HubReference("o/n", "sub/F.gguf"), "o--n--f"),
        ("o/n:F-00004-of-00003.gguf", HubReference("o/n", "F-00004-of-00003.gguf"), "o--n--f-00004-of-00003"),
    ],
)
def test_hub_references(text, reference, name):
    assert parse_hub_reference(text) == reference
    assert reference.store_name == name
    assert str(reference) == text


@pytest.mark.parametrize(
    ("address", "reference"),
    [
        ("https://huggingface.co/Org/Name", "Org/Name"),
        ("http://www.huggingface.co/Org/Name/?library=x#files", "Org/Name"),
        ("huggingface.co/Org/Name/tree/main", "Org/Name"),
        ("https://hf.co/Org/Name/blob/main/q/F%20x.gguf", "Org/Name:q/F x.gguf"),
        ("https://huggingface.co/Org/Name/resolve/main/F.gguf?download=true", "Org/Name:F.gguf"),
        ("hf.co/Org/Name:F.gguf", "Org/Name:F.gguf"),
    ],
)
def test_the_address_of_a_page_is_its_reference(address, reference):
    assert str(parse_hub_reference(address)) == reference


@pytest.mark.parametrize("path", ["Org", "datasets/Org/Name", "Org/Name/tree/v2", "Org/Name/blob/main/README.md"])
def test_addresses_of_other_pages_are_refused(path):
    with pytest.raises(ConfigError, match="not the address of a model"):
        parse_hub_reference(f"https://huggingface.co/{path}")


@pytest.mark.parametrize(
    "text", ["name", "a/b/c", "../x", "./x", "/x", "a/", "a/..", "https://x", "dir/model.gguf", *WINDOWS_PATHS]
)
def test_what_is_no_hub_reference(text):
    assert parse_hub_reference(text) is None


@pytest.mark.parametrize(
    "file", ["", "../x.gguf", "/x.gguf", "a\\x.gguf", "x.bin", "a:b.gguf", "a//b.gguf", "x\0.gguf"]
)
def test_bad_files_of_a_hub_reference_are_refused(file):
    with pytest.raises(ConfigError, match="does not name a GGUF file"):
        parse_hub_reference(f"org/name:{file}")


@pytest.mark.parametrize("text", WINDOWS_PATHS)
def test_a_path_of_windows_is_no_name(text):
    assert not is_name(text)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "..",
        "a/../b",
        "/a",
        "a//b",
        "a\\b",
        "C:x",
        "a\0",
        "a/.",
        "x" * 513,
        "nul",
        "a/con.gguf",
        "a./b",
        "a /b",
        "a?",
        "a|b",
    ],
)
def test_unsafe_paths(path):
    assert not is_safe_path(path)
