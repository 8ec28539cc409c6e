"""Arguments, tools and documents of chat templates, thoughts and tool calls, with a model of noise."""

from __future__ import annotations

import pytest

from edge_rt.errors import ConfigError
from tests.helpers.models import load_package
from tests.helpers.packages import copied, edit_manifest, manifest_setter, replace_file
from tests.helpers.small import GREEDY

TEMPLATE = r"""
{%- for message in messages %}
    {%- if message.reasoning_content %}{{- '<think>\n' + message.reasoning_content + '\n</think>\n\n' }}{% endif %}
    {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor %}
{%- for tool in tools or [] %}{{- tool.name }}{% endfor %}
{%- for document in documents or [] %}{{- document.text }}{% endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is not defined or enable_thinking %}{{- '<think>\n' }}{% endif %}
{%- endif %}"""
TOOL_TEMPLATE = "{{ 'tools: ' ~ tools[0].name ~ messages[0].content }}<|im_start|>"
SHORT = GREEDY | {"max_tokens": 6}
HELLO = [{"role": "user", "content": "Hello"}]
TOOLS = [{"name": "clock"}]


@pytest.fixture(scope="module")
def package(small_package, tmp_path_factory):
    made = copied(small_package, tmp_path_factory.mktemp("thinking"))
    replace_file(made, "chat_template.jinja", TEMPLATE.encode())
    return made


@pytest.fixture(scope="module")
def thinking(package):
    with load_package(package) as model:
        yield model


def test_arguments_reach_the_template(thinking):
    assert thinking.render(HELLO).text.endswith("assistant\n<think>\n")
    assert thinking.render(HELLO, template_args={"enable_thinking": False}).text.endswith("assistant\n")
    assert "clock" in thinking.render(HELLO, tools=TOOLS).text
    assert "a page" in thinking.render(HELLO, documents=[{"text": "a page"}]).text
    assert thinking.template_variables == {"enable_thinking"}


@pytest.mark.parametrize("name", ["tools", "documents"])
def test_what_the_template_has_no_place_for_is_refused(small_package, name):
    with load_package(small_package) as model:
        given = {name: [{"name": "clock", "text": "a page"}]}
        for use in (model.render, model.generate, model.chat):
            with pytest.raises(ConfigError, match=f"has no place for {name}"):
                use(*([] if use == model.chat else [HELLO]), **given)
        assert model.render(HELLO, **{name: []}).text == model.render(HELLO).text


def test_a_model_without_a_template_says_so(small_package, thinking, tmp_path):
    bare = copied(small_package, tmp_path / "bare")
    edit_manifest(bare, lambda document: document.update(chat_template=None))
    with load_package(bare) as model:
        assert model.has_fallback_template
    assert not thinking.has_fallback_template


def test_a_prompt_that_begins_the_thoughts(thinking):
    result = thinking.generate(HELLO, **SHORT)
    assert result.text == ""
    assert result.reasoning
    plain = thinking.generate(HELLO, template_args={"enable_thinking": False}, **SHORT)
    assert plain.text
    assert plain.reasoning == ""


def test_events_have_the_thoughts(thinking):
    events = list(thinking.stream(HELLO, **SHORT))
    assert "".join(event.reasoning for event in events) == thinking.generate(HELLO, **SHORT).reasoning
    assert not any(event.text for event in events)


def test_a_text_is_continued_without_thoughts(thinking):
    assert thinking.generate("Hello<think>", **SHORT).reasoning == ""


@pytest.mark.parametrize("name", ["tools", "documents"])
@pytest.mark.parametrize("given", [TOOLS[0], "clock", [1], 5], ids=str)
def test_what_is_no_list_of_objects_is_refused_by_name(thinking, name, given):
    with pytest.raises(ConfigError, match=f"'{name}' is not a list of objects"):
        thinking.generate(HELLO, **{name: given})


@pytest.mark.parametrize("given", [{"tools": TOOLS}, {"documents": [{}]}, {"template_args": {"a": 1}}])
def test_what_only_messages_can_have(thinking, given):
    with pytest.raises(ConfigError, match="no list of messages"):
        thinking.generate("Hello", **given)


class TestChat:
    def test_thoughts_stay_in_the_conversation(self, thinking, tmp_path):
        chat = thinking.chat()
        result = chat.send("Hello", **SHORT)
        assert chat.messages[-1] == {"role": "assistant", "content": "", "reasoning_content": result.reasoning}
        chat.send("And?", **SHORT)
        chat.save(tmp_path / "chat.json")
        other = thinking.chat()
        other.load(tmp_path / "chat.json")
        assert other.messages == chat.messages

    def test_arguments_hold_for_all_turns_and_copies(self, thinking):
        chat = thinking.chat(template_args={"enable_thinking": False}, tools=TOOLS)
        chat.send("Hello", **SHORT)
        assert chat.send("And?", **SHORT).reasoning == ""
        other = chat.fork()
        chat.template_args["enable_thinking"] = True
        assert other.send("And?", **SHORT).reasoning == ""
        assert chat.send("And?", **SHORT).reasoning
        assert other.tools == TOOLS

    def test_malformed_arguments_are_refused_at_once(self, thinking):
        with pytest.raises(ConfigError, match="impossible name"):
            thinking.chat(template_args={"messages": []})


def test_a_second_template_is_used_with_tools(package, tmp_path):
    made = copied(package, tmp_path)
    replace_file(made, "chat_template.tool_use.jinja", TOOL_TEMPLATE.encode())
    edit_manifest(made, manifest_setter("tool_template", "chat_template.tool_use.jinja"))
    with load_package(made) as model:
        assert model.render(HELLO, tools=TOOLS).text == "tools: clockHello<|im_start|>"
        for none in (None, []):
            assert model.render(HELLO, tools=none).text.startswith("<|im_start|>user")
