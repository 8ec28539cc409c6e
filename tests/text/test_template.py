"""Chat templates: what models need renders, and messages stay text."""

from __future__ import annotations

import time
from datetime import datetime

import pytest
from hypothesis import given, settings, strategies as st

from edge_rt.errors import ConfigError, InvalidTemplate
from edge_rt.text.template import DEFAULT_TEMPLATE_NAME, FALLBACK_WARNING, ChatTemplate, Inputs, lint
from tests.helpers.examples import share_of

CHATML = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
SIMPLE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
USER = [{"role": "user", "content": "Hi"}]
TURNS = [
    {"role": "system", "content": " Be brief. "},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello."},
    {"role": "user", "content": "Grüße 😀"},
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_time",
            "description": 'Says "now" — in Köln',
            "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}, "required": ["zone"]},
        },
    }
]


def render(source, messages=None, *, specials=CHATML, tools=None, prompt=True, clock=datetime.now, bos="", eos=""):
    template = ChatTemplate(source, special_tokens=specials, bos_token=bos, eos_token=eos, clock=clock)
    return template.render(messages or USER, Inputs(tools), add_generation_prompt=prompt)


def text_of(source, messages=None, **options):
    return render(source, messages, **options).text


LLAMA3 = """\
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set system = '' %}
    {%- set rest = messages %}
{%- endif %}
{{- '<|head|>system<|/head|>\\n\\nToday is ' ~ strftime_now('%d %b %Y') ~ '.\\n' }}
{%- if tools is not none %}
    {%- for tool in tools %}
        {{- tool | tojson(indent=2) ~ '\\n' }}
    {%- endfor %}
{%- endif %}
{{- system ~ '<|eot|>' }}
{%- for message in rest %}
    {%- if message.role not in ['user', 'assistant'] %}
        {{- raise_exception('role ' ~ message.role ~ ' is unknown') }}
    {%- endif %}
    {{- '<|head|>' + message.role + '<|/head|>\\n\\n' + message.content | trim + '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|head|>assistant<|/head|>\\n\\n' }}{%- endif %}"""

QWEN = """\
{%- macro block(role, text) -%}
<|im_start|>{{ role }}
{{ text }}<|im_end|>
{% endmacro -%}
{%- set ns = namespace(last_user=-1, seen=[]) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages | length - 1) - loop.index0 %}
    {%- if ns.last_user < 0 and message.role == "user" and message.content is string %}
        {%- set ns.last_user = index %}
        {%- break %}
    {%- endif %}
{%- endfor %}
{%- if tools %}
{{- block('system', '# Tools' ~ '\\n<tools>') }}
    {%- for tool in tools | map(attribute='function') | selectattr('name', 'defined') %}
        {%- for name, spec in tool.parameters.properties | items %}
            {{- tool.name ~ '.' ~ name ~ ':' ~ spec.type }}
        {%- endfor %}
        {{- ' ' ~ (tool | tojson) | safe ~ '\\n' }}
    {%- endfor %}
{%- endif %}
{%- for message in messages %}
    {%- if message.content is none or message is not mapping %}{% continue %}{% endif %}
    {%- set content = message.content %}
    {%- if message.role == 'assistant' and '</think>' in content and loop.index0 < ns.last_user %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {%- if loop.previtem is defined and loop.previtem.role == message.role %}{{ '(again)' }}{% endif %}
    {%- set ns.seen = ns.seen + [message.role] %}
    {%- if message.tool_calls is defined and message.tool_calls %}
        {%- for call in message.tool_calls %}
            {%- set content = content ~ '<call>' ~ call.function.name ~ call.function.arguments | tojson ~ '</call>' %}
            {{- block(message.role, content) }}
        {%- endfor %}
    {%- else %}
        {{- block(message.role, content) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
{{- ns.seen | unique | join(',') if not add_generation_prompt }}"""

GEMMA = """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif -%}
{% for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns must alternate') }}{% endif -%}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
{{ '<start>' + role + '\n' + message['content'] | trim + '<end>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<start>model\n' }}{% endif %}"""

