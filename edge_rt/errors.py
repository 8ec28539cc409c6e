"""Every exception edge-rt raises on purpose, with the exit code of the command line.

::

    EdgeRTError                      exit 1
    ├── ConfigError (ValueError)     exit 2   an option or argument is wrong
    ├── InputError                   exit 3   the input cannot be used
    │   ├── InvalidModelFile                  a checkpoint file is malformed
    │   ├── InvalidPackage                    a package on disk is malformed or damaged
    │   ├── InvalidTemplate                   a chat template is unsafe, too costly or wrong
    │   ├── InvalidTokenizer                  a tokenizer is malformed or too costly
    │   ├── InvalidGrammar                    a schema or grammar is malformed, too costly or not enforceable
    │   ├── InvalidCorpus                     a corpus for drafting is malformed or from another tokenizer
    │   ├── InvalidDrafter                    a trained drafter is malformed, damaged or for another model
    │   ├── InvalidPromptCache                a file of stored rows is malformed, damaged or of another package
    │   ├── QualityLoss                       quantising changes what the model predicts too much
    │   ├── UnsupportedModel                  well-formed, but edge-rt cannot run it
    │   ├── ModelNotFound                     no such package, store name or file
    │   └── ContextOverflow                   the prompt does not fit the context
    ├── MemoryBudgetExceeded         exit 4   the work does not fit into memory
    │   ├── EncodingBudgetExceeded            a text that cannot be split needs too much memory to encode
    │   └── ReferenceBudgetExceeded           a reference text is longer than the memory plan allows
    ├── RuntimeUnavailable           exit 5   ONNX Runtime or a device is missing
    │   └── VersionMismatch                   present, but in a version edge-rt cannot use
    ├── StorageError (OSError)       exit 6   disk full, no permission, lock held
    │   └── DownloadError                     a model could not be fetched
    ├── Busy                         exit 1   the model is already generating
    │   └── QueueFull                         as many wait for a slot as may
    ├── ModelClosed                  exit 1   the model was closed
    ├── InferenceError               exit 1   ONNX Runtime failed inside a run
    └── Cancelled                    exit 130 stopped on request

Each one carries three sentences: ``what`` went wrong, the ``numbers`` behind it, and the ``action``
that helps.
"""

from __future__ import annotations

import errno
import json
from typing import Any, ClassVar, Final, TypedDict


class ErrorJSON(TypedDict):
    """The ``error`` object of every ``--json`` answer."""

    type: str
    what: str
    numbers: str
    action: str
    exit_code: int


def kind_of(value: object) -> str:
    """Return what a value of JSON is, in words: ``"a text"``, ``"null"``."""
    if isinstance(value, bool):
        return "true or false"
    kinds = {type(None): "null", int: "a number", float: "a number", str: "a text", list: "an array", dict: "an object"}
    return kinds.get(type(value), f"a {type(value).__name__}")


def as_json(value: object, most: int = 60) -> str:
    """Return a value as JSON writes it, cut to a number of characters: ``null``, not ``None``."""
    return json.dumps(value, ensure_ascii=False, default=str)[:most]


class EdgeRTError(Exception):
    """Base of all errors raised by edge-rt.

    Args:
        what: one sentence saying what went wrong.
        numbers: one sentence with the values, limits or places involved.
        action: one sentence saying what to do.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, numbers: str = "", action: str = "") -> None:
        super().__init__(" ".join(part for part in (what, numbers, action) if part))
        self.what = what
        self.numbers = numbers
        self.action = action

    def __reduce__(self) -> tuple[Any, ...]:
        # What the constructor of an error takes is not its message, so it is not called again.
        return _restored, (type(self), self.args), self.__dict__

    def to_json(self) -> ErrorJSON:
        """Return the error as the JSON object that the command line and servers print."""
        return {
            "type": type(self).__name__,
            "what": self.what,
            "numbers": self.numbers,
            "action": self.action,
            "exit_code": self.exit_code,
        }


class ConfigError(EdgeRTError, ValueError):
    """An option or argument is out of range or contradicts another one."""

    exit_code = 2


class InputError(EdgeRTError):
    """The input cannot be used."""

    exit_code = 3


class InvalidModelFile(InputError):
    """A checkpoint file is malformed: the message names file, field, offset, value and limit."""


class InvalidPackage(InputError):
    """A package on disk is malformed, incomplete or damaged."""


class InvalidTemplate(InputError):
    """A chat template is unsafe, exceeds its budget, or does not render."""


class InvalidTokenizer(InputError):
    """A tokenizer is malformed, inconsistent or too costly."""


class InvalidGrammar(InputError):
    """What an answer has to fit cannot be used: malformed, too costly, or with a part that cannot be enforced."""


class InvalidCorpus(InputError):
    """A corpus for drafting is malformed, or was built with another tokenizer."""


class InvalidDrafter(InputError):
    """A trained drafter on disk is malformed or damaged, or was trained for another model."""


class InvalidPromptCache(InputError):
    """A file of stored rows is malformed or damaged, or belongs to another package or format of the cache."""


class UnsupportedModel(InputError):
    """The model is well-formed but of an architecture or format that edge-rt cannot run."""


class QualityLoss(InputError):
    """Quantising the weights would change the model's predictions more than is accepted."""


