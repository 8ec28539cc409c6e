"""Messages that end with the assistant's turn: the answer goes on as if it had never stopped."""

from __future__ import annotations

import pytest

from edge_rt.errors import ConfigError
from edge_rt.text.thoughts import ThoughtMarkers, ThoughtStream, answer_so_far
from tests.helpers.small import GREEDY

ASKED = [{"role": "user", "content": "hello"}]


def begun(content, **more):
    return [*ASKED, {"role": "assistant", "content": content, **more}]


def test_the_prompt_is_that_of_the_question_and_then_the_turns_text(model):
    ids = model.tokenizer.encode_rendered(model.render(ASKED))
    # A marker in the text is text.
    text = "Once upon a <|im_end|> time"
    with model.stream(begun(text), max_tokens=1, **GREEDY) as stream:
        list(stream)
    assert stream.result().usage.prompt_tokens == model.count_tokens(begun(text))
    assert model.count_tokens(begun(text)) == len(ids) + len(model.encode(text))


def test_a_chat_goes_on_with_its_own_tokens(model):
    whole = model.chat()
    answer = whole.send("hello", max_tokens=12, **GREEDY)
    model.reset()
    chat = model.chat()
    chat.send("hello", max_tokens=5, **GREEDY)
    more = chat.resume(max_tokens=7, **GREEDY).result()
    assert more.usage.cached_tokens > 0
    assert chat.messages == whole.messages
    assert chat.messages[-1]["content"] == answer.text


def test_a_chat_without_an_answer_has_nothing_to_continue(model):
    with pytest.raises(ConfigError, match="no answer to continue"):
        model.chat().resume()


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "assistant", "content": "x"}],
        begun("", tool_calls=[{"type": "function", "function": {"name": "f", "arguments": {}}}]),
        begun([{"type": "text", "text": "x"}]),
        begun("x", reasoning_content="no marks here"),
    ],
)
def test_turns_that_cannot_be_continued_are_refused(model, messages):
    with pytest.raises(ConfigError, match=r"cannot be continued|marks none"):
        model.generate(messages, max_tokens=1)


THINK = ThoughtMarkers("<think>", "</think>")


@pytest.mark.parametrize(
    ("markers", "reasoning", "content", "expected"),
    [
        (None, "", "a", "a"),
        (THINK, "", "a", "a"),
        (THINK, "r", "", "<think>\nr"),
        (THINK, "r", "a", "<think>\nr\n</think>\n\na"),
        (ThoughtMarkers("<think>", "</think>", is_open=True), "r", "", "r"),
        (ThoughtMarkers("<think>", "</think>", is_open=True), "", "a", "\n</think>\n\na"),
        (ThoughtMarkers("[THINK]", "[/THINK]"), "r", "a", "[THINK]r[/THINK]a"),
    ],
)
def test_thoughts_are_written_as_the_model_writes_them(markers, reasoning, content, expected):
    assert "".join(text for text, _ in answer_so_far(markers, reasoning, content)) == expected


def test_thoughts_that_were_begun_go_on_with_their_spaces():
    stream = ThoughtStream(ThoughtMarkers("<think>", "</think>", is_begun=True))
    stream.push(" more</think> yes")
    stream.finish()
    assert (stream.reasoning, stream.text) == (" more", "yes")
