from __future__ import annotations

import hashlib
import re
from itertools import pairwise

import pytest
from hypothesis import given, settings, strategies as st

from edge_rt.errors import ConfigError, InputError, InvalidCorpus, StorageError
from edge_rt.package.reader import open_package
from edge_rt.runtime.decode.draft import ROOT
from edge_rt.runtime.speculation.core import DraftCore
from edge_rt.runtime.speculation.corpus import HEADER_BYTES, MAX_MATCH, MAX_PLACES, Corpus, CorpusSource
from edge_rt.runtime.speculation.corpus_build import build_corpus, pieces
from edge_rt.runtime.speculation.library import draft_library
from edge_rt.runtime.speculation.source import forest_of
from edge_rt.runtime.speculation.text_sources import NativeSuffixSource
from edge_rt.text.tokenizer import Tokenizer
from tests.helpers.examples import share_of

TOKENIZER = "ab" * 32
TEXTS = [[3, 1, 2, 3, 1], [2, 3]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("corpus")


@pytest.fixture(scope="module")
def whole(folder):
    build(folder / "whole")
    return (folder / "whole").read_bytes()


def build(path, texts=TEXTS, vocab_size=5, **options):
    return build_corpus(texts, path, vocab_size=vocab_size, tokenizer_sha256=TOKENIZER, **options)


def ends(text, part):
    """Return where occurrences of a part end, and something follows."""
    return [at + len(part) for at in range(len(text) - len(part)) if text[at : at + len(part)] == part]


tokens = st.integers(0, 3)


@settings(max_examples=share_of(50))
@given(st.lists(st.lists(tokens, max_size=50), min_size=1, max_size=4), st.lists(tokens, max_size=45))
def test_find_agrees_with_trying_all(folder, texts, context):
    if not any(texts):
        texts = [[0]]
    build(folder / "found", texts, force=True)
    with Corpus.open(folder / "found") as corpus:
        length, places = corpus.find(context)
        following = corpus.following(places)
    for size in range(min(len(context), MAX_MATCH), 0, -1):
        part = context[-size:]
        behind = [text[at] for text in texts for at in ends(text, part)]
        if behind:
            break
    else:
        assert (length, places, following) == (0, (), [])
        return
    assert length == size
    assert len(places) == min(len(behind), MAX_PLACES)
    found = {token: len(rest) for token, rest in following}
    if len(behind) <= MAX_PLACES:
        assert found == {token: behind.count(token) for token in set(behind)}
    else:
        assert set(found) <= set(behind)
        assert sum(found.values()) == MAX_PLACES
    assert list(found.values()) == sorted(found.values(), reverse=True)


def test_places_lead_on_to_the_end_of_the_text(folder):
    build(folder / "chain", force=True)
    with Corpus.open(folder / "chain") as corpus:
        _, places = corpus.find([3, 1])
        read = []
        while following := corpus.following(places):
            token, places = following[0]
            read.append(token)
        assert read == [2, 3, 1]
        assert corpus.find([1, 2, 3])[0] == 3
        assert corpus.find([4]) == (0, ())
        assert corpus.find([]) == (0, ())


def test_a_text_in_which_nothing_follows_anything(folder):
    build(folder / "single", [[1], [1]], force=True)
    with Corpus.open(folder / "single") as corpus:
        assert corpus.find([1]) == (0, ())


def test_the_bytes_of_a_file(folder):
    path = folder / "pinned"
    info = build(path, force=True)
    data = path.read_bytes()
    assert info.size_bytes == len(data) == HEADER_BYTES + 4 * 9 + 4 * 5
    # Version 1, 5 tokens of vocabulary, 7 tokens, 2 texts, 5 places.
    assert data[:40].hex() == "656467657274434f01000000050000000700000000000000020000000000000005000000" + "00" * 4
    text, order = data[HEADER_BYTES : HEADER_BYTES + 36], data[HEADER_BYTES + 36 :]
    assert text == b"".join(word.to_bytes(4, "big") for word in (4, 3, 0, 2, 4, 3, 2, 4, 0))
    assert order == b"".join(place.to_bytes(4, "little") for place in (6, 1, 5, 7, 4))
    assert data[40:72].hex() == TOKENIZER
    assert data[72:136] == hashlib.sha256(text).digest() + hashlib.sha256(order).digest()
    assert data[136:168] == hashlib.sha256(data[:136]).digest()
    assert HEADER_BYTES == 168


def test_every_byte_is_watched_over(folder, whole):
    data = whole
    path = folder / "damaged"
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :])
        with pytest.raises(InvalidCorpus):
            Corpus.open(path)
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(InvalidCorpus):
            Corpus.open(path)
    path.write_bytes(data + b"\0")
    with pytest.raises(InvalidCorpus, match="its header says"):
        Corpus.open(path)


