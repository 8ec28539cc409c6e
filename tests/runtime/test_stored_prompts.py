"""Prompts that are remembered on disk: answers are as if they were computed, whatever lies in the folder."""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from edge_rt.errors import ConfigError, InputError, InvalidPromptCache, StorageError
from edge_rt.export import export_model
from edge_rt.memory.plan import Plan
from edge_rt.package.kv_formats import KV_FORMAT
from edge_rt.package.reader import open_package
from edge_rt.runtime.cache.block_folder import clear_prompts, list_prompts
from edge_rt.runtime.cache.prompt_cache import MOST_CARRIED
from edge_rt.runtime.cache.row_blocks import RowBlocks, block_names
from edge_rt.runtime.cache.rows_file import RowsFile
from edge_rt.runtime.load.options import LoadOptions
from edge_rt.runtime.load.planning import plan_package
from tests.helpers.examples import share_of
from tests.helpers.models import load_package
from tests.helpers.small import FREE_ROWS, GREEDY, NO_SPECIALS

PROMPT = [(5 + 41 * i) % 419 for i in range(300)]
SAMPLED = {"temperature": 1.0, "seed": 3, "logit_bias": NO_SPECIALS}


def facts(result):
    return result.token_ids, result.finish_reason, result.logprobs


def answer(model, prompt=PROMPT, tokens=20, **options):
    return model.generate(prompt, max_tokens=tokens, logprobs=2, **(options or GREEDY))


def files(folder):
    return sorted(folder.glob("*/*.rows"))


@pytest.fixture(scope="module")
def stored(native_package, tmp_path_factory):
    """A folder with the blocks of ``PROMPT``, and the answer to it; nobody may change it."""
    folder = tmp_path_factory.mktemp("stored") / "prompts"
    with load_package(native_package, kv="int8", prompt_cache=folder) as model:
        return folder, answer(model)


@pytest.fixture
def folder(stored, tmp_path):
    return shutil.copytree(stored[0], tmp_path / "prompts")


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("kv", KV_FORMAT)
def test_answers_after_a_restart_are_the_same(native_package, tmp_path, kv, sampling):
    with load_package(native_package, kv=kv, spec="off") as model:
        plain = answer(model, tokens=60, **sampling)
        # What a chat client sends next: all of it, and a new message.
        longer = [*PROMPT, *plain.token_ids, *range(70)]
        plain_next = answer(model, longer, **sampling)
    cached = []
    for spec in ("auto", "auto", "off"):
        with load_package(native_package, kv=kv, spec=spec, prompt_cache=tmp_path) as model:
            first, then = answer(model, tokens=60, **sampling), answer(model, longer, **sampling)
            model.reset()
            again = answer(model, longer, **sampling)
        assert facts(first) == facts(plain)
        assert facts(then) == facts(again) == facts(plain_next)
        cached.append((first.usage.cached_tokens, again.usage.cached_tokens))
    assert cached == [(0, 384), (256, 384), (256, 384)]


def test_with_exits_too(segmented, tmp_path):
    prompt = PROMPT[:200]
    with load_package(segmented.cut, spec="off") as model:
        plain = answer(model, prompt)
    for cached in (0, 192):
        with load_package(segmented.cut, spec="exit", prompt_cache=tmp_path) as model:
            result = answer(model, prompt)
        assert (facts(result), result.usage.cached_tokens) == (facts(plain), cached)


def test_with_a_second_model_that_drafts(native_package, stored, folder):
    with load_package(native_package, kv="int8", spec=f"model:{native_package}", prompt_cache=folder) as model:
        model.speculation.costs = FREE_ROWS
        result = answer(model)
        assert (facts(result), result.usage.cached_tokens) == (facts(stored[1]), 256)
        assert result.spec.rows_drafted > 0


def test_the_longest_beginning_is_read_and_stored_once(native_package, folder):
    before = files(folder)
    assert len(before) == 4
    other = [*PROMPT[:200], *range(180)]
    with load_package(native_package, kv="int8", prompt_cache=folder) as model:
        assert answer(model, other).usage.cached_tokens == 192
        assert len(files(folder)) == 7
        # What is in memory is not read again, but what lies behind it is.
        answer(model, PROMPT[:100], tokens=1)
        assert answer(model).usage.cached_tokens == 256
        # The last token has to be computed, so a prompt of whole blocks lacks one.
        model.reset()
        assert answer(model, PROMPT[:256], tokens=1).usage.cached_tokens == 192
        model.reset()
        assert answer(model, PROMPT[:64], tokens=1).usage.cached_tokens == 0


