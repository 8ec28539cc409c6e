"""Hostile chat templates: none gets out of the sandbox, and each ends in time, within its memory."""

from __future__ import annotations

import time
import tracemalloc
from contextlib import suppress

import pytest

from edge_rt.errors import InvalidTemplate
from edge_rt.text.template import ChatTemplate
from tests.helpers.hostile_templates import hostile_templates

SPECIAL_TOKENS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
USER = [{"role": "user", "content": "Hi"}]
NS = "{% set n = namespace(a='xxxxxxxx', l=[1], t=(1, 2), d={}) %}"
OFTEN = "{% for i in range(100000) %}"
LONG = f"{{% set a = {'a' * 1000!r} * 4000 %}}{{% set b = {'b' * 1000!r} * 2000 %}}"
COPIES = "(([none] * 1000) | map('default', a, true))"
ESCAPES = {
    "__class__": "{{ ''.__class__.__mro__ }}",
    "item": "{{ ''['__class__'] }}",
    "attr filter": "{{ '' | attr('__class__') }}",
    "map attribute": "{{ messages | map(attribute='__class__') | list }}",
    "format method": "{{ '{0.__class__}'.format(1) }}",
    "format method by map": "{{ ['{0.__class__}'] | map('format', 1) | list }}",
    "format method without call": "{% set f = '{0.__class__}'.format %}{{ f(1) }}",
    "format_map": "{{ '{x}'.format_map({}) }}",
    "template reference": "{{ self._TemplateReference__context }}",
    "self": "{{ self }}",
    "cycler": "{{ cycler.__init__.__globals__ }}",
    "namespace": NS + "{{ n.__init__ }}",
    "namespace item": NS + "{{ n['__init__'] }}",
    "private assignment": NS + "{% set n.__class__ = 1 %}",
    "macro": "{% macro m() %}{% endmacro %}{{ m._func }}",
    "loop": "{% for x in [1] %}{{ loop._iterable }}{% endfor %}",
    "include": "{% include 'x' %}",
    "import": "{% import 'x' as y %}",
    "extends": "{% extends 'x' %}",
    "block": "{% block x %}{% endblock %}",
    "call of data": "{{ messages() }}",
    "changes the messages": "{{ messages.append(1) }}",
    "hidden filter": "{{ messages | map('edge:loop') | list }}",
    "prints a macro": "{% macro m() %}{% endmacro %}{{ [m] }}",
}
BOMBS = {
    "50 MB of x": "{{ 'x' * 50000000 }}",
    "10^9 x": "{{ 'x' * 10**9 }}",
    "10^9 x, assigned": "{% set a = 'x' * 10**9 %}",
    "10^9 x, reversed": "{{ 10**9 * 'x' }}",
    "list times": "{{ [1] * 10**9 }}",
    "recursive macro": "{% macro m(n) %}{{ m(n) }}{% endmacro %}{{ m(1) }}",
    "recursive loop": "{% for x in [1] recursive %}{{ loop([1, 1]) }}{% endfor %}",
    "doubling by ~": NS + OFTEN + "{% set n.a = n.a ~ n.a %}{% endfor %}",
    "doubling by +": NS + OFTEN + "{% set n.a = n.a + n.a %}{% endfor %}",
    "doubling by set": NS + OFTEN + "{% set b %}{{ n.a }}{{ n.a }}{% endset %}{% set n.a = b %}{% endfor %}",
    "doubling by replace": NS + OFTEN + "{% set n.a = n.a.replace('x', 'xx') %}{% endfor %}",
    "doubling by join": NS + OFTEN + "{% set n.a = [n.a, n.a] | join %}{% endfor %}",
    "doubling a list": NS + OFTEN + "{% set n.l = n.l + n.l %}{% endfor %}",
    "lists that share": NS + OFTEN + "{% set n.l = [n.l, n.l] %}{% endfor %}{{ n.l }}",
    "tuples that share": NS + OFTEN + "{% set n.t = (n.t, n.t) %}{% endfor %}{{ {n.t: 1} }}",
    "dicts that share": NS + OFTEN + "{% set n.d = {'a': n.d, 'b': n.d} %}{% endfor %}{{ n.d | tojson }}",
    "varargs that share": "{% macro m(k) %}{{ m(k - 1, varargs, varargs) if k else varargs }}{% endmacro %}{{ m(40) }}",
    "growing list": NS + OFTEN + "{% set n.l = n.l + ['x' * i] %}{% endfor %}",
    "much output": OFTEN + "{{ messages[0] }}" * 20 + "{% endfor %}",
    "much literal output": OFTEN + "y" * 5000 + "{% endfor %}",
    "much output in a macro": "{% macro m() %}" + OFTEN + "y" * 5000 + "{% endfor %}{% endmacro %}{% set x = m() %}",
    "replace": "{{ ('x' * 1000000) | replace('x', 'y' * 1000000) }}",
    "replace of nothing": "{{ ('x' * 1000000) | replace('', 'y' * 1000000) }}",
    "join": "{{ range(100000) | join('y' * 1000000) }}",
    "join method": "{{ ('y' * 1000000).join('x' * 1000000) }}",
    "center": "{{ 'x' | center(1000000000) }}",
    "ljust": "{{ 'x'.ljust(1000000000) }}",
    "zfill": "{{ '1'.zfill(1000000000) }}",
    "format width": "{{ '%1000000000d' % 1 }}",
    "indent": "{{ ('\\n' * 1000000) | indent(1000000) }}",
    "wordwrap": "{{ ('a ' * 1000000) | wordwrap(1) }}",
    "batch": "{{ [1] | batch(1000000000, 'x') | list }}",
    "tojson indent": "{{ [[[1]]] | tojson(indent=1000000000) }}",
    "tojson escapes": "{{ ('\u7fff' * 4000000) | tojson(ensure_ascii=true) }}",
    "power": "{{ 10 ** 10000000 }}",
    "power tower": "{{ 2 ** 2 ** 2 ** 2 ** 2 ** 2 }}",
    "squaring": NS + "{% set n.a = 3 %}" + OFTEN + "{% set n.a = n.a * n.a %}{% endfor %}",
    "range": "{{ range(1000000000) | list }}",
    "characters": "{{ ('x' * 4000000) | list | length }}",
    "sorted characters": "{{ ('x' * 4000000) | sort | length }}",
    "split": "{{ ('x ' * 2000000).split() | length }}",
    "split at": "{{ ('xy' * 2000000).split('y') | length }}",
    "date format": "{{ strftime_now('%A' * 1000000) }}",
    "many generators": NS + "{% for i in range(5000) %}{% set n.l = n.l | map('upper') %}{% endfor %}{{ n.l | list }}",
    "precision": "{{ 1 | round(-1000000000) }}",
    "precision, rounded up": "{{ 1 | round(1000000000, 'ceil') }}",
    "precision by map": "{{ [1] | map('round', -1000000000) | list }}",
    "rounded list": "{{ [1] | round(9, 'floor') }}",
    "format by a test": "{{ '%1000000000d' is even }}",
    "format by another test": "{{ '%*d' is divisibleby((1000000000, 1)) }}",
    "characters to strip": LONG + "{{ a | trim(b ~ 'a') }}",
    "many characters to strip": LONG + "{{ a.strip(range(100000) | join('\u4e2d')) }}",
    "slow search from the end": LONG + "{{ a.rfind('ab' ~ a[:2000000]) }}",
    "slow split from the end": LONG + "{{ a.rsplit(sep='ab' ~ a[:2000000]) }}",
    "slow partition from the end": LONG + "{{ a.rpartition('ab' ~ a[:2000000]) }}",
    "sorted copies": LONG + "{{ " + COPIES + " | sort | length }}",
    "different copies": LONG + "{{ " + COPIES + " | unique | list }}",
    "greatest copy": LONG + "{{ " + COPIES + " | max | length }}",
    "greatest character": LONG + "{{ a | max }}",
    "lower copies": LONG + "{{ (" + COPIES + " | list) is lower }}",
    "refusal made of copies": LONG + "{{ raise_exception(" + COPIES + " | list) }}",
    "name made of copies": LONG + "{{ 1[" + COPIES + " | list].x }}",
    "long attribute": "{{ [1] | map(attribute=('a.' * 100000)) | list }}",
    "many attributes": "{{ [1] | sort(attribute=('a,' * 100000)) }}",
    "large numbers": "{{ [2 ** 1000 * 2 ** 1000 * 2 ** 1000] * 40000 }}",
    "large literal number": "{{ 0x" + "f" * 3000 + " // 3 }}",
    "copied namespaces": NS
    + "{% set d = dict(range(10, 100) | map('string')) %}"
    + OFTEN
    + "{% set n.a = namespace(d, p=n.a) %}{% endfor %}",
    "long dates": NS + OFTEN + "{% set n.a = namespace(p=n.a, t=strftime_now('%999d' * 51)) %}{% endfor %}",
    "pairs that are long": "{{ dict([('\u4e2d' ~ messages[0].content) * 1000000]) }}",
    "spread characters": "{{ range(*(('\u4e2d' ~ messages[0].content) * 1000000)) }}",
    "spread characters for a filter": "{{ 1 | default(*(('\u4e2d' ~ messages[0].content) * 1000000)) }}",
    "length of a loop over characters": LONG + "{% for c in a %}{{ loop.length }}{% endfor %}",
}
# Long sources, and loops that keep nothing: their memory needs no look.
ONLY_TIME = {
    "deep comparisons": "{% set l = [[1] * 40000] * 2 %}{% set m = [[1] * 40000] * 2 %}"
    + OFTEN
    + "{% if l == m %}{% endif %}{% endfor %}",
    "changed lists": "{% set l = [[1] * 40000] * 2 %}{% set m = [[1] * 40000] * 2 %}"
    + OFTEN
    + "{% if loop.changed(l if i % 2 else m) %}{% endif %}{% endfor %}",
    "keys that are long": "{% set t = (1,) * 40000 %}{% set d = {} %}" + OFTEN + "{% set x = d[t] %}{% endfor %}",
    "no format of much text": LONG + OFTEN + "{% set x = a | format %}{% endfor %}",
    "selected characters": LONG + "{{ a | reject | list }}",
    "exponential macro": "{% macro f(n) %}{{ f(n - 1) ~ f(n - 1) if n > 0 }}{% endmacro %}{{ f(40) }}",
    "slow search": "{% set a = 'a' * 4000000 %}{% set b = 'a' * 98 ~ 'b' %}"
    + OFTEN
    + "{% if b in a %}{% endif %}{% endfor %}",
    "nested loops over one range": "{% set r = range(100000) %}" + "{% for i in r %}" * 3 + "{% endfor %}" * 3,
    "many nested ranges": "{% for i in range(1000) %}" * 6 + "{% endfor %}" * 6,
    "nested ranges": OFTEN + "{% for j in range(100000) %}{% endfor %}{% endfor %}",
    "parentheses": "{{ " + "(" * 30_000 + "1" + ")" * 30_000 + " }}",
    "ifs": "{% if 1 %}" * 3_000 + "{% endif %}" * 3_000,
    "elifs": "{% if 0 %}" + "{% elif 1 %}" * 4_000 + "{% endif %}",
    "additions": "{{ 1" + "+1" * 20_000 + " }}",
    "prints": "{{a}}" * 13_000,
    "braces": "{{" * 32_000,
    "a long list": "{{ [" + "1," * 30_000 + "] }}",
    "filters": "{{ 1" + "|abs" * 15_000 + " }}",
    "digits": "{{ " + "9" * 60_000 + " }}",
    "64 KiB": "x" * 65_537,
}

