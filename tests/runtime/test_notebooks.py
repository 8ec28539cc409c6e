"""What notebooks show, through IPython's own display."""

from __future__ import annotations

import asyncio

import pytest

from tests.helpers.models import load_package
from tests.helpers.small import GREEDY


def test_a_stream_is_shown_in_one_output_while_it_is_written(small_package):
    shell_of = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell
    capture = pytest.importorskip("IPython.utils.capture").capture_output

    async def cell(model):
        shell = shell_of.instance()
        with capture() as captured:
            shell.display_formatter.format(model.stream("Hello", max_tokens=5, **GREEDY))
        return captured.outputs

    with load_package(small_package) as model:
        outputs = asyncio.run(cell(model))
        expected = model.generate("Hello", max_tokens=5, **GREEDY)
    assert outputs[-1].data["text/html"] == expected._repr_html_()
    assert len({output.transient["display_id"] for output in outputs}) == 1
    assert [output.update for output in outputs] == [False] + [True] * (len(outputs) - 1)
    assert len(outputs) > 2


def test_tags_in_a_result_are_text(small_package):
    from dataclasses import replace

    with load_package(small_package) as model:
        result = replace(model.generate("Hello", max_tokens=1, **GREEDY), text="<script>alert(1)</script>")
    assert "<script>" not in result._repr_html_()
    assert "&lt;script&gt;" in result._repr_html_()
