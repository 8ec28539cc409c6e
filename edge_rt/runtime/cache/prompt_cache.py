"""Prompts that are remembered: rows of the longest beginning that is stored are read instead of computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from edge_rt.errors import ConfigError, EdgeRTError, InvalidPromptCache, StorageError
from edge_rt.package.kv_formats import BLOCK_TOKENS
from edge_rt.runtime.cache.block_folder import LEAST_TOKENS, BlockFolder
from edge_rt.runtime.cache.kv_cache import KVCache
from edge_rt.runtime.cache.row_blocks import (
    Array,
    BlockSource,
    RowBlocks,
    RowsFile,
    block_names,
    key_of,
)
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
    """Reads and writes the rows of a model's prompts.

    It never stops an answer: what cannot be read is computed, and what cannot be written is said.

    Args:
        blocks: of the model's cache.
        folder: where prompts are kept; None: nowhere.
    """

    def __init__(self, blocks: RowBlocks, folder: BlockFolder | None = None) -> None:
        self._blocks = blocks
        self._folder = folder
        self._files: list[RowsFile] = []
        self._named: RowsFile | None = None
        self._warnings: list[str] = []

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
                self._files.append(RowsFile(path, self._blocks))
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
        named = RowsFile(path, self._blocks)
        named.verify(self._blocks)
        self._named = named

    def restore(self, cache: KVCache, token_ids: Sequence[int]) -> int:
        """Read rows of a prompt that begins with what the cache holds; return how many tokens it holds then.

        The last token is left: what follows it has to be computed.
        """
        sources = self._sources()
        begin, whole = cache.length // BLOCK_TOKENS, (len(token_ids) - 1) // BLOCK_TOKENS
        if begin >= whole or not sources:
            return cache.length
        names = [self._blocks.key, *block_names(self._blocks.key, token_ids[: whole * BLOCK_TOKENS])]
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
        folder = self._folder
        if folder is None or cache.length < LEAST_TOKENS:
            return
        token_ids = cache.token_ids
        names = [self._blocks.key, *block_names(self._blocks.key, token_ids)][: folder.most_blocks + 1]
        missing = [index for index, name in enumerate(names[1:]) if not folder.has(name)]
        try:
            folder.touch(names[1:])
            if missing:
                folder.make_room(len(missing))
            block = self._blocks.buffer()
            for index in missing:
                if not self._pack(cache, token_ids, names[index], index, block):
                    return
                folder.write(names[index + 1], block)
            folder.touch(names[1:])
            if missing:
                # Another process may have written meanwhile.
                folder.trim()
        except (EdgeRTError, OSError) as error:
            self._warnings.append(f"The prompt was not stored. {error}")

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
            cache.truncate(cache.common_prefix(token_ids))
            self.restore(cache, token_ids)
        count = cache.common_prefix(token_ids) // BLOCK_TOKENS
        names = [self._blocks.key, *block_names(self._blocks.key, token_ids[: count * BLOCK_TOKENS])]
        block = self._blocks.buffer()

        def parts() -> Iterator[memoryview]:
            for index in range(count):
                self._pack(cache, token_ids, names[index], index, block)
                yield block.data

        if count:
            write_atomically(path, parts(), private=private, parents=True)
        return count * BLOCK_TOKENS