MOST_SECONDS = 5.0
"""Of CPU time; a rendering stops after less than a tenth of that."""


def attempt(source):
    return ChatTemplate(source, special_tokens=SPECIAL_TOKENS).render(USER)


class TestHostileTemplates:
    @pytest.mark.parametrize("name", ESCAPES)
    def test_nothing_leads_out_of_the_sandbox(self, name):
        with pytest.raises(InvalidTemplate):
            attempt(ESCAPES[name])

    @pytest.mark.parametrize("name", [*BOMBS, *ONLY_TIME])
    def test_work_without_end_is_stopped(self, name):
        start = time.process_time()
        with pytest.raises(InvalidTemplate):
            attempt((BOMBS | ONLY_TIME)[name])
        assert time.process_time() - start < MOST_SECONDS

    @pytest.mark.parametrize("name", BOMBS)
    def test_work_without_end_stays_within_64_mib(self, name):
        # Apart from the time, because tracing makes it several times slower.
        tracemalloc.start()
        try:
            with pytest.raises(InvalidTemplate):
                attempt(BOMBS[name])
            assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
        finally:
            tracemalloc.stop()

    def test_templates_made_at_random_end(self):
        # ``python -m tests.attack_templates --hostile 300`` tries more, in processes that can be stopped.
        for _, source in hostile_templates(seed=2, number=24):
            start = time.process_time()
            with suppress(InvalidTemplate):
                attempt(source)
            assert time.process_time() - start < MOST_SECONDS, source

    def test_a_text_is_cut_at_many_places_in_time(self):
        start = time.process_time()
        assert attempt("{{ (([messages[0].content] * 20000) | join('x')).split('x') | length }}").text == "20000"
        assert time.process_time() - start < MOST_SECONDS

    def test_a_template_that_takes_too_long_is_not_tried_in_other_forms(self):
        endless = "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}"
        parts = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
        best = {}
        for _ in range(3):
            for form, messages in (("the only one", USER), ("several", parts)):
                start = time.process_time()
                with pytest.raises(InvalidTemplate, match="too"):
                    ChatTemplate(endless, special_tokens=SPECIAL_TOKENS).render(messages)
                best[form] = min(best.get(form, 60.0), time.process_time() - start)
        assert best["several"] < 1.6 * best["the only one"]

    def test_a_template_that_failed_can_be_used_again(self):
        template = ChatTemplate("{{ 'x' * messages[0].content | int }}", special_tokens=SPECIAL_TOKENS)
        with pytest.raises(InvalidTemplate):
            template.render([{"role": "user", "content": "50000000"}])
        assert template.render([{"role": "user", "content": "3"}]).text == "xxx"

    @pytest.mark.parametrize(
        ("source", "message"),
        [
            ("a\n{% if %}", "not valid. Line 2"),
            ("a\n\n{{ x | attr('y') }}", "filter 'attr', which is not allowed. Line 3"),
            ("{{ x is callable }}", "test 'callable', which is not allowed. Line 1"),
            ("{{ 'x'.encode() }}", "method 'encode', which is not allowed. Line 1"),
            ("{% endfor %}", "not valid. Line 1"),
            ("{{ messages[0].nothing.more }}", "does not exist"),
            ("{{ 1 + 'a' }}", "fails on these messages. TypeError"),
            ("{{ 1 // 0 }}", "fails on these messages. ZeroDivisionError"),
            ("{{ raise_exception('say \\\"please\\\"\x1b[31m') }}", "'say \"please\"\\x1b[31m'"),
        ],
    )
    def test_errors_say_what_and_where(self, source, message):
        with pytest.raises(InvalidTemplate) as caught:
            attempt(source)
        assert message in str(caught.value)