PHI = "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}{% endfor %}{{ '<|assistant|>' }}"

MISTRAL = """\
{%- if messages[0].role == "system" %}{% set start, loop_messages = messages[0].content, messages[1:] %}
{%- else %}{% set start, loop_messages = "", messages %}{% endif %}
{{- bos_token }}
{%- for m in loop_messages %}
    {%- if m.role == "user" %}
        {%- if loop.last and start %}{{ "[INST] " + start + "\\n\\n" + m.content + "[/INST]" }}
        {%- else %}{{ "[INST] " + m.content + "[/INST]" }}{% endif %}
    {%- else %}{% generation %}{{ " " + m.content + eos_token }}{% endgeneration %}{% endif %}
{%- endfor %}"""


class TestModelsTemplates:
    def test_llama_style(self):
        specials = ("<|begin|>", "<|head|>", "<|/head|>", "<|eot|>")
        prompt = render(
            *(LLAMA3, TURNS),
            specials=specials,
            bos="<|begin|>",
            clock=lambda: datetime(2024, 7, 26),
        )
        assert prompt.text == (
            "<|begin|><|head|>system<|/head|>\n\nToday is 26 Jul 2024.\nBe brief.<|eot|>"
            "<|head|>user<|/head|>\n\nHi<|eot|>"
            "<|head|>assistant<|/head|>\n\n<think>\nhm\n</think>\n\nHello.<|eot|>"
            "<|head|>user<|/head|>\n\nGrüße 😀<|eot|><|head|>assistant<|/head|>\n\n"
        )
        assert [text for text, special in prompt.pieces() if special][:3] == ["<|begin|>", "<|head|>", "<|/head|>"]

    def test_llama_style_with_tools(self):
        text = text_of(LLAMA3, tools=TOOLS)
        assert '    "description": "Says \\"now\\" — in Köln",\n' in text

    def test_llama_style_refuses_unknown_roles_in_its_own_words(self):
        with pytest.raises(InvalidTemplate, match="'role tool is unknown'"):
            render(LLAMA3, [*USER, {"role": "tool", "content": "1"}])

    def test_qwen_style_drops_old_thoughts(self):
        assert text_of(QWEN, TURNS) == (
            "<|im_start|>system\n Be brief. <|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\nGrüße 😀<|im_end|>\n<|im_start|>assistant\n"
        )

    def test_qwen_style_with_tools_and_calls(self):
        call = {"type": "function", "function": {"name": "get_time", "arguments": {"zone": "CET"}}}
        chat = [*USER, {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "content": "7"}]
        text = text_of(QWEN, chat, tools=TOOLS, prompt=False)
        assert "get_time.zone:string" in text
        assert '<|im_start|>assistant\n<call>get_time{"zone": "CET"}</call><|im_end|>\n' in text
        assert text.endswith("user,assistant,tool")

    def test_gemma_style(self):
        chat = [*USER, {"role": "assistant", "content": " Hello. "}]
        assert text_of(GEMMA, chat, bos="<b>", prompt=False) == "<b><start>user\nHi<end>\n<start>model\nHello.<end>\n"
        folded = text_of(GEMMA, TURNS, bos="<b>")
        assert folded.startswith("<b><start>user\nBe brief. \n\nHi<end>\n<start>model\n")
        with pytest.raises(InvalidTemplate, match="'turns must alternate'"):
            render(GEMMA, [*USER, *USER])

    def test_phi_style_builds_special_tokens_out_of_roles(self):
        prompt = render(PHI, specials=("<|user|>", "<|assistant|>", "<|end|>"))
        assert prompt.pieces() == [("<|user|>", True), ("Hi", False), ("<|end|>", True), ("<|assistant|>", True)]

    def test_mistral_style(self):
        text = text_of(MISTRAL, TURNS, bos="<s>", eos="</s>")
        assert text.startswith("<s>[INST] Hi[/INST] <think>")
        assert text.endswith("Hello.</s>[INST]  Be brief. \n\nGrüße 😀[/INST]")

    @pytest.mark.parametrize(
        ("source", "expected"),
        [
            ("{{ nothing }}|{{ messages[0].nothing }}", "|"),
            ("{{ messages[0].get('name', 'x') }}{{ messages[0].content.upper() }}", "xHI"),
            ("{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}", "role=user;content=Hi;"),
            ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "1"),
            ("{{ messages | rejectattr('role', 'equalto', 'user') | list }}", "[]"),
            ("{% for x in [1, 2, 3] if x > 1 %}{{ x }}{{ ',' if not loop.last }}{% else %}none{% endfor %}", "2,3"),
            (
                "{% for x in range(2) %}{{ loop.cycle('a', 'b') }}{{ loop.length }}{{ loop.revindex }}{% endfor %}",
                "a22b21",
            ),
            ("{% for x in [[1, [2]], 3] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}", "123"),
            ("{% set x %}{{ 1 + 2 }}{% endset %}{{ x ~ x | string }}{% with y = 4 %}{{ y }}{% endwith %}", "334"),
            ("{% filter upper %}a{% endfilter %}", "A"),
            ("{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}b{% endcall %}", "<b>"),
            (
                "{{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }}{{ {'a': 1} | dictsort }}",
                '{"a": 2, "b": 1}[(\'a\', 1)]',
            ),
            ("{{ 'a-b'.replace('-', '+') }}{{ ['a', 'b'] | join(' ') }}{{ ' '.join(['c', 'd']) }}", "a+ba bc d"),
            ("{{ 7 // 2 }}{{ 7 % 4 }}{{ 2 ** 3 }}{{ -1 | abs }}{{ [1, 2] | sum }}{{ 'ab' * 2 }}", "3381" + "3abab"),
            ("{{ dict(a=1).a }}{{ (1, 2)[1] }}{{ 'abc'[1:] }}{{ [3, 1] | sort }}{{ 1 in (1, 2) }}", "12bc[1, 3]True"),
            ("{{ 'x\ny' | indent(2) }}", "x\n  y"),
        ],
    )
    def test_what_templates_use_works(self, source, expected):
        assert text_of(source) == expected

    def test_the_date_comes_from_the_clock(self):
        # Compiled once, and yet with clocks of their own.
        for date in (datetime(2031, 2, 3), datetime(2032, 3, 4)):
            told = text_of("{{ strftime_now('%Y-%m-%d') }}", clock=lambda date=date: date)
            assert told == date.strftime("%Y-%m-%d")

    def test_messages_may_come_in_parts(self):
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        assert text_of("{{ messages[0].content }}", [{"role": "user", "content": parts}]) == "ab"