def test_short_texts_are_not_stored_and_nothing_is_written_unasked(native_package, tmp_path):
    with load_package(native_package, prompt_cache=tmp_path) as model:
        answer(model, PROMPT[:100])
    assert files(tmp_path) == []
    with load_package(native_package) as model:
        answer(model)
    assert list(tmp_path.glob("*/*")) == []


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_files_are_their_owners_alone(native_package, tmp_path):
    before = os.umask(0)
    try:
        with load_package(native_package, prompt_cache=tmp_path / "new") as model:
            answer(model)
    finally:
        os.umask(before)
    modes = {
        path.is_dir(): stat.S_IMODE(path.stat().st_mode) for path in [tmp_path / "new", *tmp_path.glob("new/**/*")]
    }
    assert modes == {True: 0o700, False: 0o600}


def test_other_formats_and_packages_share_nothing(native_package, segmented, folder):
    for package, kv in ((native_package, "f16"), (segmented.cut, "int8")):
        with load_package(package, kv=kv, prompt_cache=folder) as model:
            assert answer(model, PROMPT[:250]).usage.cached_tokens == 0
    assert [(one.kv_format, one.tokens) for one in list_prompts(folder)].count(("int8", 256)) == 2


def flip(at):
    def change(data):
        data[at] ^= 1

    return change


def number(at, value, size=4):
    def change(data):
        data[at : at + size] = value.to_bytes(size, "little")

    return change


DAMAGES = {
    "magic": flip(0), "version": number(16, 7), "count": number(20, 0xFFFFFFFF), "key": flip(24), "before": flip(60),
    "length": number(88, 1 << 60, 8), "hash": flip(100), "token": number(128, 418), "first row": flip(390),
    "last row": flip(-1), "zeros": lambda data: data.__setitem__(slice(None), bytes(len(data))),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_block_is_computed_again_and_removed(native_package, stored, folder, damage):
    with load_package(native_package, kv="int8") as model:
        names = block_names(model._prompts._blocks.key, PROMPT)
    (spoilt,) = folder.glob(f"*/{names[2].hex()[:32]}.rows")
    data = bytearray(spoilt.read_bytes())
    DAMAGES[damage](data)
    spoilt.write_bytes(data)
    with load_package(native_package, kv="int8", prompt_cache=folder) as model:
        result = answer(model)
        assert (facts(result), result.usage.cached_tokens) == (facts(stored[1]), 128)
        (warning,) = result.warnings
        assert f"{spoilt} was damaged, and is removed" in warning
        model.reset()
        # It was stored again.
        again = answer(model)
        assert (again.usage.cached_tokens, again.warnings) == (256, ())


@pytest.mark.skipif(os.name == "nt", reason="needs pipes and links")
def test_what_is_no_block_is_not_read(native_package, stored, folder, tmp_path):
    blocks = files(folder)
    secret = shutil.copy(blocks[0], tmp_path / "secret")
    for path, change in zip(
        blocks, (lambda p: p.symlink_to(secret), os.mkfifo, lambda p: p.mkdir(), lambda p: p.write_bytes(b"short")),
        strict=True,
    ):  # fmt: skip
        path.unlink()
        change(path)
    # What is in the way of a listing is a pipe, too, and says nothing.
    about = blocks[0].with_name("about.json")
    about.unlink()
    os.mkfifo(about)
    (listed,) = list_prompts(folder)
    assert (listed.model, listed.tokens) == ("?", 64)
    with load_package(native_package, kv="int8", prompt_cache=folder) as model:
        result = answer(model)
    assert facts(result) == facts(stored[1])
    assert result.usage.cached_tokens == 0
    clear_prompts(folder)
    assert [path.name for path in folder.glob("*/*")] == [blocks[2].name]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")
def test_files_of_other_users_are_not_trusted(native_package, folder):
    for path in files(folder):
        os.chown(path, 12345, -1)
    with load_package(native_package, kv="int8", prompt_cache=folder) as model:
        assert answer(model).usage.cached_tokens == 0
    os.chown(folder, 12345, -1)
    with pytest.raises(StorageError, match="belongs to another user"):
        load_package(native_package, kv="int8", prompt_cache=folder)


@pytest.mark.skipif(os.name == "nt", reason="needs resource limits")
def test_a_full_disk_does_not_stop_an_answer(native_package, stored, tmp_path):
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with load_package(native_package, kv="int8", prompt_cache=tmp_path) as model:
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, limits[1]))
        try:
            result = answer(model)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert facts(result) == facts(stored[1])
        (warning,) = result.warnings
        assert warning.startswith("The prompt was not stored. ")
        assert "the disk is full or a limit is reached" in warning
    assert [path.name for path in tmp_path.glob("*/*")] == ["about.json"]


