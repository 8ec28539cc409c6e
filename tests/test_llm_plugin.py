"""Models for the program ``llm``, through its own Python API."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import pytest

from edge_rt.errors import ConfigError
from edge_rt.memory.budget import Budget
from tests.helpers.models import load_package
from tests.helpers.packages import copied, replace_file
from tests.helpers.tool_templates import TOOL_TEMPLATES

llm = pytest.importorskip("llm", reason="the extra 'llm' is not installed")

SAMPLED = {"max_tokens": 12, "seed": 3, "temperature": 1.0}


@pytest.fixture(scope="module")
def store(native_package, tmp_path_factory):
    """A store with two packages, of which one has a template that teaches tools."""
    store = tmp_path_factory.mktemp("store")
    (store / "packages").mkdir()
    copied(native_package, store / "packages").rename(store / "packages" / "plain")
    copied(native_package, store / "packages").rename(store / "packages" / "tools")
    replace_file(store / "packages" / "tools", "chat_template.jinja", TOOL_TEMPLATES["Qwen"].encode())
    return store


@pytest.fixture(scope="module")
def models(store):
    """Both kinds of both models, by name."""
    from edge_rt.llm_plugin import OpenModels, packages_of

    opened = OpenModels(store, Budget("1GiB"))
    yield {sync.model_id: (sync, asynchronous) for sync, asynchronous in packages_of(opened)}
    opened.close()


def plain(native_package, messages, **options):
    with load_package(native_package) as model:
        return model.generate(messages, **options)


def test_every_package_has_one_name(models):
    assert list(models) == ["edge-rt/plain", "edge-rt/tools"]


def test_a_conversation_has_the_answers_and_the_usage_of_its_messages(models, native_package):
    conversation = models["edge-rt/plain"][0].conversation()
    first = conversation.prompt("Hello", system="Be short", **SAMPLED)
    messages = [{"role": "system", "content": "Be short"}, {"role": "user", "content": "Hello"}]
    expected = plain(native_package, messages, **SAMPLED)
    assert first.text() == expected.text
    usage = first.usage()
    assert (usage.input, usage.output) == (expected.usage.prompt_tokens, expected.usage.completion_tokens)
    messages += [{"role": "assistant", "content": first.text()}, {"role": "user", "content": "And?"}]
    second = conversation.prompt("And?", stream=False, **SAMPLED)
    assert second.text() == plain(native_package, messages, **SAMPLED).text


def test_tasks_have_the_same_answers_at_the_same_time(models, native_package):
    model = models["edge-rt/plain"][1]

    async def ask(text):
        return await model.prompt(text, **SAMPLED).text()

    async def ask_all():
        return await asyncio.gather(ask("One"), ask("Two"))

    one = [{"role": "user", "content": "One"}]
    two = [{"role": "user", "content": "Two"}]
    assert asyncio.run(ask_all()) == [plain(native_package, asked, **SAMPLED).text for asked in (one, two)]


def test_an_answer_fits_its_schema(models):
    schema = {"type": "object", "properties": {"sky": {"enum": ["blue", "red"]}}, "required": ["sky"]}
    schema["additionalProperties"] = False
    answer = models["edge-rt/plain"][0].prompt("Hello", schema=schema, max_tokens=60)
    assert json.loads(answer.text())["sky"] in ("blue", "red")


def test_a_tool_is_called_and_its_result_is_read(models):
    def clock() -> str:
        """Say the time."""
        return "noon"

    conversation = models["edge-rt/tools"][0].conversation(tools=[clock])
    asked = conversation.prompt("Hello", tool_choice="required", max_tokens=100, seed=3)
    events = list(asked.stream_events())
    assert [event.chunk for event in events if event.type == "tool_call_name"][:1] == ["clock"]
    calls = asked.tool_calls()
    assert (calls[0].name, calls[0].arguments) == ("clock", {})
    results = asked.execute_tool_calls()
    assert results[0].output == "noon"
    answer = conversation.prompt("", tool_results=results, **SAMPLED, tool_choice="none")
    assert answer.usage().input > 0
    roles = [message.role for message in answer.prompt.messages]
    assert roles[:3] == ["user", "assistant", "tool"]


def test_tools_that_a_template_does_not_know_are_refused(models):
    tool = llm.Tool(name="clock", description="Say the time", input_schema={"type": "object", "properties": {}})
    with pytest.raises(ConfigError, match="no place for tools"):
        models["edge-rt/plain"][0].prompt("Hello", tools=[tool], **SAMPLED).text()


def test_a_model_is_closed_where_another_needs_its_memory(store):
    from edge_rt.llm_plugin import OpenModels

    with load_package(store / "packages" / "plain", slots=4, formats=True) as model:
        needed = model.plan.total_bytes
    opened = OpenModels(store, Budget(needed + (needed >> 6)))
    try:
        with opened.using("plain") as first:
            pass
        with opened.using("plain") as again:
            assert again is first
        with opened.using("tools") as second:
            assert first.texts is None
            assert second.texts is not None
    finally:
        opened.close()


def test_the_list_of_models_loads_nothing_that_computes():
    program = (
        "import sys, llm, edge_rt.llm_plugin as plugin; plugin.register_models(lambda *models: None);"
        "print([name for name in ('onnxruntime', 'tokenizers', 'gguf', 'onnx') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
