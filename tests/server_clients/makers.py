"""The clients of OpenAI and Anthropic themselves."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor

from tests.server_clients.calls import CITY, MESSAGES, MOST, QUESTION, WEATHER, Client, Served, expect, expect_city

OPENAI = Client("openai", "openai")
ANTHROPIC = Client("anthropic", "anthropic")
GREEDY = {"messages": MESSAGES, "max_tokens": MOST, "temperature": 0}
COLD = {"extra_body": {"temperature": 0}}
"""Anthropic's client knows no temperature any more; servers do."""
TO_CLAUDE = {"messages": MESSAGES, "max_tokens": MOST, **COLD}
MANY = 12
"""Requests at once: more than the server has slots and places in its queue."""
CLAUDE_TOOL = {"name": "weather", "description": "The weather.", "input_schema": CITY}


def openai_client(served: Served, **options):
    """Return OpenAI's client."""
    import openai

    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", **{"max_retries": 0, **options})


def anthropic_client(served: Served, **options):
    """Return Anthropic's client."""
    import anthropic

    return anthropic.Anthropic(base_url=served.url, api_key="none", **{"max_retries": 0, **options})


def person_type():
    """Return the type of an answer."""
    import pydantic

    class Person(pydantic.BaseModel):
        name: str = pydantic.Field(max_length=12)
        age: int = pydantic.Field(ge=0, le=99)

    return Person


class Refusals:
    """Counts the refusals that clients see, by status."""

    def __init__(self):
        self.counts, self._lock = {}, threading.Lock()

    def hooks(self):
        """Return the hooks of an HTTP client."""
        return {"response": [self._see]}

    def _see(self, response):
        if response.status_code >= 400:
            expect("retry-after" in response.headers)
            with self._lock:
                self.counts[response.status_code] = self.counts.get(response.status_code, 0) + 1


@OPENAI.call
def chat(served):
    answer = openai_client(served).chat.completions.create(model=served.plain, **GREEDY)
    expect(answer.choices[0].message.content, served.answer)
    expect(answer.choices[0].finish_reason, "length")
    expect(answer.usage.completion_tokens, MOST)


@OPENAI.call
def chat_stream(served):
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = list(openai_client(served).chat.completions.create(model=served.plain, **GREEDY, **options))
    expect("".join(chunk.choices[0].delta.content or "" for chunk in chunks), served.answer)
    expect([chunk.choices[0].finish_reason for chunk in chunks], [None] * (len(chunks) - 1) + ["length"])
    expect((last.choices, last.usage.completion_tokens), ([], MOST))


@OPENAI.call
def chat_async(served):
    import openai

    async def ask():
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none") as client:
            stream = await client.chat.completions.create(model=served.plain, stream=True, **GREEDY)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    expect(asyncio.run(ask()), served.answer)


@OPENAI.call
def tools(served):
    client = openai_client(served)
    asked = {"model": served.tools, "tools": [WEATHER], "temperature": 0, "max_tokens": 200}
    answer = client.chat.completions.create(messages=MESSAGES, tool_choice="required", **asked)
    expect(answer.choices[0].finish_reason, "tool_calls")
    call = answer.choices[0].message.tool_calls[0]
    expect_city(json.loads(call.function.arguments))
    result = {"role": "tool", "tool_call_id": call.id, "content": "Rain."}
    messages = [*MESSAGES, answer.choices[0].message, result]
    again = client.chat.completions.create(messages=messages, tool_choice="none", **asked)
    expect(again.choices[0].message.tool_calls, None)


@OPENAI.call
def tool_stream(served):
    asked = {"model": served.tools, "messages": MESSAGES, "tools": [WEATHER], "temperature": 0, "max_tokens": 200}
    choice = {"type": "function", "function": {"name": "weather"}}
    with openai_client(served).chat.completions.stream(tool_choice=choice, **asked) as stream:
        for _ in stream:
            pass
        (call,) = stream.get_final_completion().choices[0].message.tool_calls
    expect(call.function.name, "weather")
    expect_city(json.loads(call.function.arguments))


@OPENAI.call
def parse(served):
    answer = openai_client(served).chat.completions.parse(
        model=served.plain, messages=MESSAGES, response_format=person_type(), max_tokens=200, temperature=0
    )
    expect(0 <= answer.choices[0].message.parsed.age <= 99)


@OPENAI.call
def logprobs(served):
    asked = {"model": served.plain, "logprobs": True, "top_logprobs": 20, **GREEDY}
    entries = openai_client(served).chat.completions.create(**asked).choices[0].logprobs.content
    expect([len(entry.top_logprobs) for entry in entries], [20] * MOST)
    expect(all(entry.token == entry.top_logprobs[0].token and entry.logprob <= 0 for entry in entries))
    expect(b"".join(bytes(entry.bytes) for entry in entries).decode(), served.answer)