@pytest.mark.skipif(os.name == "nt", reason="needs resource limits")
def test_nor_does_one_that_is_full_when_the_model_is_loaded(native_package, stored, tmp_path):
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with load_package(native_package, kv="int8", prompt_cache=tmp_path) as model:
            result = answer(model)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert facts(result) == facts(stored[1])
    (warning,) = result.warnings
    assert warning.startswith("The prompt was not stored. ")


def test_a_model_goes_on_storing_when_its_folder_was_cleared(native_package, tmp_path):
    with load_package(native_package, kv="int8", prompt_cache=tmp_path) as model:
        for prompt in (PROMPT, PROMPT[::-1]):
            assert answer(model, prompt).warnings == ()
            assert [one.tokens for one in list_prompts(tmp_path)] == [256]
            clear_prompts(tmp_path)
            assert list(tmp_path.iterdir()) == []
        shutil.rmtree(tmp_path)
        (warning,) = answer(model).warnings
        assert warning.startswith(f"The prompt was not stored. {tmp_path} cannot be used as a prompt cache.")
        tmp_path.mkdir()


def test_a_size_that_no_prompt_fits_is_refused(native_package, tmp_path):
    with pytest.raises(ConfigError, match="too small to keep a prompt"):
        load_package(native_package, kv="int8", prompt_cache=tmp_path / "new", prompt_cache_size=1000)
    assert not (tmp_path / "new").exists()


def test_the_folder_keeps_its_size_and_what_was_used_last(native_package, tmp_path):
    with load_package(native_package, kv="int8", prompt_cache=tmp_path) as model:
        size = model._prompts._blocks.size
    others = [[(seed + 7 * i) % 419 for i in range(257)] for seed in (1, 2)]
    with load_package(native_package, kv="int8", prompt_cache=tmp_path, prompt_cache_size=6 * size) as model:
        answer(model, others[0], tokens=1)
        answer(model, others[1], tokens=1)
        assert len(files(tmp_path)) == 6
        for prompt, cached in ((others[1], 256), (others[0], 128)):
            model.reset()
            # Of the other the blocks behind were removed, and the first stay useful.
            assert answer(model, prompt, tokens=1).usage.cached_tokens == cached, prompt[0]
            assert len(files(tmp_path)) <= 6


def test_leftovers_of_killed_writers_are_removed(native_package, folder):
    left = files(folder)[0].with_name(f".{files(folder)[0].name[:32]}.0123456789ab.tmp")
    left.write_bytes(b"half")
    os.utime(left, (0, 0))
    kept = folder / "notes.txt"
    kept.write_text("mine")
    with load_package(native_package, kv="int8", prompt_cache=folder) as model:
        answer(model, PROMPT[::-1])
    assert not left.exists()
    assert clear_prompts(folder) > 0
    assert list(folder.iterdir()) == [kept]
    assert list_prompts(folder) == []


def test_writers_of_one_prompt_do_not_disturb_each_other(native_package, stored, tmp_path):
    results = []

    def work():
        with load_package(native_package, kv="int8", prompt_cache=tmp_path) as model:
            results.append(answer(model))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(facts(one), one.warnings) for one in results] == [(facts(stored[1]), ())] * 3
    assert [path.read_bytes() for path in files(tmp_path)] == [path.read_bytes() for path in files(stored[0])]


def test_the_size_is_kept_by_several_writers(native_package, tmp_path):
    def work(seed):
        prompt = [(seed + 7 * i) % 419 for i in range(257)]
        with load_package(native_package, kv="int8", prompt_cache=tmp_path, prompt_cache_size=6 * size) as model:
            warnings.append(answer(model, prompt, tokens=1).warnings)

    with load_package(native_package, kv="int8") as model:
        size = model._prompts._blocks.size
    warnings = []
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert warnings == [()] * 3
    assert len(files(tmp_path)) == 6


