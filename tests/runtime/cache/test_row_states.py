"""States of texts in files: nothing is gone on from but whole, unchanged states behind exactly their tokens."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest

from edge_rt.errors import ConfigError, InvalidPromptCache
from edge_rt.runtime.cache.block_folder import BlockFolder, list_prompts, read_whole
from edge_rt.runtime.cache.checkpoints import Checkpoints, HostStateCopies
from edge_rt.runtime.cache.kv_cache import KVCache
from edge_rt.runtime.cache.prompt_cache import PromptCache
from edge_rt.runtime.cache.row_blocks import ROWS_AT, RowBlocks, block_names
from edge_rt.runtime.cache.row_states import RowStates, state_names
from edge_rt.runtime.cache.rows_file import RowsFile
from edge_rt.runtime.cache.state_slots import StateSlots

KEY = bytes(range(32))
PROMPT = [(5 + 41 * i) % 419 for i in range(210)]
SIZES = {"conv.0": 3, "state.0": 5}
STATE_BYTES = 4 * sum(SIZES.values())
BLOCK = ROWS_AT + 2 * 64 * 6


class Text:
    """A model whose rows and states are drawn by their tokens, and its cache with room for some states."""

    def __init__(self, folder=None, kept=4, limit=1 << 30):
        self.rows = np.zeros((2, 256, 6), np.uint8)
        self.arrays = {name: np.zeros((1, 2, size + 9), np.float32) for name, size in SIZES.items()}
        memory = np.zeros((kept, sum(SIZES.values())), np.float32)
        self.slots = StateSlots(0, 9, Checkpoints(HostStateCopies(self.arrays, SIZES, memory)))
        self.cache = KVCache(256, states=self.slots)
        self.blocks = RowBlocks(KEY, lambda: [self.rows])
        self.states = RowStates(self.blocks, STATE_BYTES)
        if folder is not None:
            folder = BlockFolder(folder, KEY, {}, size=BLOCK, limit=limit, state_size=self.states.size)
        self.prompts = PromptCache(self.blocks, folder, self.states)

    @staticmethod
    def drawn(token_ids, shape):
        data = hashlib.shake_256(str(list(token_ids)).encode()).digest(math.prod(shape))
        return np.frombuffer(data, np.uint8).reshape(shape)

    def compute(self, token_ids, stops=()):
        """Compute a text behind what is there, and keep states on the way."""
        for end in (*stops, len(token_ids)):
            begin = self.cache.length
            with self.cache.reserve(end - begin) as rows:
                for at in range(begin, end):
                    self.rows[:, at] = self.drawn(token_ids[: at + 1], (2, 6))
                for name, size in SIZES.items():
                    self.arrays[name][0, 1 - self.slots.slot, :size] = self.drawn([*token_ids[:end], name], (size,))
                self.slots.note(None)
                rows.commit(token_ids[begin:end])
            self.cache.keep_state()

    def check(self):
        """Compare all rows and the state with what computing gives."""
        self.cache.check()
        token_ids = self.cache.token_ids
        for at in range(len(token_ids)):
            assert np.array_equal(self.rows[:, at], self.drawn(token_ids[: at + 1], (2, 6))), at
        assert self.slots.length == len(token_ids)
        for name, size in SIZES.items() if token_ids else ():
            found = self.arrays[name][0, self.slots.slot, :size]
            assert np.array_equal(found, self.drawn([*token_ids, name], (size,))), name


@pytest.fixture
def folder(tmp_path):
    """A folder with the states of 130, 195 and all tokens of the prompt, and its rows."""
    text = Text(tmp_path / "p")
    text.compute(PROMPT, (100, 130, 195))
    text.prompts.store(text.cache)
    assert text.prompts.take_warnings() == ()
    return tmp_path / "p"


def of_kind(folder, kind):
    return sorted(folder.glob(f"*/*.{kind}"))


def state_file(folder, length):
    names = [KEY, *block_names(KEY, PROMPT)]
    ((_, name),) = state_names(names, PROMPT, length, length)
    (path,) = folder.glob(f"*/{name.hex()}.state")
    return path


def test_a_text_is_gone_on_with_from_the_longest_state(folder):
    assert (len(of_kind(folder, "rows")), len(of_kind(folder, "state"))) == (3, 3)
    (listed,) = list_prompts(folder)
    assert (listed.tokens, listed.bytes) == (192, sum(path.stat().st_size for path in folder.glob("*/*.[rs]*")))
    for prompt, held in (
        ([*PROMPT, 1], 210), (PROMPT, 195), ([*PROMPT[:205], 420, 3], 195), ([*PROMPT[:190], 420], 130),
        ([*PROMPT[:130], 420], 130), (PROMPT[:130], 0), ([*PROMPT[:129], 420, 5], 0),
    ):  # fmt: skip
        text = Text(folder)
        assert text.prompts.restore(text.cache, prompt) == held
        assert text.prompts.take_warnings() == ()
        text.check()
        text.compute(prompt)
        text.check()


@pytest.mark.parametrize(("length", "stops"), [(1, ()), (64, ()), (100, (70,)), (150, (128,)), (200, ())])
def test_what_the_cache_holds_is_kept(folder, length, stops):
    text = Text(folder)
    text.compute(PROMPT[:length], stops)
    text.rows[:, length:] = 9
    assert text.prompts.restore(text.cache, [*PROMPT, 1]) == 210
    text.check()


def test_rows_and_states_are_stored_once_and_what_is_new_is_added(folder):
    before = {path: path.read_bytes() for path in folder.glob("*/*.[rs]*")}
    text = Text(folder)
    longer = [*PROMPT, *range(30)]
    text.prompts.restore(text.cache, [*PROMPT, 1])
    text.compute(longer)
    text.prompts.store(text.cache)
    after = {path: path.read_bytes() for path in folder.glob("*/*.[rs]*")}
    assert {path: after[path] for path in before} == before
    assert len(after) == len(before) + 1
    again = Text(folder)
    assert again.prompts.restore(again.cache, [*longer, 1]) == 240
    again.check()


def flip(at):
    def change(data):
        data[at] ^= 1

    return change


def number(at, value, size=4):
    def change(data):
        data[at : at + size] = value.to_bytes(size, "little")

    return change


DAMAGES = {
    "magic": flip(0), "version": number(16, 7), "count": number(20, 64), "large count": number(20, 0xFFFFFFFF),
    "key": flip(24), "before": flip(60), "length": number(88, 1 << 60, 8), "hash": flip(100), "token": number(128, 418),
    "no token": number(380, 0), "row": flip(390), "state": flip(-1), "first of the state": flip(-STATE_BYTES),
    "zeros": lambda data: data.__setitem__(slice(None), bytes(len(data))),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_state_is_removed_and_an_earlier_one_gone_on_from(folder, damage):
    path = state_file(folder, 195)
    data = bytearray(path.read_bytes())
    DAMAGES[damage](data)
    path.write_bytes(data)
    text = Text(folder)
    assert text.prompts.restore(text.cache, PROMPT) == 130
    text.check()
    (warning,) = text.prompts.take_warnings()
    assert f"{path} was damaged, and is removed" in warning
    assert not path.exists()


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data + b"x", lambda data: b""])
def test_one_of_another_size_is_not_read(folder, change):
    path = state_file(folder, 195)
    path.write_bytes(change(path.read_bytes()))
    text = Text(folder)
    assert text.prompts.restore(text.cache, PROMPT) == 130
    text.check()


def test_one_of_another_text_is_not_taken(folder):
    state_file(folder, 195).write_bytes(state_file(folder, 210).read_bytes())
    text = Text(folder)
    assert text.prompts.restore(text.cache, PROMPT) == 130
    text.check()
    # Another model's files have another key, and so other names.
    other = Text()
    other.blocks.key = bytes(32)
    assert other.states._header(KEY, 3) != text.states._header(KEY, 3)


def test_without_its_rows_a_state_is_nothing(folder):
    for path in of_kind(folder, "rows"):
        path.unlink()
    text = Text(folder)
    assert text.prompts.restore(text.cache, PROMPT) == 0
    text.check()
    # They are written again, and the states are there.
    text.compute(PROMPT)
    text.prompts.store(text.cache)
    assert len(of_kind(folder, "rows")) == 3


def test_short_texts_have_no_states_on_disk(tmp_path):
    text = Text(tmp_path / "p")
    text.compute(PROMPT[:127], (70,))
    text.prompts.store(text.cache)
    assert list(tmp_path.glob("p/*/*")) == []


def test_the_size_counts_states_and_a_state_goes_before_its_rows(tmp_path):
    state = BLOCK + STATE_BYTES
    with pytest.raises(ConfigError, match="too small to keep a prompt"):
        Text(tmp_path / "p", limit=2 * BLOCK + state - 1)
    limit = 3 * BLOCK + 2 * state
    for first in range(3):
        prompt = [first, *PROMPT[1:]]
        text = Text(tmp_path / "p", limit=limit)
        text.compute(prompt, (130, 150, 195))
        text.prompts.store(text.cache)
        assert text.prompts.take_warnings() == ()
        files = list(tmp_path.glob("p/*/*.[rs]*"))
        assert sum(path.stat().st_size for path in files) <= limit
        # Of the longest beginnings there are states.
        for asked, held in (([*prompt, 1], 210), (prompt, 195), (prompt[:195], 0)):
            again = Text(tmp_path / "p", limit=limit)
            assert again.prompts.restore(again.cache, asked) == held
    text = Text(tmp_path / "p", limit=limit)
    folder = text.prompts._folder
    text.compute([*PROMPT[:150], 420], (130, 150))
    text.prompts.store(text.cache)
    # The last block of another text is left beside it.
    order = []
    while files := list(tmp_path.glob("p/*/*.[rs]*")):
        order.append(sorted(path.suffix[1] for path in files))
        folder.limit = sum(path.stat().st_size for path in files) - 1
        folder.trim()
    assert order == [["r"] * 3 + ["s"] * 2, ["r"] * 2 + ["s"] * 2, ["r"] * 2 + ["s"], ["r"] * 2, ["r"]]


class TestRowsFile:
    """A text's blocks and the state of its end in one file."""

    @pytest.fixture
    def path(self, tmp_path):
        text = Text()
        text.compute(PROMPT, (195,))
        assert text.prompts.write_file(tmp_path / "chat.rows", text.cache, [*PROMPT[:205], 1, 2, 3]) == 195
        return tmp_path / "chat.rows"

    def test_it_is_read_by_name(self, path):
        text = Text()
        text.prompts.read_from(path)
        assert RowsFile(path, text.blocks, text.states).tokens == 195
        assert text.prompts.restore(text.cache, PROMPT) == 195
        text.check()

    def test_its_bytes(self, path):
        assert (
            hashlib.sha256(path.read_bytes()).hexdigest()
            == "905889700544c475fc0b74b36f1b0a1b9b1748ed04ca9cc01bef3452b90fb25b"
        )

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda data: data[:-1], "a block has"),
            (lambda data: data[: 3 * BLOCK], "a block has"),
            (lambda data: data[-BLOCK - STATE_BYTES :], "does not begin as such a file"),
            (lambda data: data[: 2 * BLOCK] + data[3 * BLOCK :], "does not follow"),
        ],
    )
    def test_malformed_ones_are_refused(self, path, change, words):
        path.write_bytes(change(path.read_bytes()))
        text = Text()
        with pytest.raises(InvalidPromptCache, match=words):
            text.prompts.read_from(path)

    @pytest.mark.parametrize("damage", DAMAGES)
    def test_damage_of_the_state_is_noticed(self, path, damage):
        data = bytearray(path.read_bytes())
        state = data[3 * BLOCK :]
        DAMAGES[damage](state)
        data[3 * BLOCK :] = state
        path.write_bytes(data)
        with pytest.raises(InvalidPromptCache, match="state"):
            Text().prompts.read_from(path)


def test_a_file_that_ends_within_an_array_is_not_whole(tmp_path):
    """Arrays have any shape; what is missing are bytes."""
    for size, is_whole in ((199, False), (200, True), (300, True)):
        (tmp_path / "file").write_bytes(bytes(size))
        with (tmp_path / "file").open("rb", buffering=0) as file:
            assert read_whole(file, np.empty((2, 100), np.uint8)) is is_whole