@OPENAI.call
def n_and_seed(served):
    asked = {"model": served.plain, **GREEDY, "temperature": 1, "seed": 5, "n": 3}
    answer = openai_client(served).chat.completions.create(**asked)
    expect([one.message.content for one in answer.choices], [served.sampled[seed] for seed in (5, 6, 7)])


@OPENAI.call
def stop(served):
    word = served.answer.split()[3]
    answer = openai_client(served).chat.completions.create(model=served.plain, stop=[word], **GREEDY)
    expect(answer.choices[0].message.content, served.answer.partition(word)[0])
    expect(answer.choices[0].finish_reason, "stop")


@OPENAI.call
def prediction(served):
    given = {"type": "content", "content": served.answer}
    answer = openai_client(served).chat.completions.create(model=served.plain, prediction=given, **GREEDY)
    expect(answer.choices[0].message.content, served.answer)
    expect(answer.usage.completion_tokens_details.accepted_prediction_tokens > 0)


@OPENAI.call
def responses(served):
    asked = {"model": served.plain, "input": QUESTION, "max_output_tokens": MOST, "temperature": 0}
    answer = openai_client(served).responses.create(**asked)
    expect((answer.output_text, answer.status), (served.answer, "incomplete"))
    expect(answer.usage.output_tokens, MOST)


@OPENAI.call
def responses_stream(served):
    asked = {"model": served.plain, "input": QUESTION, "max_output_tokens": MOST, "temperature": 0}
    with openai_client(served).responses.stream(**asked) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    expect(text, served.answer)


@OPENAI.call
def responses_tools(served):
    tool = {"type": "function", "name": "weather", "parameters": CITY, "strict": True}
    asked = {"model": served.tools, "tools": [tool], "max_output_tokens": 200, "temperature": 0}
    client = openai_client(served)
    answer = client.responses.create(input=MESSAGES, tool_choice="required", **asked)
    call = next(item for item in answer.output if item.type == "function_call")
    expect_city(json.loads(call.arguments))
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "Rain."}
    again = client.responses.create(input=[*MESSAGES, *answer.output, result], tool_choice="none", **asked)
    expect([item.type for item in again.output], ["message"])


@OPENAI.call
def responses_parse(served):
    asked = {"model": served.plain, "input": QUESTION, "max_output_tokens": 200, "temperature": 0}
    answer = openai_client(served).responses.parse(text_format=person_type(), **asked)
    expect(0 <= answer.output_parsed.age <= 99)


@OPENAI.call
def completions(served):
    asked = {"model": served.plain, "prompt": QUESTION, "max_tokens": MOST, "temperature": 0}
    expect(openai_client(served).completions.create(**asked).choices[0].text, served.rest)
    chunks = openai_client(served).completions.create(**asked, stream=True)
    expect("".join(chunk.choices[0].text for chunk in chunks if chunk.choices), served.rest)


@OPENAI.call
def models(served):
    client = openai_client(served)
    expect({model.id for model in client.models.list()}, {served.plain, served.tools, served.thinking})
    expect(client.models.retrieve(served.tools).id, served.tools)


@OPENAI.call
def errors(served):
    import openai

    client = openai_client(served, max_retries=3)
    image = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
    for kind, code, fields in (
        (openai.NotFoundError, "model_not_found", {"model": "gpt-4o"}),
        (openai.BadRequestError, "context_length_exceeded", {"messages": [{"role": "user", "content": "a " * 9000}]}),
        (openai.BadRequestError, "unsupported", {"messages": [{"role": "user", "content": image}]}),
        (openai.BadRequestError, None, {"temperature": 1000}),
    ):
        try:
            client.chat.completions.create(**{"model": served.plain, **GREEDY, **fields})
        except kind as error:
            expect(error.code, code)
            expect(error.response.headers["x-should-retry"], "false")
        else:
            expect("an answer", kind.__name__)


@OPENAI.call
def retries_after_429(served):
    import openai

    refusals = Refusals()
    with openai.DefaultHttpxClient(event_hooks=refusals.hooks()) as http:
        client = openai_client(served, max_retries=30, http_client=http)
        asked = {"model": served.plain, **GREEDY}
        with ThreadPoolExecutor(MANY) as pool:
            answers = list(pool.map(lambda _: client.chat.completions.create(**asked), range(MANY)))
    expect([answer.choices[0].message.content for answer in answers], [served.answer] * MANY)
    expect(refusals.counts.get(429, 0) > 0)


