"""The licence in a model card."""

from __future__ import annotations

import pytest

from edge_rt.export.sources.hf_folder import read_license


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("---\nlicense: apache-2.0\ntags:\n- x\n---\n# Model\n", "apache-2.0"),
        ("---\r\nlicense: 'mit'  # free\r\n---\r\n", "mit"),
        ("---\nlicense: other\nlicense_name: llama3.2\n---\n", "llama3.2"),
        ("---\nlicense: other\n---\n", "other"),
        ("---\nlicense_name: mine\n---\n", None),
        ("---\nlicense: mit\n", None),
        ("license: mit\n---\n", None),
        ("---\ntags:\n  license: mit\n---\n", None),
        ("---\nlicense: \x1b[31mred\n---\n", None),
        ("---\nlicense: []\n---\n", None),
        ("", None),
        ("\udcff", None),
    ],
)
def test_what_the_card_states(tmp_path, text, expected):
    (tmp_path / "README.md").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert read_license(tmp_path) == expected


def test_without_a_card(tmp_path):
    assert read_license(tmp_path) is None
    (tmp_path / "README.md").mkdir()
    assert read_license(tmp_path) is None