@given(st.data())
def test_unverified_damage_gives_wrong_guesses_at_worst(folder, whole, data):
    content = bytearray(whole)
    for at in data.draw(st.lists(st.integers(HEADER_BYTES, len(content) - 1), min_size=1, max_size=30)):
        content[at] = data.draw(st.integers(0, 255))
    (folder / "damaged").write_bytes(content)
    with Corpus.open(folder / "damaged", verify=False) as corpus:
        length, places = corpus.find(data.draw(st.lists(tokens, max_size=6)))
        assert 0 <= length <= 6
        for _ in range(10):
            following = corpus.following(places)
            assert all(0 <= token < 5 for token, _ in following)
            places = following[0][1] if following else ()


def test_a_newer_version_is_named(folder):
    build(folder / "newer", force=True)
    data = bytearray((folder / "newer").read_bytes())
    data[8] = 2
    (folder / "newer").write_bytes(data)
    with pytest.raises(InvalidCorpus, match="version 2, this edge-rt reads 1"):
        Corpus.open(folder / "newer")


def test_a_corpus_of_another_tokenizer_is_refused(folder):
    build(folder / "mine", force=True)
    Corpus.open(folder / "mine", tokenizer=TOKENIZER).close()
    with pytest.raises(InvalidCorpus, match="another tokenizer"):
        Corpus.open(folder / "mine", tokenizer="cd" * 32)


def test_files_that_cannot_be_used(folder, tmp_path):
    with pytest.raises(StorageError):
        Corpus.open(tmp_path / "nothing")
    with pytest.raises(StorageError):
        Corpus.open(tmp_path)
    with pytest.raises(StorageError):
        build(tmp_path / "no" / "folder")


@pytest.mark.parametrize("texts", [[], [[]], [[5]], [[1, -1]]])
def test_texts_that_make_no_corpus(texts, tmp_path):
    with pytest.raises(InputError):
        build(tmp_path / "corpus", texts)
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_replaced_only_if_asked(tmp_path):
    path = tmp_path / "corpus"
    build(path)
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="--force"):
        build(path, [[1, 2]])
    assert path.read_bytes() == before
    build(path, [[1, 2]], force=True)
    assert path.read_bytes() != before
    assert [file.name for file in tmp_path.iterdir()] == ["corpus"]


@given(st.text(alphabet="a \n", max_size=80), st.integers(1, 10))
def test_pieces_are_the_text_and_end_at_lines_if_they_can(text, size):
    cut = list(pieces(text, size))
    assert "".join(cut) == text
    assert all(len(piece) <= size for piece in cut)
    for piece, after in pairwise(cut):
        is_line = re.search(r"\S\n$", piece) and not after[0].isspace()
        assert is_line or not re.search(r"\S\n\S", piece)


def test_pieces_make_the_tokens_of_the_whole(small_package):
    package = open_package(small_package)
    tokenizer = Tokenizer.from_file(package.file(package.manifest.tokenizer.file))
    text = "the cat sat\n\n  on the mat \n\nthe dog\nran\n" * 50
    for size in range(41, 90):
        parts = list(pieces(text, size))
        assert len(parts) > 20
        ids = [token for part in parts for token in tokenizer.encode_text(part)]
        assert ids == tokenizer.encode_text(text)


@pytest.fixture
def small(tmp_path):
    texts = [[10, 11, 12, 13, 14], [10, 11, 12, 15], [20, 21, 12, 13]]
    build_corpus(texts, tmp_path / "small", vocab_size=100, tokenizer_sha256="0" * 64)
    with Corpus.open(tmp_path / "small") as opened:
        yield opened


def test_what_follows_in_the_corpus_is_guessed_the_most_frequent_first(small):
    source = CorpusSource(small)
    source.begin([1, 10])
    source.extend([11])
    forest = forest_of(source)
    assert forest.token_ids.tolist() == [12, 13, 15, 14]
    assert forest.parents.tolist() == [ROOT, 0, 0, 1]
    source.extend([40])
    assert forest_of(source).token_ids.size == 0


def test_longer_matches_and_repeated_ones_are_trusted_more(small):
    source = CorpusSource(small)

    def prior(*text):
        source.begin(text)
        return source.prior(source.children(source.root())[0].kind)

    assert prior(13) < prior(12, 13) < prior(11, 12, 13) < prior(10, 11)


def test_it_joins_the_tree_of_the_text(small):
    suffix = NativeSuffixSource(draft_library())
    core = DraftCore(draft_library(), [suffix, CorpusSource(small)])
    core.begin([11, 12, 40, 11, 12])
    core.price([1.0] * 21)
    draft = core.propose(20, len(core.arms) - 1, 0.0, whole=True)
    assert {(ROOT, 40), (ROOT, 13), (ROOT, 15)} <= set(zip(draft.parents, draft.token_ids, strict=True))
