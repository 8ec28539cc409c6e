"""Prompts that are remembered: rows of the longest beginning that is stored are read instead of computed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from edge_rt.errors import ConfigError, EdgeRTError, InvalidPromptCache, StorageError
from edge_rt.package.kv_formats import BLOCK_TOKENS
from edge_rt.runtime.cache.block_folder import LEAST_TOKENS, BlockFolder, as_bytes
from edge_rt.runtime.cache.kv_cache import KVCache
from edge_rt.runtime.cache.row_blocks import Array, RowBlocks, block_names
from edge_rt.runtime.cache.row_states import RowStates, state_names
from edge_rt.runtime.cache.rows_file import BlockSource, RowsFile, key_of
from edge_rt.system.files import write_atomically

MOST_CARRIED: Final = 256
"""Files of a package's folder, with rows of one format of the cache."""
_MOST_NAMES: Final = 16 * MOST_CARRIED
"""Files of a package's folder at all."""


def carried_files(folder: Path, key: bytes) -> tuple[list[Path], bool]:
    """Return the files of a package's folder that have a key, and whether these are all."""
    if folder.is_symlink():
        return [], True
    names = sorted(islice(folder.glob("*.rows"), _MOST_NAMES + 1))
    paths = [path for path in names if key_of(path) == key]
    return paths[:MOST_CARRIED], len(names) <= _MOST_NAMES and len(paths) <= MOST_CARRIED


