"""Libraries and programs that speak to models of many makers."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.server_clients.calls import (
    MESSAGES,
    MOST,
    PERSON,
    QUESTION,
    WEATHER,
    Client,
    Served,
    expect,
    expect_city,
    expect_person,
)
from tests.server_clients.makers import person_type

LANGCHAIN = Client("LangChain", "langchain-openai")
LLAMAINDEX = Client("LlamaIndex", "llama-index-llms-openai-like")
LLM = Client("llm", "llm")
OLLAMA = Client("ollama", "ollama")
LITELLM = Client("litellm", "litellm")


def weather(city: str, days: int) -> str:
    """The weather."""
    return f"{days} days of rain in {city}."


def langchain(served: Served, model: str | None = None, **options):
    """Return LangChain's model."""
    from langchain_openai import ChatOpenAI

    options = {"max_tokens": MOST, **options}
    return ChatOpenAI(
        base_url=f"{served.url}/v1",
        api_key="none",
        model=model or served.plain,
        temperature=0,
        max_retries=0,
        **options,
    )


@LANGCHAIN.call
def invoke(served):
    answer = langchain(served).invoke(QUESTION)
    expect((answer.content, answer.usage_metadata["output_tokens"]), (served.answer, MOST))


@LANGCHAIN.call
def stream(served):
    pieces = list(langchain(served, stream_usage=True).stream(QUESTION))
    expect("".join(piece.content for piece in pieces), served.answer)
    expect(sum((piece.usage_metadata or {}).get("output_tokens", 0) for piece in pieces), MOST)


@LANGCHAIN.call
def batch(served):
    expect([answer.content for answer in langchain(served).batch([QUESTION] * 2)], [served.answer] * 2)


@LANGCHAIN.call
def with_structured_output(served):
    model = langchain(served, max_tokens=200)
    expect_person(model.with_structured_output(PERSON).invoke("Make up a person."))
    expect(0 <= model.with_structured_output(person_type()).invoke("Make up a person.").age <= 99)


@LANGCHAIN.call
def bind_tools(served):
    from langchain_core.messages import HumanMessage, ToolMessage

    bound = langchain(served, served.tools, max_tokens=200).bind_tools([WEATHER], tool_choice="any")
    answer = bound.invoke(QUESTION)
    expect_city(answer.tool_calls[0]["args"])
    whole = None
    for piece in bound.stream(QUESTION):
        whole = piece if whole is None else whole + piece
    expect(whole.tool_calls[0]["args"], answer.tool_calls[0]["args"])
    said = [HumanMessage(QUESTION), answer, ToolMessage("Rain.", tool_call_id=answer.tool_calls[0]["id"])]
    expect(isinstance(langchain(served, served.tools).invoke(said).content, str))


@LANGCHAIN.call
def use_responses_api(served):
    expect(langchain(served, use_responses_api=True).invoke(QUESTION).text, served.answer)


def llamaindex(served: Served, model: str | None = None, **options):
    """Return LlamaIndex's model."""
    from llama_index.llms.openai_like import OpenAILike

    options = {"max_tokens": MOST, "is_chat_model": True, **options}
    return OpenAILike(
        api_base=f"{served.url}/v1", api_key="none", model=model or served.plain, context_window=4096, temperature=0,
        max_retries=0, **options,
    )  # fmt: skip


def llamaindex_messages():
    """Return the question as LlamaIndex has it."""
    from llama_index.core.llms import ChatMessage

    return [ChatMessage(role="user", content=QUESTION)]


@LLAMAINDEX.call
def llamaindex_chat(served):
    expect(llamaindex(served).chat(llamaindex_messages()).message.content, served.answer)


@LLAMAINDEX.call
def stream_chat(served):
    pieces = list(llamaindex(served).stream_chat(llamaindex_messages()))
    expect("".join(piece.delta or "" for piece in pieces), served.answer)


@LLAMAINDEX.call
def complete(served):
    expect(llamaindex(served, is_chat_model=False).complete(QUESTION).text, served.rest)


@LLAMAINDEX.call
def structured_predict(served):
    from llama_index.core.prompts import PromptTemplate

    model = llamaindex(served, max_tokens=200, should_use_structured_outputs=True)
    person = model.structured_predict(person_type(), PromptTemplate("Make up a person."))
    expect(0 <= person.age <= 99)


@LLAMAINDEX.call
def chat_with_tools(served):
    from llama_index.core.tools import FunctionTool

    model = llamaindex(served, served.tools, max_tokens=200, is_function_calling_model=True)
    answer = model.chat_with_tools([FunctionTool.from_defaults(fn=weather)], user_msg=QUESTION, tool_required=True)
    (call, *_) = model.get_tool_calls_from_response(answer)
    expect((call.tool_name, set(call.tool_kwargs)), ("weather", {"city", "days"}))