def test_answers_of_several_slots_are_read_and_stored_as_well(native_package, tmp_path):
    prompts = [
        [*PROMPT[:cut], *[(3 * cut + 7 * i) % 419 for i in range(120)]] for cut in (0, 64, 130, 200, 300, 64, 10)
    ]
    options = [{"temperature": 0.8, "seed": 5} if index % 2 else GREEDY for index in range(len(prompts))]
    with load_package(native_package, kv="int8") as model:
        plain = [answer(model, prompt, **own) for prompt, own in zip(prompts, options, strict=True)]
    cached = []
    for slots in (4, 1, 3):
        with load_package(native_package, kv="int8", slots=slots, prompt_cache=tmp_path) as model:
            asked = list(zip(prompts, options, strict=True))
            results = list(model.generate_many(asked, max_tokens=20, logprobs=2))
        assert [facts(one) for one in results] == [facts(one) for one in plain]
        assert [one.warnings for one in results] == [()] * len(prompts)
        cached.append([one.usage.cached_tokens for one in results])
    assert cached[1] == [64, 128, 192, 256, 384, 128, 128]
    assert all(second >= first for first, second in zip(cached[1], cached[2], strict=True))


def test_packages_whose_rows_cannot_be_stored_are_refused(small_package, segmented_window, tmp_path):
    for package, why in ((small_package, "portable"), (segmented_window.cut, "sliding window")):
        with pytest.raises(ConfigError, match=why):
            load_package(package, prompt_cache=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_what_does_not_go_together_is_refused(native_package, tmp_path):
    with pytest.raises(ConfigError, match="no prompt cache"):
        LoadOptions(prompt_cache_size="1GiB")
    package = open_package(native_package)
    plan: Plan = plan_package(package, LoadOptions())
    with pytest.raises(ConfigError, match="no room for rows of stored prompts"):
        LoadOptions(plan=plan, prompt_cache=tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file"):
        load_package(native_package, prompt_cache=tmp_path / "file")


class TestRowsFile:
    """A file that was named is right, or an error."""

    KEY = bytes(range(32))

    def blocks_of(self):
        memory = np.arange(2 * 256 * 6).astype(np.uint8).reshape(2, 256, 6)
        return RowBlocks(self.KEY, lambda: [memory])

    @pytest.fixture
    def blocks(self):
        return self.blocks_of()

    @pytest.fixture
    def path(self, blocks, tmp_path):
        self.write(blocks, tmp_path / "prompt.rows")
        return tmp_path / "prompt.rows"

    def write(self, blocks, path):
        block, before, parts = blocks.buffer(), self.KEY, []
        for index, name in enumerate(block_names(self.KEY, PROMPT[:192])):
            token_ids = PROMPT[64 * index : 64 * index + 64]
            assert blocks.pack(before, token_ids, np.arange(64 * index, 64 * index + 64), block)
            parts.append(block.tobytes())
            before = name
        path.write_bytes(b"".join(parts))

    def test_its_blocks_are_those_of_a_prompt(self, blocks, path):
        opened, block = RowsFile(path, blocks), blocks.buffer()
        assert opened.tokens == 192
        names = block_names(self.KEY, PROMPT)
        assert [opened.read(name, block) for name in names] == [True, True, True, False]
        assert opened.read(names[1], block)
        blocks.check(names[0], PROMPT[64:128], block)
        with pytest.raises(InvalidPromptCache, match="tokens are others"):
            blocks.check(names[0], PROMPT[:64], block)

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda data: data[:-1], "a block has"),
            (lambda data: data[:50], "does not begin"),
            (lambda data: b"", "does not begin"),
            (lambda data: data * 2, "Block 3 does not follow"),
            (lambda data: data[len(data) // 3 :], "Block 0 does not follow"),
            (lambda data: b"X" + data[1:], "does not begin"),
            (lambda data: data[:16] + b"\x09" + data[17:], "version is 9"),
            (lambda data: data[:30] + b"\x09" + data[31:], "another package"),
            (lambda data: data[:88] + b"\xff" * 8 + data[96:], "Block 0 does not follow"),
            (lambda data: data[:130] + b"\xff" * 8 + data[138:], "Block 1 does not follow"),
        ],
    )
    def test_malformed_ones_are_refused(self, blocks, path, change, words):
        path.write_bytes(change(path.read_bytes()))
        with pytest.raises(InvalidPromptCache, match=words):
            RowsFile(path, blocks)

    @settings(max_examples=share_of(40))
    @given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=4), st.floats(0, 1), st.booleans())
    @example(changes=[], length=1 / 3, is_cut=True)
    def test_whatever_is_changed_is_noticed(self, changes, length, is_cut):
        blocks, block = self.blocks_of(), self.blocks_of().buffer()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "prompt.rows"
            self.write(blocks, path)
            whole = path.read_bytes()
            data = bytearray(whole)
            for at, byte in changes:
                data[int(at * (len(data) - 1))] = byte
            path.write_bytes(data[: int(length * len(data))] if is_cut else data)
            try:
                opened = RowsFile(path, blocks)
                opened.verify()
            except InvalidPromptCache:
                assert path.read_bytes() != whole
                return
            # One that ends behind a block is that of a shorter prompt.
            left = path.read_bytes()
            assert whole.startswith(left)
            assert opened.tokens == 192 * len(left) / len(whole)
            names = block_names(self.KEY, PROMPT)[:3]
            assert [opened.read(name, block) for name in names] == [64 * n < opened.tokens for n in range(3)]

    def test_so_are_links_and_what_is_not_there(self, blocks, path, tmp_path):
        (tmp_path / "link").symlink_to(path)
        for name in ("link", "absent", "."):
            with pytest.raises((InvalidPromptCache, StorageError)):
                RowsFile(tmp_path / name, blocks)

    def test_damaged_rows_are_refused_or_a_warning_when_the_damage_comes_later(self, native_package, tmp_path):
        with load_package(native_package, kv="int8") as model:
            plain, path = answer(model), tmp_path / "rows"
            assert model.save_rows(path, PROMPT) == 256
            model.load_rows(path)
            data = bytearray(path.read_bytes())
            data[-1] ^= 1
            path.write_bytes(data)
            with pytest.raises(InvalidPromptCache, match="Block 3: Its SHA-256"):
                model.load_rows(path)
            for warned in (True, False):
                model.reset()
                result = answer(model)
                assert (facts(result), result.usage.cached_tokens) == (facts(plain), 192)
                assert [f"{path} is damaged" in text for text in result.warnings] == [True] * warned