class TestSpecialTokens:
    def test_those_of_the_template_are_real_and_those_of_messages_are_text(self):
        prompt = render(SIMPLE, [{"role": "user", "content": "a<|im_end|>b<|IM_END|>"}])
        assert prompt.pieces() == [
            ("<|im_start|>", True),
            ("user\na<|im_end|>b<|IM_END|>", False),
            ("<|im_end|>", True),
            ("\n", False),
            ("<|im_start|>", True),
            ("assistant\n", False),
        ]

    @pytest.mark.parametrize("content", ["<", "<|im_", "<|im_end|", "<<|im_", "<|im_end|><|im_end|>", "|im_end|>", ">"])
    def test_content_next_to_the_templates_words_stays_text(self, content):
        source = "<|im_start|>{{ '<' + messages[0].content + '|im_end|>' }}<|im_end|>"
        prompt = render(source, [{"role": "user", "content": content}])
        assert prompt.pieces() == [("<|im_start|>", True), (f"<{content}|im_end|>", False), ("<|im_end|>", True)]

    @pytest.mark.parametrize("change", ["lower", "trim", "tojson", "tojson(ensure_ascii=true)", "replace('x', 'y')"])
    def test_changed_content_stays_text(self, change):
        prompt = render(
            "{{ messages[0].content | " + change + " }}", [{"role": "user", "content": "<|IM_END|><|im_end|>"}]
        )
        assert not any(special for _, special in prompt.pieces())
        assert prompt.text.strip('"').lower() == "<|im_end|><|im_end|>"

    def test_tool_descriptions_and_calls_are_text(self):
        tools = [{"name": "a<|im_end|>", "<|im_start|>x": ["<|im_end|>"]}]
        prompt = render("{{ tools | tojson }}{{ messages[0].name }}", [{**USER[0], "name": "<|im_end|>"}], tools=tools)
        assert not any(special for _, special in prompt.pieces())

    @given(
        st.lists(
            st.lists(st.sampled_from([*CHATML, "<|", "|>", "<", "im_", "end", "\ufdd0", "a", "é"]), max_size=6),
            min_size=1,
            max_size=4,
        )
    )
    @settings(max_examples=share_of(150))
    def test_no_mixture_of_fragments_adds_a_special_token(self, contents):
        chat = [{"role": "user", "content": "".join(parts)} for parts in contents]
        prompt = render(SIMPLE, chat)
        pieces = prompt.pieces()
        assert sum(special for _, special in pieces) == 2 * len(chat) + 1
        expected = "".join(f"<|im_start|>user\n{m['content']}<|im_end|>\n" for m in chat) + "<|im_start|>assistant\n"
        assert "".join(text for text, _ in pieces) == expected

    def test_the_longest_special_token_wins(self):
        prompt = render("<|a|><|b|>", specials=("<|a|>", "<|a|><|b|>"))
        assert prompt.pieces() == [("<|a|><|b|>", True)]

    def test_without_special_tokens_everything_is_text(self):
        assert render("a{{ messages[0].content }}", specials=()).pieces() == [("aHi", False)]

    def test_a_chat_that_grows_keeps_its_beginning(self):
        template = ChatTemplate(SIMPLE, special_tokens=CHATML)
        answer = "It ends with <|im_end|> or <"
        before = template.render([{"role": "user", "content": "What ends a turn? <|im_"}])
        context = before.followed_by(answer)
        chat = [
            {"role": "user", "content": "What ends a turn? <|im_"},
            {"role": "assistant", "content": answer},
            {"role": "user", "content": "Thanks"},
        ]
        after = template.render(chat)
        assert after.starts_with(context)
        assert after.suffix(len(context.text)).pieces() == [
            ("<|im_end|>", True),
            ("\n", False),
            ("<|im_start|>", True),
            ("user\nThanks", False),
            ("<|im_end|>", True),
            ("\n", False),
            ("<|im_start|>", True),
            ("assistant\n", False),
        ]

    def test_a_text_that_somebody_else_wrote_is_no_beginning(self):
        template = ChatTemplate(SIMPLE, special_tokens=CHATML)
        before = template.render(USER, add_generation_prompt=False)
        after = template.render([{"role": "user", "content": "Hi<|im_end|>\n"}])
        assert after.text.startswith(before.text)
        assert not after.starts_with(before)


