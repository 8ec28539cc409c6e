"""Answers to any number of prompts, with few more under way than a model has slots."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, Final

from edge_rt.errors import Busy, EdgeRTError, ModelClosed, QueueFull
from edge_rt.runtime.admission import Ticket, Wanted
from edge_rt.runtime.batch import Batch
from edge_rt.runtime.config import GenerationConfig, GenerationOptions
from edge_rt.runtime.forward.cancel import CancelToken
from edge_rt.runtime.generation import Generation
from edge_rt.runtime.prompts import Prompt
from edge_rt.runtime.results import Result
from edge_rt.runtime.stream import Outcome

Asked = Prompt | tuple[Prompt, Mapping[str, Any]]
"""A prompt, or a pair of one and its own options."""
Answer = Result | EdgeRTError
"""What a prompt gives: its result, or why it has none."""

AHEAD: Final = 2
"""Prompts that are encoded and wait for a slot, so that none is empty while the next one is encoded."""
MOST_KEPT: Final = 4
"""Answers for each slot that wait for an earlier one; then no further prompt begins."""


def pair(asked: Asked) -> tuple[Prompt, Mapping[str, Any]]:
    """Return a prompt and its own options."""
    if isinstance(asked, tuple) and len(asked) == 2 and isinstance(asked[1], Mapping):
        prompt, options = asked
        if not isinstance(prompt, Mapping):
            return prompt, options
    return asked, {}  # type: ignore[return-value] # two messages


def apart(config: GenerationConfig, options: Mapping[str, Any]) -> tuple[GenerationConfig, dict[str, Any]]:
    """Return a configuration with those options that it has, and the others."""
    fields = {name: value for name, value in options.items() if name in GenerationOptions.__annotations__}
    return config.with_options(**fields), {name: options[name] for name in options.keys() - fields.keys()}


def one_by_one(
    generate: Callable[[Asked], Result], prompts: Iterable[Asked], *, ordered: bool, cancel: CancelToken
) -> Generator[Any]:
    """Yield the answers of a model without slots; see ``together``."""
    for index, asked in enumerate(prompts):
        try:
            answer: Answer = generate(asked)
        except EdgeRTError as error:
            answer = _kept(error)
        if cancel.cancelled:
            return
        yield answer if ordered else (index, answer)


def together(
    batch: Batch,
    ask: Callable[[Asked], tuple[Generation, Wanted]],
    prompts: Iterable[Asked],
    *,
    slots: int,
    ordered: bool,
    cancel: CancelToken,
) -> Generator[Any]:
    """Yield answers in the order of their prompts, or pairs of index and answer as they come.

    Args:
        ask: makes the generation of a prompt.
        cancel: ends the generations, and what is yielded.
    """
    asked = enumerate(prompts)
    is_over, following = False, 0
    refused: tuple[int, Generation, Wanted] | None = None  # others have filled the queue
    running: dict[int, Ticket] = {}
    answers: dict[int, Answer] = {}

    def has_news() -> bool:
        has_room = refused is not None and not batch.admission.is_full
        return has_room or cancel.cancelled or any(ticket.has_ended for ticket in running.values())

    try:
        while True:
            while not is_over and len(running) < slots + AHEAD and len(running) + len(answers) < MOST_KEPT * slots:
                if refused is None:
                    if (item := next(asked, None)) is None:
                        is_over = True
                        break
                    try:
                        refused = (item[0], *ask(item[1]))
                    except EdgeRTError as error:
                        answers[item[0]] = _kept(error)
                        continue
                index, generation, wanted = refused
                try:
                    running[index] = batch.submit(generation, Outcome(CancelToken(), None), wanted)
                except QueueFull:
                    break
                refused = None
            for index in [index for index, ticket in running.items() if ticket.has_ended]:
                answers[index] = _answer(running.pop(index))
            while answers and not cancel.cancelled and (not ordered or following in answers):
                index = following if ordered else next(iter(answers))
                following += 1
                answer = answers.pop(index)
                yield answer if ordered else (index, answer)
            if cancel.cancelled:
                return
            if running or refused is not None:
                batch.compute_until(has_news)
            elif is_over:
                return
    finally:
        for ticket in running.values():
            batch.cancel(ticket)


def _answer(ticket: Ticket) -> Answer:
    if ticket.error is None:
        return ticket.generation.settled()
    if isinstance(ticket.error, EdgeRTError):
        return _kept(ticket.error)
    raise ticket.error


def _kept(error: EdgeRTError) -> EdgeRTError:
    """Return an error that concerns one prompt; raise one that every prompt would have."""
    if isinstance(error, Busy | ModelClosed):
        raise error
    return error
