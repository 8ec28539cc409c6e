"""The process that traces a model, with scripts in its place."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from edge_rt.errors import InvalidPackage, RuntimeUnavailable, UnsupportedModel, VersionMismatch
from edge_rt.export.traced.tracing import NEEDED, chatter, require_tracer, run_worker, worker_command
from tests.helpers.traced_factory import TracedModel, numbers

INSTALLED = {"torch": "2.13.0+cpu", "transformers": "5.23.0", "onnxscript": "0.7.2"}


def run(tmp_path, script):
    out = tmp_path / "out"
    out.mkdir()
    return run_worker(tmp_path / "small", out, command=[sys.executable, "-c", script, str(out)])


def answering(answer):
    return f"import sys, pathlib; pathlib.Path(sys.argv[1], 'answer.json').write_text({json.dumps(answer)!r})"


def test_everything_is_installed():
    require_tracer(INSTALLED.get)


@pytest.mark.parametrize("name", NEEDED)
def test_what_is_missing_is_named_with_the_command_that_installs_it(name):
    with pytest.raises(RuntimeUnavailable, match=f"Missing: {name}") as caught:
        require_tracer((INSTALLED | {name: None}).get)
    assert "'transformers>=5.23'" in caught.value.action


@pytest.mark.parametrize(("name", "old"), [("transformers", "5.9.1"), ("torch", "2.10.0"), ("onnxscript", "0.6.9")])
def test_what_is_too_old_is_named(name, old):
    with pytest.raises(VersionMismatch, match=f"{name} {old}"):
        require_tracer((INSTALLED | {name: old}).get)


def test_an_answer_is_read(tmp_path):
    model = numbers(TracedModel())
    answer = {"exporter": "a tracer", "token_ids": [1, 2], "model": vars(model)}
    script = answering(answer) + "; import numpy; numpy.save(sys.argv[1] + '/logits.npy', numpy.eye(2, dtype='f4'))"
    trace = run(tmp_path, script)
    assert (trace.exporter, trace.numbers, trace.token_ids) == ("a tracer", model, (1, 2))
    np.testing.assert_array_equal(trace.logits, np.eye(2))
    assert trace.graph.parent == tmp_path / "out"


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        ({"refused": ["keeps a state.", "It is Mamba."]}, UnsupportedModel, r"small keeps a state\. It is Mamba\."),
        ({"missing": "No module named 'torch'"}, RuntimeUnavailable, r"No module named 'torch'\."),
        ({"failed": "UserError: a guard"}, UnsupportedModel, r"could not trace the model\. UserError: a guard\."),
        ({"exporter": "a tracer"}, InvalidPackage, "is malformed"),
        ({"exporter": "a tracer", "token_ids": [], "model": {"layers": 3}}, InvalidPackage, "is malformed"),
    ],
)
def test_answers_become_errors(tmp_path, answer, kind, text):
    with pytest.raises(kind, match=text):
        run(tmp_path, answering(answer))


def test_what_a_dying_worker_printed_last_is_told(tmp_path):
    with pytest.raises(InvalidPackage, match=r"Exit code 7\. Its last output: no room left"):
        run(tmp_path, "print('no room left'); raise SystemExit(7)")


def test_the_libraries_print_into_a_file(tmp_path, capfd):
    with pytest.raises(InvalidPackage):
        run(tmp_path, "import sys; print('progress'); print('warning', file=sys.stderr)")
    assert capfd.readouterr() == ("", "")
    assert set((tmp_path / "out" / "chatter.txt").read_text().split()) == {"progress", "warning"}


def test_what_they_printed_can_be_read(tmp_path):
    (tmp_path / "chatter.txt").write_bytes(b"a warning\xff")
    assert chatter(tmp_path) == "a warning\ufffd"
    assert chatter(tmp_path / "none") == ""


def test_the_worker_itself_says_that_a_folder_cannot_be_read_or_what_is_missing(tmp_path):
    (tmp_path / "small").mkdir()
    (tmp_path / "out").mkdir()
    with pytest.raises((UnsupportedModel, RuntimeUnavailable)):
        run_worker(tmp_path / "small", tmp_path / "out", command=worker_command(tmp_path / "small", tmp_path / "out"))