class PromptCache:
    """Reads and writes the rows of a model's prompts, and states behind them where its layers have some.

    It never stops an answer: what cannot be read is computed, and what cannot be written is said.

    Args:
        blocks: of the model's cache.
        folder: where prompts are kept; None: nowhere.
        states: of the same model; None: rows are enough to go on from.
    """

    def __init__(self, blocks: RowBlocks, folder: BlockFolder | None = None, states: RowStates | None = None) -> None:
        self._blocks = blocks
        self._states = states
        self._folder = folder
        self._files: list[RowsFile] = []
        self._named: RowsFile | None = None
        self._warnings: list[str] = []

    @property
    def has_states(self) -> bool:
        """Whether a prompt is gone on from states alone."""
        return self._states is not None

    def add_folder(self, folder: Path) -> None:
        """Read from the files of a package's folder as well, as far as they belong to this model and its cache."""
        paths, is_all = carried_files(folder, self._blocks.key)
        if not is_all:
            self._warnings.append(
                f"{folder} has more files than are read: {MOST_CARRIED} for one model and format of the cache, "
                f"{_MOST_NAMES} together. Remove some of them."
            )
        for path in paths:
            try:
                self._files.append(RowsFile(path, self._blocks, self._states))
            except (InvalidPromptCache, StorageError) as error:
                self._warnings.append(str(error))

    def file_in(self, folder: Path, token_ids: Sequence[int]) -> Path:
        """Return the path of a prompt's file in a package's folder.

        Raises:
            ConfigError: it would be one more than are read.
        """
        path = folder / f"{block_names(self._blocks.key, token_ids)[-1].hex()[:16]}.rows"
        if not path.exists() and len(carried_files(folder, self._blocks.key)[0]) == MOST_CARRIED:
            raise ConfigError(
                "The package carries as many system messages as are read.",
                f"{folder} has {MOST_CARRIED} files for this format of the cache.",
                "Remove one of them.",
            )
        return path

    def take_warnings(self) -> tuple[str, ...]:
        """Return what went wrong since it was asked last, one sentence each."""
        taken, self._warnings = tuple(self._warnings), []
        return taken

    def read_from(self, path: Path) -> None:
        """Read from a file as well, instead of the one that was named before; every byte of it is checked.

        Raises:
            InvalidPromptCache, StorageError: as ``RowsFile``.
        """
        named = RowsFile(path, self._blocks, self._states)
        named.verify()
        self._named = named

    def restore(self, cache: KVCache, token_ids: Sequence[int]) -> int:
        """Read rows of a prompt that begins with what the cache holds; return how many tokens it holds then.

        The last token is left: what follows it has to be computed. Of a model with states it reads up to the longest
        beginning of which a state is stored, or nothing.
        """
        sources, most = self._sources(), len(token_ids) - 1
        if not sources:
            return cache.length
        if self._states is not None:
            return self._restore_state(self._states, sources, cache, token_ids)
        begin, whole = cache.length // BLOCK_TOKENS, most // BLOCK_TOKENS
        if begin >= whole:
            return cache.length
        names = self._names(token_ids[: whole * BLOCK_TOKENS])
        block = self._blocks.buffer()
        for index in range(begin, whole):
            pending = token_ids[index * BLOCK_TOKENS : (index + 1) * BLOCK_TOKENS]
            if not self._read(sources, names[index], names[index + 1], pending, block):
                break
            # The cache may hold a part of the first block, which others may share.
            missing = (index + 1) * BLOCK_TOKENS - cache.length
            with cache.reserve(missing) as rows:
                self._blocks.unpack(block, cache.rows(rows.start, rows.start + missing))
                rows.commit(pending[-missing:])
        return cache.length

    def _restore_state(
        self, states: RowStates, sources: Sequence[BlockSource], cache: KVCache, token_ids: Sequence[int]
    ) -> int:
        stored = {name for source in sources for name in source.states()}
        begin, end = cache.length + 1, len(token_ids) - 1
        if not stored or begin > end:
            return cache.length
        names = self._names(token_ids[:end])
        found = [(length, name) for length, name in state_names(names, token_ids, begin, end) if name in stored]
        block = self._blocks.buffer()
        for length, name in reversed(found):
            missing = length - cache.length
            with cache.reserve(missing, is_restored=True) as rows:
                if self._fill(states, sources, cache, token_ids[:length], names, name, block):
                    rows.commit(token_ids[cache.length : length])
                    break
        return cache.length

    def _fill(
        self, states: RowStates, sources: Sequence[BlockSource], cache: KVCache, token_ids: Sequence[int],
        names: Sequence[bytes], name: bytes, block: Array,
    ) -> bool:  # fmt: skip
        """Fill the rows that are reserved behind the cache's, and the spare state, from files; return whether it could.

        Args:
            token_ids: with those of the cache before them.
            name: of their state.
        """
        whole = len(token_ids) // BLOCK_TOKENS
        for index in range(cache.length // BLOCK_TOKENS, whole):
            end = (index + 1) * BLOCK_TOKENS
            if not self._read(sources, names[index], names[index + 1], token_ids[end - BLOCK_TOKENS : end], block):
                return False
            self._blocks.unpack(block, cache.rows(max(cache.length, end - BLOCK_TOKENS), end))
        tail, state = token_ids[whole * BLOCK_TOKENS :], cache.spare_state(len(token_ids))
        for source in sources:
            try:
                if source.read_state(name, [block, *state]):
                    states.check(names[whole], tail, block, state)
                    begin = max(cache.length, whole * BLOCK_TOKENS)
                    states.unpack(block, cache.rows(begin, len(token_ids)), begin - whole * BLOCK_TOKENS)
                    return True
            except InvalidPromptCache as error:
                self._warnings.append(source.spoilt_state(name, str(error)))
            except (EdgeRTError, OSError) as error:
                self._warnings.append(f"A part of a stored prompt could not be read. {error}")
        return False

    def _names(self, token_ids: Sequence[int]) -> list[bytes]:
        """Return the key, and the names of a text's whole blocks."""
        return [self._blocks.key, *block_names(self._blocks.key, token_ids)]

    def _sources(self) -> list[BlockSource]:
        sources: tuple[BlockSource | None, ...] = (self._named, *self._files, self._folder)
        return [source for source in sources if source is not None]

    def _read(
        self, sources: Sequence[BlockSource], before: bytes, name: bytes, token_ids: Sequence[int], block: Array
    ) -> bool:
        for source in sources:
            try:
                if source.read(name, block):
                    self._blocks.check(before, token_ids, block)
                    return True
            except InvalidPromptCache as error:
                self._warnings.append(source.spoilt(name, str(error)))
            except (EdgeRTError, OSError) as error:
                self._warnings.append(f"A part of a stored prompt could not be read. {error}")
        return False

    def store(self, cache: KVCache) -> None:
        """Write the rows that the cache holds, as far as they are not stored yet; what goes wrong is a warning."""
        if self._folder is None or cache.length < LEAST_TOKENS:
            return
        try:
            self._store(self._folder, cache)
        except MemoryError:
            self._warnings.append("The prompt was not stored. There is no memory for a copy of what is stored.")
        except (EdgeRTError, OSError) as error:
            self._warnings.append(f"The prompt was not stored. {error}")

    def _store(self, folder: BlockFolder, cache: KVCache) -> None:
        token_ids = cache.token_ids
        states = {} if self._states is None else cache.states_of(token_ids)
        if self._states is not None:
            # Rows behind the last state are nothing that could be gone on from.
            token_ids = token_ids[: max(states, default=0)]
        names = self._names(token_ids)[: folder.most_blocks + 1]
        kept = self._state_names(folder, names, token_ids, states)
        if self._states is not None and not kept:
            return
        missing = [index for index, name in enumerate(names[1:]) if not folder.has(name)]
        new = {length: name for length, name in kept.items() if not folder.has_state(name)}
        used = {name: length // BLOCK_TOKENS for length, name in kept.items()}
        folder.touch(names[1:], used)
        if missing or new:
            folder.make_room(len(missing), len(new))
        block = self._blocks.buffer()
        for index in missing:
            if not self._pack(cache, token_ids, names[index], index, block):
                return
            folder.write(names[index + 1], block)
        for length, name in new.items():
            if not self._pack_state(cache, names, token_ids[:length], states[length], block):
                return
            folder.write_state(name, [block, *states[length]])
        folder.touch(names[1:], used)
        if missing or new:
            # Another process may have written meanwhile.
            folder.trim()

    def _state_names(
        self, folder: BlockFolder, names: Sequence[bytes], token_ids: Sequence[int], states: Collection[int]
    ) -> dict[int, bytes]:
        """Return of how many tokens states are stored -> their names: of the longest beginnings that have room."""
        blocks = len(names) - 1
        fitting = [length for length in states if LEAST_TOKENS <= length < (blocks + 1) * BLOCK_TOKENS]
        room = (folder.limit - blocks * folder.size) // max(folder.state_size, 1)
        return {length: next(state_names(names, token_ids, length, length))[1] for length in sorted(fitting)[-room:]}

    def _pack_state(
        self, cache: KVCache, names: Sequence[bytes], token_ids: Sequence[int], state: Sequence[Array], head: Array
    ) -> bool:
        assert self._states is not None
        whole = len(token_ids) // BLOCK_TOKENS
        begin = whole * BLOCK_TOKENS
        rows = cache.rows(begin, len(token_ids))
        return self._states.pack(names[whole], token_ids[begin:], rows, state, head)

    def _pack(self, cache: KVCache, token_ids: Sequence[int], before: bytes, index: int, block: Array) -> bool:
        begin, end = index * BLOCK_TOKENS, (index + 1) * BLOCK_TOKENS
        return self._blocks.pack(before, token_ids[begin:end], cache.rows(begin, end), block)

    def write_file(self, path: Path, cache: KVCache, token_ids: Sequence[int], *, private: bool = True) -> int:
        """Write the rows that the cache holds, or that are stored, of a prompt into one file; return their tokens.

        Nothing is written if there is no whole block of them.

        Args:
            private: for its owner only.

        Raises:
            StorageError: the file cannot be written.
        """
        if self._sources():
            # A conversation that was loaded and not gone on with is in no memory yet.
            cache.keep_state()
            cache.truncate(cache.common_prefix(token_ids))
            self.restore(cache, token_ids)
        count = cache.common_prefix(token_ids)
        states = cache.states_of(token_ids)
        if self._states is not None:
            count = max(states, default=0)
        whole = count // BLOCK_TOKENS
        if not whole:
            return 0
        names = self._names(token_ids[: whole * BLOCK_TOKENS])
        block = self._blocks.buffer()

        def parts() -> Iterator[memoryview]:
            for index in range(whole):
                self._pack(cache, token_ids, names[index], index, block)
                yield block.data
            if self._states is not None:
                self._pack_state(cache, names, token_ids[:count], states[count], block)
                yield block.data
                yield from map(as_bytes, states[count])

        write_atomically(path, parts(), private=private, parents=True)
        return whole * BLOCK_TOKENS if self._states is None else count
