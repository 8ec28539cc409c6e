from __future__ import annotations

import json
import subprocess
import sys

import pytest

from edge_rt.package.reader import open_package
from edge_rt.runtime.speculation.corpus import Corpus
from edge_rt.text.tokenizer import Tokenizer


@pytest.fixture
def texts(tmp_path):
    paths = []
    for name, text in (("one.txt", "the cat sat on the mat\n" * 20), ("two.txt", "der Hund saß\n"), ("none.txt", "")):
        paths.append(tmp_path / name)
        paths[-1].write_text(text, encoding="utf-8")
    return paths


def test_build_and_info(inline, small_package, texts, tmp_path):
    out = tmp_path / "corpus"
    done = inline("corpus", "build", *texts, "-m", small_package, "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    built = json.loads(done.stdout)
    assert (built["texts"], built["size_bytes"]) == (2, out.stat().st_size)
    shown = json.loads(inline("corpus", "info", out, "--json").stdout)
    assert {"model": small_package.name, **shown} == built
    assert f"tokens {built['tokens']}" in " ".join(inline("corpus", "info", out).stdout.decode().split())
    package = open_package(small_package)
    facts = package.manifest.tokenizer
    ids = Tokenizer.from_file(package.file(facts.file), info=facts).encode_text(texts[0].read_text())
    with Corpus.open(out, tokenizer=package.manifest.files[facts.file].sha256) as corpus:
        length, places = corpus.find(ids[:6])
        assert length == 6
        assert corpus.following(places)[0][0] == ids[6]


def test_a_file_is_replaced_only_with_force(inline, small_package, texts, tmp_path):
    arguments = ("corpus", "build", texts[0], "-m", small_package, "--out", tmp_path / "corpus")
    assert inline(*arguments).returncode == 0
    assert inline(*arguments).returncode == 2
    assert inline(*arguments, "--force").returncode == 0


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_a_text_is_never_replaced_by_its_index(force, inline, small_package, texts, tmp_path):
    before = texts[1].read_bytes()
    (tmp_path / "link").symlink_to(texts[1])
    for out in (texts[1], tmp_path / "link"):
        done = inline("corpus", "build", *texts, "-m", small_package, "--out", out, *force)
        assert (done.returncode, b"is one of the texts" in done.stderr) == (2, True)
    assert texts[1].read_bytes() == before


def test_what_cannot_be_used_is_said(inline, small_package, texts, tmp_path):
    (tmp_path / "latin.txt").write_bytes(b"stra\xdfe und")
    (tmp_path / "broken").write_bytes(b"edgertCO and then nothing")
    cases = [
        (("build", tmp_path / "latin.txt", "-m", small_package, "--out", tmp_path / "corpus"), 3, "not UTF-8"),
        (("build", tmp_path / "absent", "-m", "no/model", "--out", tmp_path / "corpus"), 6, "absent cannot be read"),
        (("build", texts[2], "-m", small_package, "--out", tmp_path / "corpus"), 3, "no corpus"),
        (("build", texts[0], "-m", small_package, "--out", tmp_path / "no" / "corpus"), 6, "could not be written"),
        (("info", tmp_path / "broken"), 3, "ends in its header"),
        (("info", texts[0]), 3, "is not a corpus"),
        (("info", tmp_path / "absent"), 6, "cannot be read"),
    ]
    for arguments, code, message in cases:
        done = inline("corpus", *arguments)
        assert (done.returncode, message in done.stderr.decode()) == (code, True), (arguments, done.stderr)
    assert not (tmp_path / "corpus").exists()


def test_help_needs_no_numpy():
    code = (
        "import sys; from edge_rt.cli.main import main; "
        "assert main(['corpus', 'build', '--help']) == 0; assert 'numpy' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
