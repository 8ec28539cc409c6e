"""One request on a model that others use afterwards."""

from __future__ import annotations

import json
from contextlib import contextmanager, nullcontext

import pytest

from edge_rt.errors import DeviceLost
from edge_rt.runtime.decode.draft import NullDrafter
from edge_rt.runtime.generation import Held
from edge_rt.runtime.stream import Outcome
from edge_rt.text.thoughts import KNOWN_MARKERS, ThoughtStream
from edge_rt.text.tool_calls import ToolCall, Tools
from tests.helpers.fake_model import FakeTarget, Run, ScriptedTarget, WordDecoder
from tests.runtime.cache.test_checkpoints import Text


def test_a_result_has_the_figures_of_its_own_generation():
    run = Run([1, 2, 3], max_tokens=4)
    run.cache.row_bytes = 10

    @contextmanager
    def hold(_):
        yield Held(run.target, NullDrafter())
        # The next generation takes the cache as soon as the model is free.
        run.cache.truncate(0)

    run._generation._hold = hold
    result = run.result()
    assert result.usage.total_tokens == 7
    assert result.memory.kv_bytes == 6 * 10


class TargetWithStates(FakeTarget):
    """Computes the states of a text as well."""

    def __init__(self, text, **options):
        super().__init__(**options)
        self.text = text

    def forward(self, token_ids, start, num_logits, *, parents=None):
        outputs = super().forward(token_ids, start, num_logits, parents=parents)
        self.text.run(token_ids)
        return outputs


@pytest.mark.parametrize("given", [0, 1, 20])
def test_states_of_a_prompt_are_kept_where_its_answer_goes_on_elsewhere(given):
    prompt, chunk = list(range(40)), 8
    lost, other = Text(4), Text(4)
    # Each pass behind those of the prompt gives a token.
    target = TargetWithStates(lost, fail_at={len(prompt) // chunk - 1 + given: DeviceLost("It is lost.", "", "")})
    run = Run(prompt, target=target, cache=lost.cache, chunk=chunk, max_tokens=30)
    missed = []

    def instead(error):
        missed.extend(run.sequence.answer_ids)
        return Held(TargetWithStates(other), NullDrafter(), cache=other.cache, note=str(error))

    run._generation._hold = lambda _: nullcontext(Held(target, NullDrafter(), instead=instead))
    outcome = Outcome(run.cancel, None)
    for _ in run._generation.events(outcome):
        other.check()
    expected = Run(prompt, max_tokens=30).result().token_ids
    assert (tuple(missed), outcome.result.token_ids) == (expected[:given], expected)
    assert other.cache.length == len(prompt) + 29
    # What has seen the answer is no beginning of this.
    assert other.compute([*prompt, 8]) == len(prompt) - 1


WORDS = ["<th", "ink>\nso", " it", " is\n</thi", "nk>\n\n", "7 o", "'clock", "END", "more"]


def answered(words, events=None, **options):
    """Return the result of a generation that answers with these words, and note its events."""
    run = Run(
        [1, 2, 3],
        target=ScriptedTarget(3),
        decoder=WordDecoder(words),
        **({"max_tokens": len(words), "thoughts": ThoughtStream(KNOWN_MARKERS[0])} | options),
    )
    return run.result(None if events is None else events.append)


class TestThoughts:
    def test_they_are_no_part_of_the_answer(self):
        events = []
        result = answered(WORDS, events)
        assert (result.reasoning, result.text) == ("so it is", "7 o'clockENDmore")
        assert "".join(event.reasoning for event in events) == result.reasoning
        assert "".join(event.text for event in events) == result.text
        assert [token for event in events for token in event.token_ids] == list(result.token_ids)

    def test_a_stop_text_ends_the_answer(self):
        result = answered(WORDS, stop=("END",))
        assert (result.reasoning, result.text, result.stop_string) == ("so it is", "7 o'clock", "END")

    def test_a_stop_text_ends_thoughts_as_well(self):
        result = answered(WORDS, stop=("it",))
        assert (result.reasoning, result.text, result.stop_string) == ("so", "", "it")

    def test_an_answer_that_ends_in_the_middle_of_them(self):
        events = []
        result = answered(WORDS, events, max_tokens=4)
        assert (result.reasoning, result.text) == ("so it is\n</thi", "")
        assert "".join(event.reasoning for event in events) == result.reasoning

    def test_the_repetition_guard_counts_tokens_as_ever(self):
        result = answered(WORDS, repetition_guard=True)
        assert result.finish_reason == "length"

    def test_a_stream_that_is_left_keeps_what_was_said(self):
        run = Run([1], target=ScriptedTarget(1), decoder=WordDecoder(WORDS), thoughts=ThoughtStream(KNOWN_MARKERS[0]))
        outcome = Outcome(run.cancel, None)
        events = run._generation.events(outcome)
        for _ in range(3):
            next(events)
        events.close()
        assert (outcome.result.reasoning, outcome.result.text) == ("so it", "")

    def test_without_them_in_json(self):
        assert "reasoning" not in answered(["a"]).to_json()
        assert answered(WORDS).to_json()["reasoning"] == "so it is"


class TestToolCalls:
    CALL = ("<tool_call>", '{"name": "clock", ', '"arguments": {"z": 1}}', "</tool_call>")

    def test_with_tools(self):
        result = answered(list(self.CALL), tools=Tools(({"name": "clock"},)))
        assert result.tool_calls == (ToolCall("clock", {"z": 1}),)
        assert result.text == "".join(self.CALL)
        assert json.loads(json.dumps(result.to_json()))["tool_calls"] == [{"name": "clock", "arguments": {"z": 1}}]

    def test_another_function_is_not_called(self):
        assert answered(list(self.CALL), tools=Tools(({"name": "search"},))).tool_calls == ()

    def test_without_tools_nothing_is_a_call(self):
        assert answered(list(self.CALL)).tool_calls == ()