class TestSavedChats:
    """A conversation with what was computed of it."""

    @pytest.fixture
    def chat(self, native_package, tmp_path):
        """The path of a saved chat, and what its next answer is."""
        with load_package(native_package, kv="int8") as model:
            chat = model.chat()
            chat.send("The little boat left the harbour. " * 10, max_tokens=20, **GREEDY)
            chat.save(tmp_path / "chat.json", with_cache=True)
            return tmp_path / "chat.json", chat.send("And then?", max_tokens=20, **GREEDY)

    def test_the_next_answer_goes_on_from_there(self, native_package, chat):
        path, expected = chat
        assert sorted(one.name for one in path.parent.iterdir()) == ["chat.json", "chat.json.rows"]
        with load_package(native_package, kv="int8") as model:
            again = model.chat()
            saved = again.load(path)
            # What was loaded is saved again, though nothing was computed.
            again.save(path.with_name("copy.json"), with_cache=True)
            copied = path.with_name("copy.json.rows")
            assert copied.read_bytes() == path.with_name("chat.json.rows").read_bytes()
            result = again.send("And then?", max_tokens=20, **GREEDY)
            assert (result.token_ids, result.usage.prompt_tokens) == (expected.token_ids, expected.usage.prompt_tokens)
            assert result.usage.cached_tokens == saved.cached_tokens == 128
            # Tokens that are not those of the text are not believed.
            document = json.loads(path.read_text())
            for wrong in ([5] * 150, [-1], [1 << 40]):
                path.write_text(json.dumps({**document, "token_ids": wrong}))
                again.load(path)
                assert again._context is None
            for name, value in (("token_ids", ["x"]), ("token_ids", 3), ("cached_tokens", -1), ("cached_tokens", "1")):
                path.write_text(json.dumps({**document, name: value}))
                with pytest.raises(InputError, match=name):
                    again.load(path)

    def test_damage_and_other_formats_are_errors_that_change_nothing(self, native_package, chat):
        path, _ = chat
        rows = path.with_name("chat.json.rows")
        with load_package(native_package, kv="f16") as model:
            other = model.chat(system="Stay.")
            with pytest.raises(InvalidPromptCache, match="another format of the cache"):
                other.load(path)
            assert [message["content"] for message in other.messages] == ["Stay."]
            other.load(path, with_cache=False)
        data = bytearray(rows.read_bytes())
        data[-1] ^= 1
        rows.write_bytes(data)
        with load_package(native_package, kv="int8") as model:
            with pytest.raises(InvalidPromptCache, match="SHA-256"):
                model.chat().load(path)
            rows.unlink()
            with pytest.raises((InvalidPromptCache, StorageError)):
                model.chat().load(path)

    def test_models_whose_rows_cannot_be_stored_say_so(self, small_package, chat, tmp_path):
        with load_package(small_package) as model:
            for act in (lambda c: c.load(chat[0]), lambda c: c.save(tmp_path / "new.json", with_cache=True)):
                with pytest.raises(ConfigError, match=r"portable.* with_cache=False"):
                    act(model.chat())
            with pytest.raises(ConfigError, match=r"portable.* Leave it to be computed"):
                model.carry_prompt("Be brief.")
        assert not (tmp_path / "new.json").exists()


