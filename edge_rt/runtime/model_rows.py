"""What a loaded model does with the rows of its KV cache: passes of one's own, and rows of prompts in files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence as Items
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

from edge_rt.device.names import DeviceChoice
from edge_rt.errors import Busy, ConfigError
from edge_rt.package.kv_formats import BLOCK_TOKENS, ROW_BLOCK
from edge_rt.package.manifest import PROMPTS_FOLDER
from edge_rt.package.reader import Package
from edge_rt.runtime.batch import Batch
from edge_rt.runtime.cache.checkpoints import SHORT
from edge_rt.runtime.cache.kv_cache import KVCache, common_prefix
from edge_rt.runtime.cache.prompt_cache import PromptCache
from edge_rt.runtime.cache.row_pool import RowPool
from edge_rt.runtime.forward.cancel import CancelToken
from edge_rt.runtime.forward.runner import ExclusiveRunner, Runner
from edge_rt.runtime.load.facts import why_rows_are_not_stored
from edge_rt.runtime.model_texts import ModelTexts
from edge_rt.system.option_names import known_options

_WITHOUT_ROWS: Final = "Give with_cache=False."


class ModelRows(ModelTexts, ABC):
    """The KV cache of a model, with and without slots."""

    package: Package
    device_choice: DeviceChoice
    _runner: ExclusiveRunner
    _cache: KVCache
    _pool: RowPool | None
    _batch: Batch | None
    _prompts: PromptCache | None

    @property
    def cached_tokens(self) -> int:
        """Tokens in the KV cache; with slots, rows that are taken, in blocks of 16."""
        if self._pool is None:
            return self._cache.length
        return ROW_BLOCK * (self._pool.num_blocks - self._pool.num_free)

    @contextmanager
    def passes(self) -> Generator[tuple[Runner, KVCache]]:
        """Hold the model for passes of one's own over its cache: for measurements and tests.

        With slots it waits until the generations before it have ended, and those that come later wait.

        Raises:
            Busy: a generation is running, without slots.
        """
        with self._alone() as runner:
            yield runner, self._cache

    def _alone(self, cancel: CancelToken | None = None) -> AbstractContextManager[Runner]:
        """Hold the model for passes of no generation."""
        return self._runner.hold(CancelToken(), cancel) if self._batch is None else self._batch.alone(cancel)

    def reset(self) -> None:
        """Empty the KV cache; what the drafters have learned stays. With slots, answers under way keep their rows.

        Raises:
            Busy: a generation is running, without slots.
        """
        if self._batch is not None:
            self._runner.get()
            self._batch.forget_rows()
            return
        with self.passes() as (_, cache):
            cache.truncate(0)

    def save_rows(self, path: Path, token_ids: Items[int]) -> int:
        """Write the rows that the cache holds of a prompt into a file; return of how many tokens, 0 if it is short.

        Raises:
            ConfigError: rows of this model's cache cannot be stored.
            Busy, ModelClosed, StorageError: it is generating, it is closed, the file cannot be written.
        """
        prompts = self._require_prompts(_WITHOUT_ROWS)
        with self._alone():
            return prompts.write_file(path, self._cache_with(token_ids), token_ids)

    @known_options()
    def carry_prompt(self, system: str) -> tuple[Path, int]:
        """Compute a system message and keep its rows in the package, so that chats that begin with it need not.

        The package's folder ``prompts`` goes with it to other machines; every load with the same format of the cache
        reads it.

        Args:
            system: the message, as chats will have it.

        Returns:
            The file, and of how many tokens it holds the rows.

        Raises:
            ConfigError: the message has too few tokens, the package carries as many as are read, or rows of this
                model's cache cannot be stored.
            Busy, ModelClosed, StorageError, InvalidTemplate, ContextOverflow: as in ``generate``, or the package's
                folder cannot be written.
        """
        prompts = self._require_prompts("Leave it to be computed.")
        first, second = (
            self.tokenizer.encode_rendered(
                self.render([{"role": "system", "content": system}, {"role": "user", "content": text}])
            )
            for text in ("a", "1")
        )
        count, least = common_prefix(first, second), BLOCK_TOKENS
        if prompts.has_states:
            # The state that is kept may be one of fewer tokens.
            least += SHORT
        else:
            count = count // BLOCK_TOKENS * BLOCK_TOKENS
        if count < least:
            raise ConfigError(
                "The system message is too short to be worth a file.",
                f"Chats have {common_prefix(first, second)} tokens in common; {least} are needed.",
                "Leave it to be computed.",
            )
        path = prompts.file_in(self.package.path / PROMPTS_FOLDER, first[:count])
        self._compute(first[:count])
        with self._alone():
            written = prompts.write_file(path, self._cache_with(first[:count]), first[:count], private=False)
        if not written:
            raise Busy(
                "The rows of the system message were replaced before they were written.",
                "Another generation ran in between.",
                "Do it again while nothing is generated.",
            )
        return path, written

    def _cache_with(self, token_ids: Items[int]) -> KVCache:
        """Return a cache with all that is held of a prompt; nothing may be generated."""
        return self._cache if self._batch is None else self._batch.admission.cache_with(token_ids)

    def load_rows(self, path: Path) -> None:
        """Read rows of a file of ``save_rows`` when a prompt begins with its tokens.

        Raises:
            InvalidPromptCache: it is malformed or damaged, or of another package or format of the cache.
            ConfigError, StorageError: rows of this model cannot be stored, the file cannot be read.
        """
        self._require_prompts(_WITHOUT_ROWS).read_from(path)

    def _require_prompts(self, action: str) -> PromptCache:
        if self._prompts is None:
            manifest = self.package.manifest
            why = why_rows_are_not_stored(manifest) or f"They lie on {self.device_choice.device}."
            raise ConfigError("Rows of this model's cache cannot be stored.", why, action)
        return self._prompts

    @abstractmethod
    def _compute(self, token_ids: Items[int]) -> None:
        """Compute what the cache does not hold of a prompt."""
