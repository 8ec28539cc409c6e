"""The budget of one rendering of a chat template, and the cost of each value that it builds.

Every value that a template builds from others is measured in *logical* size (a list that holds one list twice counts it
twice), so comparing, hashing or printing it later is bounded as well. Work is charged *before* it is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from jinja2.runtime import Undefined
from jinja2.utils import Namespace

from edge_rt.errors import InvalidTemplate
from edge_rt.text.template_text import Text, concat, ranges_of

SECONDS: Final = 0.4
"""CPU time of a rendering. Waiting costs nothing: a machine may be busy with other work, or asleep."""
_SECONDS_PER_MESSAGE: Final = 0.01
_MOST_SECONDS: Final = 30.0
_STEPS: Final = 1_000_000
_STEPS_PER_MESSAGE: Final = 20_000  # some templates look through all others for every message
_STEPS_UNCHECKED: Final = 256  # between two looks at the time, which take longer than a step
_WORK: Final = 12  # a step is reading or writing 4096 characters
_TEXT_CHARS: Final = 4 * 1024 * 1024
_MEMORY_BYTES: Final = 16 * 1024 * 1024
_MEMORY_PER_MESSAGE: Final = 64 * 1024
_RANGE_BYTES: Final = 64  # of two positions in a text
_HELD_CHARS: Final = 4096  # of texts whose memory is given back when they are dropped
# A template copies a message a few times (concatenates, trims, prints it); whatever exceeds this is not a chat
# template.
_COPIES: Final = 16
_VALUE_NODES: Final = 100_000
_VALUE_DEPTH: Final = 64
_INTEGER_BITS: Final = 4096
# A small dictionary and its entry in the memo of sizes.
_CONTAINER_BYTES: Final = 512
_CONTAINERS: Final[tuple[type, ...]] = (list, tuple, dict, range, type({}.keys()), type({}.values()), type({}.items()))


class TemplateTooSlow(InvalidTemplate):
    """A rendering took all of its time or steps: it would again, in whatever form the messages are."""


def refused(what: str, numbers: str, kind: type[InvalidTemplate] = InvalidTemplate) -> InvalidTemplate:
    """Return the error for a template that is not used, whatever the reason."""
    return kind(f"The chat template {what}.", numbers, "Use another template, or generate without one.")


def text_bytes(text: str) -> int:
    """Return an upper bound of the bytes that a text takes in memory."""
    return 64 + len(text) * (1 if text.isascii() else 4)


def is_container(value: Any) -> bool:
    """Return whether a value holds others that are measured with it."""
    return isinstance(value, _CONTAINERS)


class NotLookedInto(Exception):
    """A template prints a list or dictionary whole that it should look into."""


class RenderBudget:
    """The rest of one rendering's budget.

    Args:
        chars: characters of the messages and tools that the template works on.
        size: their bytes in memory, as :func:`text_bytes` counts them.

    Attributes:
        unprintable: ids of lists and dictionaries that a template has to look into: none of them may be printed whole.
    """

    def __init__(
        self, chars: int, size: int, messages: int = 1, *, clock: Callable[[], float] = time.thread_time
    ) -> None:
        self.text_chars = _TEXT_CHARS + 2 * chars
        self.output_chars = self.text_chars
        self.memory = _MEMORY_BYTES + _COPIES * size + _MEMORY_PER_MESSAGE * (messages - 1)
        self.steps = self._most_steps = _STEPS + _STEPS_PER_MESSAGE * (messages - 1)
        self.depth = 0
        self.unprintable: frozenset[int] = frozenset()
        self._sizes: dict[int, tuple[object, int, int, int]] = {}
        self._clock = clock
        self._unchecked = 0
        self._seconds = min(SECONDS + _SECONDS_PER_MESSAGE * (messages - 1), _MOST_SECONDS)
        self._deadline = clock() + self._seconds

    def step(self, count: int = 1) -> None:
        """Charge ``count`` units of work, and check the time limit now and then."""
        self.steps -= count
        self._unchecked += count
        if self._unchecked < _STEPS_UNCHECKED:
            return
        self._unchecked = 0
        if self.steps < 0:
            raise refused("takes too many steps", f"Limit {self._most_steps}.", TemplateTooSlow)
        if self._clock() > self._deadline:
            raise refused("takes too long", f"Limit {self._seconds:.1f} s of CPU time.", TemplateTooSlow)

    def pay(self, size: int) -> None:
        """Charge ``size`` bytes of memory, and the work of filling them."""
        self.step(1 + (size >> _WORK))
        self.memory -= size
        if self.memory < 0:
            raise refused(
                "produces too much data",
                f"Limit {_MEMORY_BYTES >> 20} MiB, {_MEMORY_PER_MESSAGE >> 10} KiB for each message and {_COPIES} "
                "times their text.",
            )

    def text(self, chars: int, *sources: str) -> None:
        """Charge a new text of ``chars`` characters, made of those of ``sources``."""
        if chars > self.text_chars:
            raise refused("builds a text that is too long", f"{chars} characters of at most {self.text_chars}.")
        self.pay(64 + chars * (1 if all(map(str.isascii, sources)) else 4))

    def joined(self, parts: Sequence[str]) -> str:
        """Return texts behind one another, charged; if that is long, its memory is given back when it is dropped.

        Templates that collect the prompt in a variable drop a text as long as the prompt with every message.
        """
        self.text(sum(map(len, parts)), *parts)
        paid = self.pay_ranges(*parts)
        text = concat(parts)
        return HeldText.of(text, self, text_bytes(text) + paid) if len(text) >= _HELD_CHARS else text

    def pay_ranges(self, *texts: str) -> int:
        """Charge copying where texts were written by the template; return the bytes charged."""
        count = sum(len(text.own) for text in texts if isinstance(text, Text))
        if count <= 2 * len(texts):
            return 0
        self.step(count >> 4)
        self.pay(_RANGE_BYTES // 2 * count)
        return _RANGE_BYTES // 2 * count

    def printed(self, value: Any) -> str:
        """Return the text that an expression of the template writes into the prompt, charged as memory and output."""
        text = self.text_of(value)
        self.pay(text_bytes(text))
        self.pay_ranges(text)
        self.output_chars -= len(text)
        if self.output_chars < 0:
            raise refused("writes a prompt that is too long", f"Limit {self.text_chars} characters.")
        return text

    def measure(self, value: Any, depth: int = 0) -> tuple[int, int, int]:
        """Return (nodes, characters, depth) of a value, each part counted as often as it appears."""
        if isinstance(value, str):
            return 1, len(value), 0
        # A namespace in a list is one value: comparing it looks at its identity alone.
        if value is None or isinstance(value, float | Undefined | Namespace):
            return 1, 8, 0
        if isinstance(value, int):
            return 1, 8 + (value.bit_length() >> 1), 0  # a digit takes more than three bits
        if not is_container(value):
            # Macros, loops, namespaces: a prompt never needs to print or compare them.
            raise _textless(value)
        known = self._sizes.get(id(value))
        if known is not None:
            return known[1:]
        if depth > _VALUE_DEPTH:
            raise refused("nests lists too deeply", f"Limit {_VALUE_DEPTH}.")
        self.step(1 + len(value))
        parts: Iterable[Any] = (part for pair in value.items() for part in pair) if isinstance(value, dict) else value
        count, chars, deepest = 1, 8, 0
        for part in parts:
            part_nodes, part_chars, part_depth = self.measure(part, depth + 1)
            count, chars, deepest = count + part_nodes, chars + part_chars, max(deepest, part_depth)
        # The memo holds the value itself; otherwise its id could be reused for another value.
        self._sizes[id(value)] = (value, count, chars, deepest + 1)
        self.pay(_CONTAINER_BYTES)
        self.check_size(count, chars, deepest + 1)
        return count, chars, deepest + 1

    def check_size(self, count: int, chars: int, depth: int = 0) -> None:
        """Refuse a value of ``count`` parts and ``chars`` characters that is too large for a chat template."""
        if count > _VALUE_NODES or depth > _VALUE_DEPTH or chars > self.text_chars:
            raise refused(
                "builds a value that is too large",
                f"{count} parts of {_VALUE_NODES}, {depth} levels of {_VALUE_DEPTH}, {chars} characters.",
            )

    def pay_sum(self, left: Any, right: Any) -> None:
        """Charge ``left + right``, unless these are texts."""
        if isinstance(left, list | tuple) and isinstance(right, list | tuple):
            self.pay(64 + 8 * (len(left) + len(right)))

    def pay_product(self, left: Any, right: Any) -> None:
        """Charge ``left * right``."""
        for value, times in ((left, right), (right, left)):
            if isinstance(value, str) and isinstance(times, int):
                self.text(len(value) * max(times, 0), value)
                self.pay(_RANGE_BYTES // 2 * len(ranges_of(value)) * max(times, 0))
            elif isinstance(value, list | tuple) and isinstance(times, int):
                count, chars, _ = self.measure(value)
                self.check_size(count * max(times, 0), chars * max(times, 0))
                self.pay(64 + 8 * len(value) * max(times, 0))
        # Both are within the limit, so this takes no time.
        if isinstance(left, int) and isinstance(right, int):
            self.number(left * right)

    def number(self, value: Any) -> Any:
        """Return a value, refused if it is a number that is too large."""
        if isinstance(value, int) and value.bit_length() > _INTEGER_BITS:
            raise refused("computes a number that is too large", f"Limit {_INTEGER_BITS} bits.")
        return value

    def compare(self, value: Any) -> None:
        """Charge comparing or hashing a value, which may look at all of its parts."""
        if is_container(value) and not isinstance(value, range):
            self.step(1 + self.measure(value)[0])
        else:
            self.touch(value)

    def search_backwards(self, text: str, part: Any) -> None:
        """Charge looking for the last place of a part: Python may compare all of it at every place."""
        if isinstance(part, str):
            self.step(1 + (len(text) * len(part) >> _WORK - 2))

    def touch(self, value: Any) -> None:
        """Charge reading a value once."""
        if isinstance(value, str):
            self.step(1 + (len(value) >> _WORK))
        elif is_container(value):
            self.step(1 + len(value))
        else:
            self.step()

    def made(self, value: Any) -> Any:
        """Charge a result that is not much larger than its inputs."""
        if isinstance(value, str):
            self.text(len(value), value)
            self.pay_ranges(value)
        elif isinstance(value, list | tuple):
            self.pay(64 + 8 * len(value))
        return value

    def text_of(self, value: Any) -> str:
        """Return what printing ``value`` gives; objects without a plain text are refused."""
        if isinstance(value, str):
            return value
        count, chars, _ = self.measure(value)
        if is_container(value):
            # The longest escape of a character is \U and eight digits.
            self.pay(10 * chars + 16 * count)
        self._require_text(value)
        return str(value)

    def _require_text(self, value: Any) -> None:
        """Refuse a value that holds something without a text; its size was measured."""
        self.step()
        if isinstance(value, Namespace):
            raise _textless(value)
        if is_container(value):
            if id(value) in self.unprintable:
                raise NotLookedInto
            for part in value:
                self._require_text(part)
            for part in value.values() if isinstance(value, dict) else ():
                self._require_text(part)


class HeldText(Text):
    """A text that gives its memory back to the budget when it is dropped."""

    __slots__ = ("_budget", "_bytes")
    _budget: RenderBudget
    _bytes: int

    @classmethod
    def of(cls, text: str, budget: RenderBudget, paid: int) -> HeldText:
        """Return a text for which ``paid`` bytes of a budget were charged."""
        self = cls(text, ranges_of(text))
        self._budget, self._bytes = budget, paid
        return self

    def __del__(self) -> None:
        self._budget.memory += self._bytes


def _textless(value: object) -> InvalidTemplate:
    return refused("puts into a list or prints what has no text", f"A {type(value).__name__}.")