class TestMessages:
    @pytest.mark.parametrize("content", ["{{7*7}}", "{% raw %}", "{# x #}", "{{ messages }}", "\0", "\\n", ""])
    def test_content_is_never_a_template(self, content):
        assert text_of("[{{ messages[0].content }}]", [{"role": "user", "content": content}]) == f"[{content}]"

    @pytest.mark.parametrize(
        ("messages", "message"),
        [
            ([], "no messages"),
            ("hello", "not a list"),
            (None, "not a list"),
            (["hello"], "not a mapping"),
            ([{"content": "x"}], "has no role. Message 0; known"),
            ([{"role": None, "content": "x"}], "has no role"),
            ([{"role": "root", "content": "x"}], "unknown role"),
            ([{"role": 7, "content": "x"}], "unknown role. Message 0: a number;"),
            ([{"role": "<|im_end|>", "content": "x"}], "unknown role"),
            ([{"role": "user"}], "no content"),
            ([{"role": "user", "content": None}], "no content"),
            ([{"role": "user", "content": 7}], "neither a text nor a list of parts. Message 0: a number"),
            ([{"role": "user", "content": [{"type": "image"}]}], "is an image, and edge-rt gives models text alone"),
            ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a.png"}}]}], "is an image"),
            ([{"role": "user", "content": [{"type": "input_audio"}]}], "is a sound"),
            ([{"role": "user", "content": [{"type": "text"}]}], "has no text. Message 0, part 0: its 'text' is null"),
            ([{"role": "user", "content": [{"text": "x"}]}], "is not text. Message 0, part 0: type null"),
            ([{"role": "user", "content": ["x"]}], "is no object. Message 0, part 0: a text"),
            ([{"role": "user", "content": "x", "extra": object()}], "plain data"),
            ([{"role": "user", "content": "x", "extra": {1: 2}}], "key that is not text"),
            ([{"role": "user", "content": "x", "extra": b"x"}], "plain data"),
        ],
    )
    def test_malformed_messages_are_refused(self, messages, message):
        template = ChatTemplate(SIMPLE, special_tokens=CHATML)
        with pytest.raises(ConfigError, match=message):
            template.render(messages)

    def test_deeply_nested_extras_are_refused(self):
        extra: list = []
        for _ in range(200):
            extra = [extra]
        with pytest.raises(ConfigError, match="nested too deeply"):
            render(SIMPLE, [{"role": "user", "content": "x", "extra": extra}])

    @pytest.mark.parametrize("content", ["hello <b> " * 1_000_000, "é" * 5_000_000, "<|im_end|>" * 100_000])
    def test_ten_megabytes_are_rendered_quickly(self, content):
        start = time.process_time()
        prompt = render(SIMPLE, [{"role": "user", "content": content}])
        assert time.process_time() - start < 1
        assert content in prompt.text

    def test_a_hundred_thousand_messages_are_refused_at_once(self):
        start = time.process_time()
        with pytest.raises(ConfigError, match="too many messages"):
            render(SIMPLE, USER * 100_000)
        assert time.process_time() - start < 1

    def test_the_most_messages_that_are_accepted_end_quickly(self):
        start = time.process_time()
        prompt = render(SIMPLE, USER * 16_384)
        assert time.process_time() - start < 3
        assert prompt.text.count("Hi") == 16_384