class ModelNotFound(InputError):
    """No package, store entry or file has that name."""


class ContextOverflow(InputError):
    """The prompt and the requested tokens do not fit the context.

    Args:
        prompt_tokens: tokens of the prompt.
        requested_tokens: tokens that were to be generated.
        context_tokens: capacity of the context.
        is_estimate: whether ``prompt_tokens`` is an estimate, because the prompt was not encoded to its end.
        model_tokens: largest context that the model can be loaded with; None if that is not known.
        way: a sentence saying what to do, where the usual advice does not apply.

    Attributes:
        prompt_tokens, requested_tokens, context_tokens, is_estimate, model_tokens: as above.
    """

    def __init__(
        self,
        prompt_tokens: int,
        requested_tokens: int,
        context_tokens: int,
        *,
        is_estimate: bool = False,
        model_tokens: int | None = None,
        way: str | None = None,
    ) -> None:
        self.prompt_tokens = prompt_tokens
        self.requested_tokens = requested_tokens
        self.context_tokens = context_tokens
        self.is_estimate = is_estimate
        self.model_tokens = model_tokens
        whose = "prompt and the requested tokens do" if prompt_tokens < context_tokens else "prompt does"
        super().__init__(
            f"The {whose} not fit the context.",
            f"Prompt {'of about ' if is_estimate else ''}{prompt_tokens} tokens + {requested_tokens} reserved > "
            f"context {context_tokens}.",
            way or self._way(),
        )

    @property
    def is_of_request(self) -> bool:
        """Whether more tokens are asked for than the shortest prompt would leave: only asking for fewer helps."""
        return self.prompt_tokens < self.context_tokens <= self.requested_tokens

    def _way(self) -> str:
        """Return what helps: fewer tokens, a shorter prompt, or a larger context if the model has one."""
        needed, room = self.prompt_tokens + self.requested_tokens, self.context_tokens - self.prompt_tokens
        about = "about " if self.is_estimate else ""
        ways = [f"ask for at most {room} tokens"] if room > 0 else []
        if self.requested_tokens < self.context_tokens:
            ways.append(f"shorten the prompt by {about}{needed - self.context_tokens} tokens")
        elif room <= 0:
            ways.append(f"shorten the prompt, and ask for fewer than {self.context_tokens} tokens")
        if self.model_tokens is not None and self.context_tokens < needed <= self.model_tokens:
            ways.append(f"load the model with a larger context (up to {self.model_tokens})")
        text = ", or ".join(ways)
        return f"{text[0].upper()}{text[1:]}."


class MemoryBudgetExceeded(EdgeRTError):
    """The work would need more memory than there is."""

    exit_code = 4


class EncodingBudgetExceeded(MemoryBudgetExceeded):
    """A part of a text has to be encoded at once, and needs more memory than the plan and the budget allow.

    Args:
        stretch_bytes: UTF-8 bytes of the part.
        room_bytes: UTF-8 bytes that fit.
        enough: a memory budget that would suffice, such as ``"412MiB"``; None if the machine is the limit, not a
            budget.
        way: how to get more memory, where the usual advice to load the model again does not apply.

    Attributes:
        stretch_bytes, room_bytes, enough: as above.
    """

    def __init__(self, stretch_bytes: int, room_bytes: int, enough: str | None, *, way: str | None = None) -> None:
        more = way or "free memory and load the model again"
        if way is None and enough is not None:
            more = f"load the model with a memory budget of {enough} or more (--memory, memory=)"
        super().__init__(
            "The text has a stretch without spaces that is too long to tokenise within the memory budget.",
            f"It has {stretch_bytes} bytes without a place to split; there is room for {room_bytes}.",
            f"Break it up, for example with spaces or line ends, or {more}.",
        )
        self.stretch_bytes = stretch_bytes
        self.room_bytes = room_bytes
        self.enough = enough


