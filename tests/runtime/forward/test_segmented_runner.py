"""Packages that are cut at exits: the bits of one graph, and drafts that later passes go on with."""

from __future__ import annotations

import random

import numpy as np
import pytest

from edge_rt.errors import Cancelled, InvalidPackage
from edge_rt.ort.binding import StopSwitch
from edge_rt.package.manifest import KV_FORMATS
from edge_rt.runtime.forward.outputs import TopTokens
from tests.helpers.packages import copied, edit_manifest
from tests.helpers.passes import same_bits
from tests.helpers.segmented import EXITS, CutPasses, whole_passes

FORMATS = KV_FORMATS["native"]
SEGMENTS = len(EXITS) + 1
TOKEN_IDS = [(5 + 41 * i) % 419 for i in range(300)]
TREE = [-1, 0, 0, 1, 2, 4, 1]
PATH = [0, 2, 4]


@pytest.fixture(scope="module", params=["segmented", "segmented_window"])
def pair(request):
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("kv_format", FORMATS)
def test_bits_of_one_graph(pair, kv_format):
    cut, whole = CutPasses(pair.cut, kv_format), whole_passes(pair.whole, kv_format)
    for passes in (cut, whole):
        passes.results = [
            passes.append_in(70, TOKEN_IDS[:200]),
            passes.tree(TOKEN_IDS[200:207], TREE, PATH),
            passes.append_in(1, TOKEN_IDS[210:214]),
            passes.tree(TOKEN_IDS[220:227], TREE, PATH[:1]),
            passes.append(TOKEN_IDS[230:249]),
        ]
    for found, expected in zip(cut.results, whole.results, strict=True):
        same_bits(found, expected)
    assert cut.cache.token_ids == whole.cache.token_ids


