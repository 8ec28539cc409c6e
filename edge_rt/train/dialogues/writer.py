"""Writes dialogues with a model: many at once, each with the hidden states of its answers.

A user turn is what the model writes behind its own template's user marker, as in Magpie (Xu et al. 2024), or behind an
opening (``tasks.py``). Answers are greedy or sampled. The batch is continuous: a finished dialogue makes room for the
next one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from edge_rt.errors import UnsupportedModel
from edge_rt.runtime.prompts import PromptEncoder
from edge_rt.text.template_text import RenderedPrompt
from edge_rt.text.tokenizer import Tokenizer
from edge_rt.train.batch import BatchRunner, Rows
from edge_rt.train.dialogues.tasks import Opening, Openings, Tasks

_TURNS = ("one", "two", "three")


@dataclass(frozen=True)
class Markers:
    """What stands before a turn.

    Attributes:
        first_user: before the first user turn, the system message included.
        answer: between a user turn and the answer to it.
        next_user: between an answer and the next user turn; empty if the template's text after an answer is not known.
    """

    first_user: tuple[int, ...]
    answer: tuple[int, ...]
    next_user: tuple[int, ...]
    ends: frozenset[int]


def find_markers(texts: PromptEncoder) -> Markers:
    """Return the markers of a package's chat template."""
    roles = ("user", "assistant", "user")
    messages = [{"role": role, "content": text} for role, text in zip(roles, _TURNS, strict=True)]
    rendered = texts.render(messages)
    # What the template writes: before the first turn, between them, and after the last one.
    places: list[int] = []
    for text in _TURNS:
        start = rendered.text.find(text, places[-1] if places else 0)
        if start < 0:
            raise UnsupportedModel(
                "The chat template does not show where turns begin.",
                f"A turn of {text!r} is not in what it writes for a conversation of {len(_TURNS)} turns.",
                "Train with --data FILE.",
            )
        places += (start, start + len(text))
    first_user, answer, next_user, last = (
        _encode(texts, rendered, begin, end)
        for begin, end in zip((0, *places[1::2]), (*places[::2], len(rendered.text)), strict=True)
    )
    ends = {*texts.tokenizer.eos_token_ids}
    ends |= {ids[0] for ids in (answer, next_user, last) if ids and ids[0] in texts.tokenizer.special_ids}
    return Markers(tuple(first_user), tuple(last), tuple(next_user), frozenset(ends))


def _encode(texts: PromptEncoder, rendered: RenderedPrompt, begin: int, end: int) -> list[int]:
    part = rendered.text[begin:end]
    return texts.tokenizer.encode_spans([(part, True)]) if part else []


class Prompts:
    """Draws prompts in random order, each once before any comes again."""

    def __init__(self, prompts: Sequence[str], rng: random.Random) -> None:
        self._prompts, self._rng = list(prompts), rng
        self._left: list[str] = []
        self._rounds = 0

    def first(self) -> Opening:
        """Return the next prompt."""
        if not self._left:
            self._left = self._rng.sample(self._prompts, len(self._prompts))
            self._rounds += 1
        return Opening(self._left.pop(), is_whole=True, is_repeated=self._rounds > 1)

    def next(self) -> Opening | None:
        """Return None: a conversation is over with its first answer."""
        return None

    def learn(self, answer: str) -> None:
        """Do nothing: prompts do not depend on answers."""
        del answer


ROWS_BEFORE: Final = 5
"""Rows kept before that of an answer's first token."""
ROOM: Final = 192
"""Tokens that an opening leaves at least for the rest of its turn and the answer, in a context that has as many."""
_PREFILL_ROWS: Final = 128
_PIECE: Final = 48
_TEMPERATURES: Final = (0.0, 0.4, 0.8)
_TEMPERATURE_SHARES: Final = (0.6, 0.2, 0.2)
_ANSWER_TOKENS: Final = (160, 256, 320, 400)
_TURN_TOKENS: Final = (6, 90)
_MOST_TURNS: Final = 3
_NEXT_TURN: Final = 0.3
_ROOM_FOR_A_TURN: Final = 520
_LEAST_ROOM: Final = 16
_TRIES: Final = 20
_LEAST_ANSWER: Final = 3
_LONG_ANSWER: Final = 100
_CHECK_LOOPS: Final = 8