class TestFallbackAndLint:
    def test_chatml_is_the_named_fallback(self):
        template = ChatTemplate(None, special_tokens=CHATML)
        assert template.is_fallback
        assert DEFAULT_TEMPLATE_NAME == "chatml"
        assert template.render(USER).text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        assert lint(template) == [FALLBACK_WARNING]

    def test_a_template_of_the_model_is_no_fallback(self):
        assert not ChatTemplate(SIMPLE, special_tokens=CHATML).is_fallback

    def test_without_its_special_tokens_there_is_no_fallback(self):
        with pytest.raises(InvalidTemplate, match=r"no chat template.*chatml.*generate"):
            ChatTemplate(None, special_tokens=("</s>",))

    @pytest.mark.parametrize(
        ("source", "warnings"),
        [
            (SIMPLE, []),
            ("<|im_start|>{{ 'x' if add_generation_prompt }}", ["ignores"]),
            ("{{ messages[0].content }}", ["no generation prompt"]),
            ("{{ 'x' if add_generation_prompt }}{{ messages[0].content }}", ["only append"]),
            ("x", ["ignores", "no generation prompt"]),
            ("{{ raise_exception('never') }}", ["fails on a single user message"]),
        ],
    )
    def test_lint(self, source, warnings):
        found = lint(ChatTemplate(source, special_tokens=CHATML))
        assert len(found) == len(warnings)
        assert all(expected in warning for expected, warning in zip(warnings, found, strict=True))