@OPENAI.call
def retries_after_503(served):
    """A model without room while another answers: the client comes again when that has ended."""
    import openai

    refusals = Refusals()
    endless = {"max_tokens": 1500, "logit_bias": {"0": -100, "2": -100}, "extra_body": {"repetition_guard": False}}
    with openai.DefaultHttpxClient(event_hooks=refusals.hooks()) as http:
        client = openai_client(served, max_retries=10, http_client=http)
        first = client.chat.completions.create(model=served.plain, stream=True, **{**GREEDY, **endless})
        next(iter(first))
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(list, first)
            answer = client.chat.completions.create(model=served.tools, **GREEDY)
            expect(len(reading.result()) > 0)
    expect(answer.choices[0].message.content != "")
    expect(refusals.counts.get(503, 0) > 0)


@ANTHROPIC.call
def messages(served):
    answer = anthropic_client(served).messages.create(model=served.plain, **TO_CLAUDE)
    expect((answer.content[0].text, answer.stop_reason), (served.answer, "max_tokens"))
    expect(answer.usage.output_tokens, MOST)


@ANTHROPIC.call
def messages_stream(served):
    with anthropic_client(served).messages.stream(model=served.plain, **TO_CLAUDE) as stream:
        expect("".join(stream.text_stream), served.answer)
        expect(stream.get_final_message().usage.output_tokens, MOST)


@ANTHROPIC.call
def message_tools(served):
    client = anthropic_client(served)
    asked = {"model": served.tools, "tools": [CLAUDE_TOOL], "max_tokens": 200, **COLD}
    answer = client.messages.create(messages=MESSAGES, tool_choice={"type": "any"}, **asked)
    expect(answer.stop_reason, "tool_use")
    call = next(block for block in answer.content if block.type == "tool_use")
    expect_city(call.input)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "Rain."}
    said = [*MESSAGES, {"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    again = client.messages.create(messages=said, tool_choice={"type": "none"}, **asked)
    expect(again.stop_reason in ("end_turn", "max_tokens"))


@ANTHROPIC.call
def message_tool_stream(served):
    asked = {"model": served.tools, "tools": [CLAUDE_TOOL], "max_tokens": 200, **COLD}
    choice = {"type": "tool", "name": "weather"}
    with anthropic_client(served).messages.stream(messages=MESSAGES, tool_choice=choice, **asked) as stream:
        for _ in stream:
            pass
        call = stream.get_final_message().content[-1]
    expect_city(call.input)


@ANTHROPIC.call
def thinking(served):
    asked = {**TO_CLAUDE, "model": served.thinking}
    answer = anthropic_client(served).messages.create(thinking={"type": "enabled", "budget_tokens": 1024}, **asked)
    expect((answer.content[0].type, answer.content[0].thinking != ""), ("thinking", True))
    answer = anthropic_client(served).messages.create(**asked)
    expect([block.type for block in answer.content], ["text"])


@ANTHROPIC.call
def count_tokens(served):
    client = anthropic_client(served)
    count = client.messages.count_tokens(model=served.plain, messages=MESSAGES).input_tokens
    usage = client.messages.create(model=served.plain, **TO_CLAUDE).usage
    expect(usage.input_tokens + usage.cache_read_input_tokens, count)


@ANTHROPIC.call
def stop_sequences(served):
    word = served.answer.split()[3]
    answer = anthropic_client(served).messages.create(model=served.plain, stop_sequences=[word], **TO_CLAUDE)
    expect((answer.stop_reason, answer.stop_sequence), ("stop_sequence", word))


@ANTHROPIC.call
def message_errors(served):
    import anthropic

    client = anthropic_client(served, max_retries=3)
    for kind, fields in (
        (anthropic.NotFoundError, {"model": "claude-opus"}),
        (anthropic.BadRequestError, {"messages": [{"role": "user", "content": "a " * 9000}]}),
        (anthropic.BadRequestError, {"messages": []}),
    ):
        try:
            client.messages.create(**{"model": served.plain, **TO_CLAUDE, **fields})
        except kind as error:
            expect(error.body["type"], "error")
        else:
            expect("an answer", kind.__name__)


@ANTHROPIC.call
def message_retries_after_429(served):
    import anthropic

    refusals = Refusals()
    with anthropic.DefaultHttpxClient(event_hooks=refusals.hooks()) as http:
        client = anthropic_client(served, max_retries=30, http_client=http)
        asked = {"model": served.plain, **TO_CLAUDE}
        with ThreadPoolExecutor(MANY) as pool:
            answers = list(pool.map(lambda _: client.messages.create(**asked), range(MANY)))
    expect([answer.content[0].text for answer in answers], [served.answer] * MANY)
    expect(refusals.counts.get(429, 0) > 0)