class ReferenceBudgetExceeded(MemoryBudgetExceeded):
    """A reference text has more tokens than the memory plan lets drafters keep.

    Args:
        reference_tokens: tokens of the text.
        room_tokens: tokens that fit.
        is_estimate: whether ``reference_tokens`` is an estimate, because the text was not encoded to its end.
        way: a sentence saying what to do, where the usual advice to load the model again does not apply.

    Attributes:
        reference_tokens, room_tokens, is_estimate: as above.
    """

    def __init__(
        self, reference_tokens: int, room_tokens: int, *, is_estimate: bool = False, way: str | None = None
    ) -> None:
        super().__init__(
            "The reference text does not fit the memory plan.",
            f"It has {'about ' if is_estimate else ''}{reference_tokens} tokens; "
            f"drafters may keep {room_tokens} of them.",
            way or "Give a shorter text, or load the model with a larger budget.",
        )
        self.reference_tokens = reference_tokens
        self.room_tokens = room_tokens
        self.is_estimate = is_estimate


class DeviceMemoryExhausted(MemoryBudgetExceeded):
    """A GPU has no memory left for what is computed there; other work there can go on."""


class RuntimeUnavailable(EdgeRTError):
    """ONNX Runtime, an execution provider or a device is missing."""

    exit_code = 5


class VersionMismatch(RuntimeUnavailable):
    """A component is present in a version that edge-rt cannot use."""


class DeviceFailed(RuntimeUnavailable):
    """A GPU failed while it computed."""


class DeviceLost(DeviceFailed):
    """A GPU was lost while it computed: nothing on it can go on."""


class DeviceHung(DeviceFailed):
    """A GPU did not answer in time; it is taken for lost."""


DEVICE_FAILURES: Final = (DeviceFailed, DeviceMemoryExhausted)
"""What a GPU fails with while it computes."""


class StorageError(EdgeRTError, OSError):
    """A file could not be read or written: disk full, no permission, lock held."""

    exit_code = 6


class DownloadError(StorageError):
    """A model could not be fetched."""


class Busy(EdgeRTError):
    """The model is already generating: one generation at a time per model."""


class QueueFull(Busy):
    """As many generations wait for a slot as may (``max_queue`` of ``edge_rt.load``).

    Args:
        waiting: generations that wait, beside as many as there are slots.
        retry_after: seconds until there is room, as an estimate from speeds that were measured.

    Attributes:
        waiting, retry_after: as above.
    """

    def __init__(self, waiting: int, retry_after: float) -> None:
        super().__init__(
            "There is no room for another generation.",
            f"Beside those whose turn it is, {waiting} wait, and no more may.",
            f"Try again in about {max(1, round(retry_after))} s.",
        )
        self.waiting = waiting
        self.retry_after = retry_after


class ModelClosed(EdgeRTError):
    """The model was closed and cannot be used any more."""


class InferenceError(EdgeRTError):
    """ONNX Runtime failed inside a run; the model stays usable."""


class Cancelled(EdgeRTError):
    """The work was stopped on request."""

    exit_code = 130


def _restored(kind: type[EdgeRTError], arguments: tuple[Any, ...]) -> EdgeRTError:
    """Return an error that was copied, or came from another process, without its attributes."""
    error = kind.__new__(kind)
    error.args = arguments
    return error


_NO_ROOM_FOR_LIBRARY = ("failed to map segment", "cannot map zero-fill pages", "Cannot allocate memory")
"""What the system's loader says where a library does not fit the memory."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception says that the memory is exhausted: also an import whose library did not fit."""
    if isinstance(error, ImportError):
        return any(text in str(error) for text in _NO_ROOM_FOR_LIBRARY)
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)


def out_of_memory(
    error: BaseException, action: str = "Use a smaller model or context, or allow more memory."
) -> MemoryBudgetExceeded:
    """Return the error for an exception that ``is_out_of_memory``."""
    # The interpreter's own MemoryError has no text.
    numbers = str(error).rstrip(".") or "An allocation failed"
    return MemoryBudgetExceeded("The memory is exhausted.", f"{numbers}.", action)