def test_wanted_rows_alone_and_likely_tokens(segmented):
    cut, whole = CutPasses(segmented.cut), whole_passes(segmented.whole)
    for passes in (cut, whole):
        with passes.cache.reserve(90) as rows:
            outputs = passes.runner.forward(TOKEN_IDS[:90], rows.start, 2, logit_rows=[3, 88])
            passes.found = outputs.logits.copy(), outputs.top.ids.copy(), outputs.top.log_sum_exp.copy()
            rows.commit(TOKEN_IDS[:90])
    for found, expected in zip(cut.found, whole.found, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_pass_larger_than_planned(segmented):
    cut, whole = CutPasses(segmented.cut, largest_pass=8), whole_passes(segmented.whole)
    for size in (150, 3):
        same_bits(cut.append(TOKEN_IDS[:size]), whole.append(TOKEN_IDS[:size]))


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("segments", range(1, SEGMENTS))
def test_a_pass_goes_on_with_what_was_drafted(pair, kv_format, segments):
    cut, whole = CutPasses(pair.cut, kv_format), whole_passes(pair.whole, kv_format)
    for passes in (cut, whole):
        passes.append(TOKEN_IDS[:61])
    tokens = TOKEN_IDS[61:68]
    for drafted in (1, 3, 7):
        # The first nodes are a chain, then come branches that nobody drafted.
        parents = [*range(-1, drafted - 1), *[0, 1, 2, 0, 4, 3][: 7 - drafted]]
        parents = [min(parent, node - 1) for node, parent in enumerate(parents)]
        cut.draft(tokens[:drafted], segments)
        assert cut.cache.valid_lengths(SEGMENTS) == tuple(
            cut.cache.length + (drafted if index < segments else 0) for index in range(SEGMENTS)
        )
        same_bits(cut.tree(tokens, parents, [0]), whole.tree(tokens, parents, [0]))
        assert set(cut.cache.valid_lengths(SEGMENTS)) == {cut.cache.length}
    same_bits(cut.append(TOKEN_IDS[70:80]), whole.append(TOKEN_IDS[70:80]))


def test_drafted_rows_are_not_computed_again(segmented):
    cut, whole = CutPasses(segmented.cut), whole_passes(segmented.whole)
    for passes in (cut, whole):
        passes.append(TOKEN_IDS[:20])
    cut.draft([7, 9], 2)
    # Told of another token than the one that it computed, the pass believes it: it reads what lies there.
    cut.cache.ahead.token_ids[1] = 11
    found, expected = cut.append([7, 11, 13]), whole.append([7, 9, 13])
    same_bits(found[:2], expected[:2])


@pytest.mark.parametrize("tokens", [[8, 9, 13], [7, 8, 13], [7]], ids=str)
def test_other_tokens_than_the_drafted_ones_are_computed(segmented, tokens):
    cut, whole = CutPasses(segmented.cut), whole_passes(segmented.whole)
    for passes in (cut, whole):
        passes.append(TOKEN_IDS[:20])
    cut.draft([7, 9], 2)
    same_bits(cut.append(tokens), whole.append(tokens))
    same_bits(cut.append([3]), whole.append([3]))


def test_other_parents_than_the_drafted_ones_are_computed(segmented):
    cut, whole = CutPasses(segmented.cut), whole_passes(segmented.whole)
    for passes in (cut, whole):
        passes.append(TOKEN_IDS[:20])
    cut.draft([7, 9, 11], 3)
    same_bits(cut.tree([7, 9, 11], [-1, 0, 0], [0, 2]), whole.tree([7, 9, 11], [-1, 0, 0], [0, 2]))


def test_a_draft_of_another_place_is_forgotten(segmented):
    cut = CutPasses(segmented.cut)
    cut.append(TOKEN_IDS[:20])
    cut.draft([7, 9], 1)
    cut.cache.truncate(15)
    assert len(cut.cache.ahead) == 0
    cut.cache.check()


def test_a_tree_can_be_drafted(segmented):
    cut, whole = CutPasses(segmented.cut), whole_passes(segmented.whole)
    for passes in (cut, whole):
        passes.append(TOKEN_IDS[:20])
    tokens, parents = TOKEN_IDS[30:34], [-1, 0, 0, 1]
    cut.draft(tokens, 2, parents)
    same_bits(cut.tree(tokens, parents, [0, 1, 3]), whole.tree(tokens, parents, [0, 1, 3]))


class LateSwitch(StopSwitch):
    """Is set from the n-th time on that somebody looks."""

    def __init__(self):
        super().__init__()
        self.looks_left = 1 << 30

    @property
    def is_set(self):
        self.looks_left -= 1
        return self.looks_left < 0


@pytest.mark.parametrize("looks", range(SEGMENTS))
def test_a_pass_that_is_stopped_between_segments(pair, looks):
    switch = LateSwitch()
    cut, whole = CutPasses(pair.cut, switch=switch), whole_passes(pair.whole)
    for passes in (cut, whole):
        passes.append(TOKEN_IDS[:50])
    cut.draft([7, 9], 2)
    switch.looks_left = looks
    with pytest.raises(Cancelled):
        cut.append([7, 9, 11])
    assert set(cut.cache.valid_lengths(SEGMENTS)) == {50}
    cut.cache.check()
    switch.looks_left = 1 << 30
    same_bits(cut.append([7, 8, 11]), whole.append([7, 8, 11]))


@pytest.mark.parametrize("looks", range(4))
def test_a_draft_that_is_stopped(segmented, looks):
    switch = LateSwitch()
    cut, whole = CutPasses(segmented.cut, switch=switch), whole_passes(segmented.whole)
    for passes in (cut, whole):
        passes.append(TOKEN_IDS[:50])
    cut.draft([7], 3)
    switch.looks_left = looks
    with pytest.raises(Cancelled):
        cut.runner.draft(9, 0)
    switch.looks_left = 1 << 30
    assert cut.cache.ahead.token_ids == [7]
    cut.cache.check()
    same_bits(cut.append([7, 9, 11]), whole.append([7, 9, 11]))


def test_the_check_finds_rows_ahead_of_another_length(segmented):
    cut = CutPasses(segmented.cut)
    cut.append(TOKEN_IDS[:20])
    cut.draft([7], 1)
    cut.cache.ahead.start = 19
    with pytest.raises(AssertionError):
        cut.cache.check()


def test_a_closed_runner(segmented):
    cut = CutPasses(segmented.cut)
    cut.append([1, 2])
    cut.runner.close()
    with pytest.raises(Cancelled, match="closed"):
        cut.append([3])
    cut.cache.ahead.begin(2, 1)
    with pytest.raises(Cancelled, match="closed"):
        cut.runner.draft(3, -1)


def test_graphs_in_another_order_are_refused(segmented, tmp_path):
    package = copied(segmented.cut, tmp_path)

    def swap(document):
        first, second = document["segments"][1], document["segments"][2]
        first["graph"], second["graph"] = second["graph"], first["graph"]

    edit_manifest(package, swap)
    with pytest.raises(InvalidPackage, match="does not fit its manifest"):
        CutPasses(package)


class OneToken:
    """An adapter that keeps what it is asked, and always guesses the same."""

    def __init__(self, token):
        self.asked, self._token = [], token

    def likely(self, hidden, token_id):
        self.asked.append((hidden.copy(), token_id))
        return TopTokens(np.array([[self._token]], np.int32), np.zeros((1, 1), np.float32), np.zeros(1, np.float32))


def test_an_adapter_changes_drafts_and_nothing_else(segmented):
    cut, whole = CutPasses(segmented.cut), whole_passes(segmented.whole)
    for passes in (cut, whole):
        passes.append(TOKEN_IDS[:20])
    plain = cut.draft([7, 9], 2)
    adapter = OneToken(5)
    cut.runner.adapt(2, adapter)
    assert cut.draft([7, 9], 2) == [5, 5]
    assert cut.draft([7, 9], 1) != [5, 5]
    assert cut.draft([7, 9], 2) == [5, 5]
    states, tokens = zip(*adapter.asked, strict=True)
    assert tokens == (7, 9, 7, 9)
    assert [state.shape for state in states] == [(1, 64)] * 4
    same_bits(states[0], states[2])
    assert not np.array_equal(states[0], states[1])
    same_bits(cut.append([7, 9, 11]), whole.append([7, 9, 11]))
    cut.cache.truncate(20)
    cut.runner.adapt(2, None)
    assert cut.draft([7, 9], 2) == plain


@pytest.mark.parametrize("seed", range(8))
def test_drafted_nodes_anywhere_in_the_tree(pair, seed):
    rng = random.Random(seed)
    cut, whole = (
        CutPasses(pair.cut, FORMATS[seed % len(FORMATS)]),
        whole_passes(pair.whole, FORMATS[seed % len(FORMATS)]),
    )
    for passes in (cut, whole):
        passes.append(TOKEN_IDS[:61])
    for _ in range(6):
        count = rng.randint(2, 12)
        tokens = rng.sample(range(3, 400), count)
        parents = [-1, *(rng.randint(0, row - 1) for row in range(1, count))]
        # A part of the tree is drafted, node behind node as they follow each other, in an order of its own.
        drafted = [0]
        while len(drafted) < rng.randint(1, count):
            drafted.append(rng.choice([row for row in range(count) if row not in drafted and parents[row] in drafted]))
        if rng.random() < 0.3:
            drafted.append(count)
        cut.draft(
            [tokens[row] if row < count else 400 for row in drafted],
            rng.randint(1, SEGMENTS - 1),
            [-1, *(drafted.index(parents[row]) if row < count else 0 for row in drafted[1:])],
        )
        path = [0]
        while (below := [row for row in range(count) if parents[row] == path[-1]]) and rng.random() < 0.7:
            path.append(rng.choice(below))
        same_bits(cut.tree(tokens, parents, path), whole.tree(tokens, parents, path))
    same_bits(cut.append(TOKEN_IDS[70:80]), whole.append(TOKEN_IDS[70:80]))


def test_drafted_nodes_that_are_not_first_are_not_computed_again(segmented):
    cut, whole = CutPasses(segmented.cut), whole_passes(segmented.whole)
    for passes in (cut, whole):
        passes.append(TOKEN_IDS[:20])
    cut.draft([7, 9], 2)
    # Told of another token than the one that it computed, the pass believes it.
    cut.cache.ahead.token_ids[1] = 11
    parents = [-1, 0, 0, 2]
    found = cut.tree([7, 8, 11, 13], parents, [0, 2, 3])
    expected = whole.tree([7, 8, 9, 13], parents, [0, 2, 3])
    same_bits(found[:3], expected[:3])


def row_maps(passes):
    """Return the maps of rows of a cache; None for those that it has not."""
    window = passes.interface.window
    return passes.interface.row_map, None if window is None else window.row_map


@pytest.mark.parametrize("wanted", [None, [5, 0, 3], [2, 2]], ids=str)
def test_wanted_rows_where_drafted_nodes_are_not_first(segmented, wanted):
    """Results have the places that are asked for, hidden states as well."""
    options = {"hidden": True}
    cut, whole = CutPasses(segmented.cut, **options), whole_passes(segmented.whole, **options)
    tokens, parents = [7, 8, 9, 11, 13, 15], [-1, 0, 0, 2, 1, 3]
    for passes in (cut, whole):
        passes.append(TOKEN_IDS[:20])
        if passes is cut:
            cut.draft([7, 9, 11], 2)
        with passes.cache.reserve(6, parents) as rows:
            outputs = passes.runner.forward(
                tokens, rows.start, 3 if wanted is None else len(wanted), parents=parents, logit_rows=wanted
            )
            passes.found = [outputs.logits.copy(), outputs.hidden.copy(), outputs.top.logits.copy()]
            rows.commit([7, 9], [0, 2])
        passes.cache.check()
    for found, expected in zip(cut.found, whole.found, strict=True):
        same_bits(found, expected)
    same_bits(cut.append([3]), whole.append([3]))


@pytest.mark.parametrize("looks", range(SEGMENTS))
def test_a_pass_over_a_tree_that_is_stopped(pair, looks):
    switch = LateSwitch()
    cut, whole = CutPasses(pair.cut, switch=switch), whole_passes(pair.whole)
    for passes in (cut, whole):
        passes.append(TOKEN_IDS[:50])
    cut.draft([7, 9], 2)
    switch.looks_left = looks
    tree = [7, 8, 9, 13], [-1, 0, 0, 2], [0, 2, 3]
    maps = [row_map for row_map in row_maps(cut) if row_map is not None]
    before = [row_map.copy() for row_map in maps]
    with pytest.raises(Cancelled):
        cut.tree(*tree)
    cut.cache.check()
    assert all(np.array_equal(now, then) for now, then in zip(maps, before, strict=True))
    switch.looks_left = 1 << 30
    same_bits(cut.tree(*tree), whole.tree(*tree))
    same_bits(cut.append([3]), whole.append([3]))
