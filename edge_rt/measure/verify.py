"""Verify that speculative decoding gives the same tokens as plain decoding, by answering every prompt both ways."""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Mapping, Sequence as Items
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from edge_rt.errors import ConfigError, InputError, StorageError
from edge_rt.measure.prompts import PLAIN, LeftOut, Prompt, answer_each, first_difference, steps_of
from edge_rt.runtime.config import GenerationConfig
from edge_rt.runtime.forward.cancel import CancelToken
from edge_rt.system.byte_size import show_size
from edge_rt.system.files import O_BINARY, write_all
from edge_rt.system.json_files import parse_object

if TYPE_CHECKING:
    from edge_rt.runtime.model import Model


@dataclass(frozen=True)
class Difference:
    """The first token in which a speculative answer differs from the plain one.

    Attributes:
        plain: token id of the plain answer there; None if it had ended.
        speculative: token id of the speculative answer there; None if it had ended.
    """

    kv: str
    drafter: str
    prompt: int
    position: int
    plain: int | None
    speculative: int | None


@dataclass(frozen=True)
class Answer:
    """The answer to one prompt with one cache format and one mode.

    Attributes:
        overflow: tokens of the prompt, requested tokens and capacity of the context, if the prompt was left out because
            it does not fit; otherwise None.
    """

    kv: str
    mode: str
    prompt: int
    token_ids: tuple[int, ...]
    steps: int
    drafted: int = 0
    overflow: tuple[int, int, int] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the answer as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Any) -> Answer:
        """Return the answer that ``to_json`` wrote."""
        overflow = document["overflow"]
        if overflow is not None:
            prompt_tokens, requested, context = map(_count, overflow)
            overflow = (prompt_tokens, requested, context)
        return cls(
            str(document["kv"]),
            str(document["mode"]),
            _count(document["prompt"]),
            tuple(map(_count, document["token_ids"])),
            _count(document["steps"]),
            _count(document["drafted"]),
            overflow,
        )


def answers(
    model: Model,
    prompts: Items[Prompt],
    config: GenerationConfig,
    mode: str,
    *,
    kv: str,
    raw: bool = False,
    cancel: CancelToken | None = None,
) -> Generator[Answer]:
    """Answer every prompt with one mode, as ``answer_each``; ``kv`` is the format of the model's KV cache."""
    for prompt, item in answer_each(model, prompts, config, (mode,), raw=raw, cancel=cancel):
        if isinstance(item, LeftOut):
            numbers = (item.prompt_tokens, item.requested_tokens, item.context_tokens)
            yield Answer(kv, mode, prompt.index, (), 0, overflow=numbers)
        else:
            [result] = item
            drafted = 0 if result.spec is None else result.spec.rows_drafted
            yield Answer(kv, mode, prompt.index, result.token_ids, steps_of(result), drafted)


def compare(plain: Answer, speculative: Answer) -> Difference | None:
    """Return the first difference of two answers to a prompt, or None if they are equal."""
    parted = first_difference(plain.token_ids, speculative.token_ids)
    return None if parted is None else Difference(speculative.kv, speculative.mode, speculative.prompt, *parted)


def summary(found: Items[Answer], modes: Items[str]) -> dict[str, Any]:
    """Return the results as a JSON object.

    ``prompts`` counts the compared prompts, once per cache format. ``identical`` counts those whose answers were the
    same with every drafter. ``tokens_per_step`` counts tokens and passes after every answer's first token, and is None
    if there were none. Where ``drafted`` is 0, identical answers prove nothing: they are plain ones.
    """
    plain = {(answer.kv, answer.prompt): answer for answer in found if answer.mode == PLAIN}
    compared = {place for place, answer in plain.items() if answer.overflow is None}
    by_drafter: dict[str, Any] = {}
    differences: list[Difference] = []
    for mode in modes:
        own = [answer for answer in found if answer.mode == mode and (answer.kv, answer.prompt) in compared]
        parted = [item for answer in own if (item := compare(plain[answer.kv, answer.prompt], answer)) is not None]
        differences += parted
        decoded_tokens = sum(max(len(answer.token_ids) - 1, 0) for answer in own)
        steps = sum(answer.steps for answer in own)
        by_drafter[mode] = {
            "prompts": len(own),
            "identical": len(own) - len(parted),
            "first_difference": asdict(parted[0]) if parted else None,
            "tokens": sum(len(answer.token_ids) for answer in own),
            "tokens_per_step": decoded_tokens / steps if steps else None,
            "drafted": sum(answer.drafted for answer in own),
        }
    return {
        "prompts": len(compared),
        "identical": len(compared) - len({(item.kv, item.prompt) for item in differences}),
        "first_difference": asdict(differences[0]) if differences else None,
        "drafted": sum(item["drafted"] for item in by_drafter.values()),
        "by_drafter": by_drafter,
        "left_out": [
            dict(zip(("kv", "prompt", "prompt_tokens", "requested_tokens", "context_tokens"), row, strict=True))
            for row in ((a.kv, a.prompt, *a.overflow) for a in plain.values() if a.overflow is not None)
        ],
    }


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("not a count")
    return value