class TestPackagesOwnPrompts:
    """A package carries what was computed of a system message."""

    SYSTEM = "You are the keeper of the lighthouse, and you answer in short sentences. " * 5

    @pytest.fixture
    def package(self, native_package, tmp_path):
        path = shutil.copytree(native_package, tmp_path / "package")
        with load_package(path, kv="int8") as model:
            before = model.package.id
            rows, tokens = model.carry_prompt(self.SYSTEM)
        assert (rows.parent, tokens, open_package(path).id) == (path / "prompts", 192, before)
        return shutil.move(path, tmp_path / "elsewhere")

    def ask(self, package, **options):
        with load_package(package, **{"kv": "int8", **options}) as model:
            return model.chat(system=self.SYSTEM).send("What do you see?", max_tokens=8, logprobs=1, **GREEDY)

    def test_every_load_reads_them(self, native_package, package, tmp_path):
        plain = self.ask(native_package)
        for options in ({}, {"isa": "scalar"}, {"prompt_cache": tmp_path / "too"}):
            result = self.ask(package, **options)
            assert (facts(result), result.usage.cached_tokens) == (facts(plain), 192)
        assert self.ask(package, kv="f16").usage.cached_tokens == 0

    @pytest.mark.skipif(os.name == "nt", reason="needs pipes and links")
    def test_what_is_damaged_or_hostile_there_stops_nothing(self, native_package, package):
        plain = facts(self.ask(native_package))
        (path,) = (package / "prompts").iterdir()
        data = path.read_bytes()
        os.mkfifo(package / "prompts" / "pipe.rows")
        (package / "prompts" / "link.rows").symlink_to("/dev/zero")
        for changed, cached, warned in (
            (data[:-1], 0, "a block has"),
            (data[:-1] + bytes([data[-1] ^ 1]), 128, "is damaged"),
            (data[:40], 0, None),
            (data[:70] + b"x" + data[71:], 0, "does not follow"),
        ):
            path.write_bytes(changed)
            result = self.ask(package)
            assert (facts(result), result.usage.cached_tokens) == (plain, cached)
            assert [str(warned) in text for text in result.warnings] == ([] if warned is None else [True])

    def test_more_than_are_read_are_a_warning_and_one_more_is_refused(self, package):
        (path,) = (package / "prompts").iterdir()
        for index in range(MOST_CARRIED):
            (path.parent / f"{index:03}.rows").hardlink_to(path)
        result = self.ask(package)
        assert result.usage.cached_tokens == 192
        (warning,) = result.warnings
        assert "has more files than are read: 256 for one model" in warning
        with load_package(package, kv="int8") as model, pytest.raises(ConfigError, match="as many system messages"):
            model.carry_prompt(self.SYSTEM[::-1])
        assert self.ask(package, kv="f16").warnings == ()

    def test_they_stay_when_the_package_is_made_again(self, small_gguf, package):
        export_model(small_gguf, package, profile="native", force=True)
        assert self.ask(package).usage.cached_tokens == 192

    def test_a_short_message_is_refused(self, native_package):
        with load_package(native_package) as model, pytest.raises(ConfigError, match="too short"):
            model.carry_prompt("Be brief.")
        assert not (native_package / "prompts").exists()
