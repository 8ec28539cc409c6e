"""What clients are asked to do with a server, and what all of them are told about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from edge_rt.errors import EdgeRTError

QUESTION = "What is a haiku?"
MESSAGES = [{"role": "user", "content": QUESTION}]
MOST = 24
CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": CITY}}
PERSON = {
    "title": "Person",
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Served:
    """A server that is asked.

    Attributes:
        url: its address.
        plain, tools, thinking: names of the model: as it is, with a chat template that teaches tools, and with one that
            lets it think.
        answer: what it answers to ``QUESTION`` alone, greedily, in ``MOST`` tokens.
        rest: how it continues the text ``QUESTION`` as such.
        sampled: its answers to ``QUESTION`` by seed, at temperature 1.
    """

    url: str
    answer: str
    rest: str
    sampled: dict[int, str]
    plain: str = "plain"
    tools: str = "tools"
    thinking: str = "thinking"


Call = Callable[[Served], None]


@dataclass
class Client:
    """A client, and what it is asked to do.

    Attributes:
        package: its package; None: the requests are written here.
        calls: what it does with a server; one raises where the answer is not what it has to be.
    """

    name: str
    package: str | None
    calls: list[Call] = field(default_factory=list)

    def call(self, call: Call) -> Call:
        """Add a call."""
        self.calls.append(call)
        return call


class WrongAnswer(EdgeRTError):
    """What a client got is not what it has to be."""


def expect(value: Any, wanted: Any = True) -> None:
    """Compare a value with what it has to be."""
    if value != wanted:
        raise WrongAnswer(
            f"Got {value!r:.300}", f"wanted {wanted!r:.300}", "The server is wrong, or the client is used wrongly."
        )


def expect_city(arguments: dict[str, Any]) -> None:
    """See whether the arguments of a call fit its parameters."""
    expect(set(arguments), {"city", "days"})
    expect(isinstance(arguments["city"], str) and 1 <= arguments["days"] <= 7)


def expect_person(person: dict[str, Any]) -> None:
    """See whether an answer fits its schema."""
    expect(set(person), {"name", "age"})
    expect(isinstance(person["name"], str) and 0 <= person["age"] <= 99)