def llm_program(*arguments: str) -> str:
    """Run ``llm``; return what it prints."""
    command = [sys.executable, "-m", "llm", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    expect((done.returncode, done.stderr), (0, ""))
    return done.stdout


@LLM.call
def openai_endpoint(served):
    options = ["openai", "endpoint", f"{served.url}/v1", "-m", served.plain, "-o", "temperature", "0"]
    for way in ([], ["--no-stream"]):
        expect(
            llm_program(*options, "-o", "max_tokens", str(MOST), *way, QUESTION).rstrip("\n"),
            served.answer.rstrip("\n"),
        )
    expect(served.tools in llm_program("openai", "endpoint", f"{served.url}/v1", "--models"))


@LLM.call
def openai_endpoint_responses(served):
    options = ["openai", "endpoint", f"{served.url}/v1", "-m", served.plain, "-o", "temperature", "0", "--responses"]
    expect(llm_program(*options, "-o", "max_tokens", str(MOST), QUESTION).rstrip("\n"), served.answer.rstrip("\n"))


@LLM.call
def openai_endpoint_schema(served):
    options = ["openai", "endpoint", f"{served.url}/v1", "-m", served.plain, "--schema", json.dumps(PERSON)]
    expect_person(json.loads(llm_program(*options, "Make up a person.")))


@LLM.call
def plugin(served):
    """The model in the process of ``llm``, from the same store."""
    options = ["-m", "edge-rt/plain", "--no-log", "-o", "temperature", "0"]
    text = llm_program(*options, "-o", "max_tokens", str(MOST), QUESTION)
    expect(text.rstrip("\n"), served.answer.rstrip("\n"))
    expect_person(json.loads(llm_program(*options, "--schema", json.dumps(PERSON), "Make up a person.")))


def ollama_client(served: Served):
    """Return Ollama's client."""
    import ollama

    return ollama.Client(host=served.url)


def ollama_asked(served: Served, **changes):
    """Return the arguments of a chat of Ollama's client."""
    return {
        "model": served.plain, "messages": MESSAGES, "options": {"num_predict": MOST, "temperature": 0}, **changes
    }  # fmt: skip


@OLLAMA.call
def list_and_show(served):
    client = ollama_client(served)
    expect({model.model for model in client.list().models}, {served.plain, served.tools, served.thinking})
    client.generate(model=served.plain, prompt=QUESTION, options={"num_predict": 1})
    expect([model.model for model in client.ps().models], [served.plain])
    shown = client.show(served.tools)
    expect((shown.details.format, "tools" in shown.capabilities), ("edge-rt", True))


@OLLAMA.call
def ollama_chat(served):
    client = ollama_client(served)
    expect(client.chat(**ollama_asked(served)).message.content, served.answer)
    *pieces, last = list(client.chat(**ollama_asked(served), stream=True))
    expect("".join(piece.message.content for piece in pieces), served.answer)
    expect((last.done, last.done_reason, last.eval_count), (True, "length", MOST))


@OLLAMA.call
def generate(served):
    client, options = ollama_client(served), {"num_predict": MOST, "temperature": 0}
    expect(client.generate(model=served.plain, prompt=QUESTION, options=options).response, served.answer)
    expect(client.generate(model=served.plain, prompt=QUESTION, options=options, raw=True).response, served.rest)
    pieces = client.generate(model=served.plain, prompt=QUESTION, options=options, stream=True)
    expect("".join(piece.response for piece in pieces), served.answer)


@OLLAMA.call
def ollama_format(served):
    options = {"num_predict": 200, "temperature": 0}
    expect_person(
        json.loads(ollama_client(served).chat(**ollama_asked(served, format=PERSON, options=options)).message.content)
    )


@OLLAMA.call
def ollama_tools(served):
    """Tools are described and answers read, whether the model calls them or not: Ollama's API asks for no call."""
    asked = ollama_asked(served, model=served.tools, tools=[weather])
    expect(isinstance(ollama_client(served).chat(**asked).message.content, str))


@OLLAMA.call
def ollama_errors(served):
    import ollama

    try:
        ollama_client(served).chat(**ollama_asked(served, model="llama3.2"))
    except ollama.ResponseError as error:
        expect((error.status_code, "no model" in error.error), (404, True))
    else:
        expect("an answer", "ResponseError")


def litellm_asked(served: Served, model: str | None = None, **changes):
    """Ask through LiteLLM."""
    import litellm

    litellm.suppress_debug_info = True
    given = {"messages": MESSAGES, "max_tokens": MOST, "temperature": 0, "api_key": "none", **changes}
    return litellm.completion(model=f"openai/{model or served.plain}", api_base=f"{served.url}/v1", **given)


@LITELLM.call
def completion(served):
    answer = litellm_asked(served)
    expect((answer.choices[0].message.content, answer.usage.completion_tokens), (served.answer, MOST))


@LITELLM.call
def completion_stream(served):
    chunks = list(litellm_asked(served, stream=True, stream_options={"include_usage": True}))
    expect("".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices), served.answer)


@LITELLM.call
def completion_tools(served):
    asked = {"tools": [WEATHER], "tool_choice": "required", "max_tokens": 200}
    for answer in (litellm_asked(served, served.tools, **asked), _joined(served, asked)):
        (call, *_) = answer.choices[0].message.tool_calls
        expect_city(json.loads(call.function.arguments))


def _joined(served, asked):
    import litellm

    return litellm.stream_chunk_builder(list(litellm_asked(served, served.tools, stream=True, **asked)))


@LITELLM.call
def completion_format(served):
    answer = litellm_asked(served, response_format=person_type(), max_tokens=200)
    expect_person(json.loads(answer.choices[0].message.content))


@LITELLM.call
def anthropic_route(served):
    import litellm

    given = {"messages": MESSAGES, "max_tokens": MOST, "temperature": 0, "api_key": "none"}
    answer = litellm.completion(model=f"anthropic/{served.plain}", api_base=served.url, **given)
    expect(answer.choices[0].message.content, served.answer)


@LITELLM.call
def completion_errors(served):
    import litellm

    for kind, changes in (
        (litellm.NotFoundError, {"model": "gpt-4o"}),
        (litellm.ContextWindowExceededError, {"messages": [{"role": "user", "content": "a " * 9000}]}),
    ):
        try:
            litellm_asked(served, **changes)
        except kind as error:
            expect(error.status_code in (400, 404))
        else:
            expect("an answer", kind.__name__)