STATE_FORMAT: Final = "edge-rt verify"
STATE_VERSION: Final = 1
MAX_STATE_BYTES: Final = 256 << 20


class VerifyState:
    """A file of JSON lines: a header that describes the verification, then one line per answer.

    A last line without a newline was cut off when the process was killed. It is dropped, and its prompt is answered
    again.

    Attributes:
        answers: the answers in the file when it was opened.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self._path = path.expanduser()
        self.answers: list[Answer] = []
        wanted = {"format": STATE_FORMAT, "version": STATE_VERSION, **header}
        try:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | O_BINARY, 0o644)
        except OSError as error:
            raise self._unusable(error) from error
        try:
            self._take_up(json.loads(json.dumps(wanted)))
        except OSError as error:
            os.close(self._descriptor)
            raise self._unusable(error) from error
        except BaseException:
            os.close(self._descriptor)
            raise

    def append(self, answer: Answer) -> None:
        """Write an answer; it is passed to the system, not buffered in this process."""
        try:
            self._write(answer.to_json())
        except OSError as error:
            raise self._unusable(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def _take_up(self, wanted: dict[str, Any]) -> None:
        size = os.fstat(self._descriptor).st_size
        if size > MAX_STATE_BYTES:
            raise self._not_a_state(f"It has {show_size(size)}, the limit is {show_size(MAX_STATE_BYTES)}.")
        data = self._read(size)
        whole, end, cut = data.rpartition(b"\n")
        if not end and not json.dumps(wanted).encode().startswith(cut):
            raise self._not_a_state("Its first line does not end.")
        if cut:
            os.ftruncate(self._descriptor, len(whole) + len(end))
        if not end:
            self._write(wanted)
            return
        header, *lines = whole.split(b"\n")
        self._check_header(self._parsed(1, header), wanted)
        for number, line in enumerate(lines, start=2):
            try:
                self.answers.append(Answer.from_json(self._parsed(number, line)))
            except (KeyError, TypeError, ValueError) as error:
                raise self._not_a_state(f"Line {number} is not an answer.") from error

    def _read(self, size: int) -> bytes:
        data = bytearray()
        os.lseek(self._descriptor, 0, os.SEEK_SET)  # appending still writes at the end
        while part := os.read(self._descriptor, size - len(data)):
            data += part
        return bytes(data)

    def _parsed(self, number: int, line: bytes) -> dict[str, Any]:
        return parse_object(line, lambda reason: self._not_a_state(f"Line {number} is not a JSON object: {reason}"))

    def _check_header(self, found: dict[str, Any], wanted: dict[str, Any]) -> None:
        if found.get("format") != STATE_FORMAT:
            raise self._not_a_state("Its first line is not the header of one.")
        if changes := _changes(found, wanted):
            raise ConfigError(
                f"{self._path} belongs to another verification.",
                f"{'; '.join(changes)}.",
                "Give the options it was started with, or name another file.",
            )

    def _write(self, document: dict[str, Any]) -> None:
        write_all(self._descriptor, json.dumps(document).encode() + b"\n")

    def _not_a_state(self, reason: str) -> InputError:
        return InputError(f"{self._path} is not the state of a verification.", reason, "Name another file.")

    def _unusable(self, error: OSError) -> StorageError:
        return StorageError(f"{self._path} cannot be used.", f"{error.strerror}.", "Check path and permissions.")


def _changes(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Return the differences between two headers, one text per value; each option is listed separately."""
    changes = []
    for name in sorted({*found, *wanted}):
        old, new = found.get(name), wanted.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            changes += _changes(old, new)
        elif old != new:
            changes.append(f"{name:.80} was {old!r:.80}, is now {new!r:.80}")
    return changes
