"""What notebooks show, through IPython's own display."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

import edge_rt
from edge_rt.system.notebooks import NotebookProgress, usual_progress
from edge_rt.system.progress import ProgressEvent, no_progress
from tests.helpers.models import load_package
from tests.helpers.packages import copied
from tests.helpers.small import GREEDY

EXAMPLE = Path(__file__).parents[2] / "examples" / "notebook.ipynb"


@pytest.fixture
def shell():
    """IPython's shell, without which nothing is displayed."""
    return pytest.importorskip("IPython.core.interactiveshell").InteractiveShell.instance()


def test_a_stream_is_shown_in_one_output_while_it_is_written(small_package, shell):
    capture = pytest.importorskip("IPython.utils.capture").capture_output

    async def cell(model):
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
    with load_package(small_package) as model:
        result = replace(model.generate("Hello", max_tokens=1, **GREEDY), text="<script>alert(1)</script>")
    assert "<script>" not in result._repr_html_()
    assert "&lt;script&gt;" in result._repr_html_()


def test_a_plan_and_a_measurement_are_tables_without_tags_of_others(small_package):
    plan = edge_rt.plan(small_package, memory="1GiB", ctx=64)
    shown = plan._repr_html_()
    assert shown.count("<tr>") == len(plan.terms) + 2
    assert plan.choice.in_words() in shown
    named = replace(plan, shape=replace(plan.shape, model=replace(plan.shape.model, name="<script>")))
    assert "<script>" not in named._repr_html_()
    with load_package(small_package, ctx=256) as model:
        report = edge_rt.bench(model, repetitions=1, prompt_sizes=(8,), generate=4, depth=4, row_counts=(1, 2))
    assert ">pp8<" in report._repr_html_()
    assert report._repr_html_().count("<tr>") == 2 + 1 + 2 + 1


@pytest.mark.usefixtures("shell")
def test_progress_is_one_output_that_moves_forward():
    capture = pytest.importorskip("IPython.utils.capture").capture_output
    events = [
        ProgressEvent("download", 1, 2, 0, 2000, message="<b>model.gguf</b>"),
        ProgressEvent("download", 1, 2, 1000, 2000),
        ProgressEvent("weights", 2, 2, 0, 10, "tensors"),
        ProgressEvent("weights", 2, 2, 10, 10, "tensors", "done"),
    ]
    with capture() as captured:
        progress = NotebookProgress()
        for event in events:
            progress(event)
    shown = [output.data["text/html"] for output in captured.outputs]
    assert len({output.transient["display_id"] for output in captured.outputs}) == 1
    assert "&lt;b&gt;model.gguf" in shown[0]
    assert "2/2 weights, 100 % (10 of 10)" in shown[-1]
    assert len(shown) == 3
    # Outside of a notebook nothing is shown.
    assert usual_progress() is no_progress


@pytest.mark.model
@pytest.mark.skipif(not (find_spec("nbclient") and find_spec("ipykernel")), reason="there are no notebooks here")
def test_the_example_runs_as_a_notebook(smollm2_native_package, small_gguf, tmp_path):
    """In a kernel of its own, with a store of its own, and then an export."""
    import nbclient
    import nbformat

    (tmp_path / "config" / "edge-rt").mkdir(parents=True)
    (tmp_path / "config" / "edge-rt" / "config.toml").write_text(f"store = {json.dumps(str(tmp_path / 'store'))}\n")
    packages = tmp_path / "store" / "packages"
    packages.mkdir(parents=True)
    copied(smollm2_native_package, packages).rename(packages / "smollm2-135m-instruct")
    notebook = nbformat.read(EXAMPLE, as_version=4)
    export = f"edge_rt.export_model({str(small_gguf)!r}, {str(tmp_path / 'out')!r}).quality"
    notebook.cells.append(nbformat.v4.new_code_cell(export))
    client = nbclient.NotebookClient(notebook, timeout=250, kernel_name="python3")
    client.execute(env={**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "config")})
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(output.output_type != "stream" for cell in code for output in cell.outputs), code
    _, plan, answer, result, texts, bench, _, exported = (cell.outputs[0].data if cell.outputs else {} for cell in code)
    assert "<table>" in plan["text/html"]
    assert "haiku" in answer["text/html"].lower()
    assert "Once" not in result["text/html"]
    assert texts["text/plain"].startswith("['")
    assert ">tg16<" in bench["text/html"]
    assert "<progress max=" in exported["text/html"]