@dataclass(frozen=True)
class WrittenAnswer:
    """One answer, with everything before it.

    Attributes:
        token_ids: int32, of the whole dialogue up to the end of this answer.
        hidden: float16 ``[rows, columns]``, the rows from ``first_row`` to the one before the last token: states behind
            the last layer, and beside them those of the exits asked for.
        temperature: that it was sampled at; 0: greedy.
    """

    token_ids: npt.NDArray[np.int32]
    begin: int
    hidden: npt.NDArray[np.float16]
    temperature: float

    @property
    def first_row(self) -> int:
        """Place of the token whose row is the first of ``hidden``."""
        return max(0, self.begin - ROWS_BEFORE)


@dataclass
class _Dialogue:
    """One place of the batch."""

    pending: list[int]
    turn_begin: int
    ids: list[int] = field(default_factory=list)
    answer_begin: int = 0
    turns: int = 0
    temperature: float = 0.0
    most_tokens: int = 0
    hidden: list[npt.NDArray[np.float16]] = field(default_factory=list)

    @property
    def is_answering(self) -> bool:
        return self.answer_begin > 0


class DialogueWriter:
    """Writes answers without end.

    Args:
        seed: of all draws. The same seed gives the same dialogues.
        prompts: user messages to answer, at least one; None: the model writes user turns itself.
        exits: places of the exits whose states are kept as well.
    """

    def __init__(
        self,
        runner: BatchRunner,
        tokenizer: Tokenizer,
        markers: Markers,
        seed: int,
        prompts: Sequence[str] | None = None,
        exits: Sequence[int] = (),
    ) -> None:
        self._exits = tuple(exits)
        self._runner, self._tokenizer, self._markers = runner, tokenizer, markers
        self._rng = random.Random(seed)
        self._draws = np.random.default_rng(seed)
        self._openings: Openings = Tasks(self._rng) if prompts is None else Prompts(prompts, self._rng)

    def answers(self) -> Iterator[WrittenAnswer]:
        """Yield answers as they are finished."""
        places = [self._begin(place) for place in range(self._runner.sequences)]
        while True:
            pieces = self._pieces(places)
            wants = [len(piece) == len(one.pending) for piece, one in zip(pieces, places, strict=True)]
            found = self._runner.forward(pieces, wants)
            for place, (one, piece, rows) in enumerate(zip(places, pieces, found, strict=True)):
                self._take(one, piece, rows)
                if rows.ids is None or rows.logits is None:
                    continue
                if not one.is_answering:
                    token = self._sample(rows, 1.0, 0.97)
                    if not self._continue_turn(one, token):
                        places[place] = self._begin(place)
                    continue
                token = self._sample(rows, one.temperature, 0.95)
                if not self._is_over(one, token):
                    one.pending = [token]
                    continue
                if len(one.ids) + 1 - one.answer_begin >= _LEAST_ANSWER:
                    yield self._finish(one, token)
                if not self._next_turn(one, token):
                    places[place] = self._begin(place)

    def _pieces(self, places: Sequence[_Dialogue]) -> list[list[int]]:
        """Return what every dialogue computes next: prompts in pieces, so that answers do not wait for them."""
        left = min(_PREFILL_ROWS, self._runner.most_rows - len(places))
        pieces = []
        for one in places:
            size = min(len(one.pending), 1 + left, _PIECE)
            left -= size - 1
            pieces.append(one.pending[:size])
        return pieces

    def _begin(self, place: int) -> _Dialogue:
        self._runner.lengths[place] = 0
        first = list(self._markers.first_user)
        opening, ids = self._first_opening(self._capacity - len(first))
        one = _Dialogue(first + ids, turn_begin=len(first))
        if opening.is_whole:
            self._begin_answer(one, is_sampled=opening.is_repeated)
        return one

    def _first_opening(self, room: int) -> tuple[Opening, list[int]]:
        """Draw an opening that leaves room for the rest of the turn and an answer: passages can be too long."""
        for _ in range(_TRIES):
            opening = self._openings.first()
            ids = self._encode(opening)
            if len(ids) + min(ROOM, room // 2) <= room:
                return opening, ids
        return Opening("", is_whole=False), []

    def _encode(self, opening: Opening) -> list[int]:
        return self._tokenizer.encode_text(opening.text) if opening.text else []

    def _begin_answer(self, one: _Dialogue, *, is_sampled: bool = False) -> None:
        one.pending = [*one.pending, *self._markers.answer]
        one.answer_begin = len(one.ids) + len(one.pending)
        first = 1 if is_sampled else 0
        one.temperature = self._rng.choices(_TEMPERATURES[first:], _TEMPERATURE_SHARES[first:])[0]
        one.most_tokens = self._rng.choice(_ANSWER_TOKENS)
        one.hidden = []

    def _take(self, one: _Dialogue, piece: Sequence[int], rows: Rows) -> None:
        begin = len(one.ids)
        one.ids += piece
        one.pending = one.pending[len(piece) :]
        if one.is_answering:
            first = max(0, one.answer_begin - ROWS_BEFORE - begin)
            if first < len(piece):
                kept = [rows.hidden, *(rows.exits[index] for index in self._exits)]
                one.hidden.append(np.concatenate([states[first:] for states in kept], 1).astype(np.float16))

    def _continue_turn(self, one: _Dialogue, token: int) -> bool:
        """Add a token to a user turn; return False if the turn is no good."""
        size = len(one.ids) - one.turn_begin
        least, most = _TURN_TOKENS
        if token in self._markers.ends:
            if size < least:
                return False
            self._begin_answer(one)
            return True
        one.pending = [token]
        return size < most and len(one.ids) + len(self._markers.answer) + _LEAST_ROOM < self._capacity

    def _sample(self, rows: Rows, temperature: float, top_p: float) -> int:
        assert rows.ids is not None
        assert rows.logits is not None
        if not temperature:
            return int(rows.ids[0])
        weights = np.exp((rows.logits - rows.logits[0]) / temperature)
        sums = np.cumsum(weights / weights.sum())
        count = min(int(np.searchsorted(sums, top_p)) + 1, len(sums))
        return int(rows.ids[min(int(np.searchsorted(sums, self._draws.random() * sums[count - 1])), count - 1)])

    def _is_over(self, one: _Dialogue, token: int) -> bool:
        size = len(one.ids) + 1 - one.answer_begin
        if token in self._markers.ends or size >= one.most_tokens or len(one.ids) + _LEAST_ANSWER >= self._capacity:
            return True
        return size % _CHECK_LOOPS == 0 and repeats_itself([*one.ids[one.answer_begin :], token])

    @property
    def _capacity(self) -> int:
        return self._runner.capacity

    def _finish(self, one: _Dialogue, token: int) -> WrittenAnswer:
        hidden = np.concatenate(one.hidden)
        return WrittenAnswer(np.asarray([*one.ids, token], np.int32), one.answer_begin, hidden, one.temperature)

    def _next_turn(self, one: _Dialogue, token: int) -> bool:
        """Go on with a dialogue whose answer has ended with ``token``; return False if it is over."""
        if token not in self._markers.ends:
            return False
        size = len(one.ids) - one.answer_begin
        if _LONG_ANSWER < size < one.most_tokens:
            self._openings.learn(self._tokenizer.decode(one.ids[one.answer_begin :]))
        one.turns += 1
        has_room = len(one.ids) + _ROOM_FOR_A_TURN < self._capacity
        if not (self._markers.next_user and one.turns < _MOST_TURNS and has_room and self._rng.random() < _NEXT_TURN):
            return False
        opening = self._openings.next()
        if opening is None:
            return False
        marker = list(self._markers.next_user)
        one.pending = [*marker, *self._encode(opening)]
        one.turn_begin = len(one.ids) + len(marker)
        one.answer_begin = 0
        return True


def repeats_itself(ids: Sequence[int]) -> bool:
    """Return whether an answer ends with three or more copies of the same tokens, 36 tokens at least."""
    for period in range(1, 40):
        size = max(3 * period, 36) if period >= 12 else max(4 * period, 36)
        if len(ids) > size + period and ids[-size:] == ids[-size - period : -period]:
            return True
    return False
