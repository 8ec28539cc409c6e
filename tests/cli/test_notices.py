"""The flags of speculation, the warnings that belong to them, and the trace."""

from __future__ import annotations

import io
import json
import signal
from pathlib import Path

import pytest

from edge_rt.cli.answering import TraceFile, open_trace
from edge_rt.cli.notices import NOT_SAVED, CalibrationNotices
from edge_rt.cli.options.groups import SpeculationFlags
from edge_rt.cli.render.console import Terminal
from edge_rt.errors import ConfigError, InputError, StorageError
from edge_rt.package.spec_modes import SPEC_MODES
from edge_rt.runtime.config import GenerationConfig
from edge_rt.runtime.speculation.corpus_build import build_corpus
from edge_rt.runtime.speculation.cost_model import CostStore, RowCosts
from edge_rt.system.machine import usable_cpus
from tests.cli.conftest import ENDLESS

GREEDY = ("--temp", "0", "-n", "24")
DRAFTERS = SPEC_MODES[2:5]


@pytest.fixture
def ask(inline, native_package):
    return lambda *arguments: inline("generate", "-m", native_package, "-p", "Hello", *GREEDY, *arguments)


@pytest.fixture
def ask_portable(inline, small_package):
    return lambda *arguments: inline("generate", "-m", small_package, "-p", "Hello", *GREEDY, *arguments)


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("The sea is wide.\nThe sea is deep.\n")
    return path


@pytest.mark.parametrize("mode", DRAFTERS)
def test_every_mode_drafts_and_gives_the_text_of_plain_decoding(mode, ask):
    plain, drafted = (json.loads(ask("--spec", spec, "--json").stdout) for spec in ("off", mode))
    assert (plain["spec"], drafted["spec"]["mode"]) == (None, mode)
    assert drafted["spec"]["steps"] > 0
    assert drafted["token_ids"] == plain["token_ids"]
    assert (plain["model"]["speculation"], drafted["model"]["speculation"]) == ("off", mode)


def test_auto_is_the_default_and_takes_a_reference(ask, text_file):
    plain = json.loads(ask("--spec", "off", "--json").stdout)
    for more in ((), ("--reference", text_file), ("--reference", text_file, "--spec", "reference")):
        result = ask("--json", *more)
        document = json.loads(result.stdout)
        assert document["spec"]["mode"] == ("reference" if "--spec" in more else "auto")
        assert document["token_ids"] == plain["token_ids"]
        assert result.stderr == b""


def test_draft_max_bounds_what_a_step_drafts(ask, tmp_path):
    trace = tmp_path / "trace.jsonl"
    result = ask("-n", "200", "--spec", "recycling", "--draft-max", "2", "--spec-trace", trace, "--json")
    drafted = [json.loads(line)["drafted"] for line in trace.read_text().splitlines()]
    assert set(drafted) <= {0, 1, 2}
    assert sum(drafted) == json.loads(result.stdout)["spec"]["rows_drafted"]


def test_the_ratio_rule(ask):
    plain = json.loads(ask("--spec", "off", "--json").stdout)
    ratio = ("--spec", "recycling", "--accept", "ratio", "--json")
    assert json.loads(ask(*ratio).stdout)["token_ids"] == plain["token_ids"]
    warm = ask(*ratio, "--temp", "1", "--seed", "1")
    assert (warm.returncode, json.loads(warm.stdout)["spec"]["mode"]) == (0, "recycling")
    assert warm.stderr == b""


def test_more_threads_than_cpus_are_warned_of(start, native_package):
    cpus = usable_cpus()
    _, said = start("generate", "-m", native_package, "-p", "Hello", *GREEDY, "-t", cpus + 5).communicate(timeout=60)
    assert f"{cpus + 5} threads share" in said.decode()
    assert f": -t {cpus} is faster." in said.decode()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--spec", "magic"), "The mode of speculation is unknown."),
        (("--draft-max", "0"), "The largest draft is out of range."),
        (("--draft-max", "1000"), "The largest draft is out of range."),
        (("--spec", "reference"), "--spec reference has nothing to copy from."),
        (("--spec", "ngram", "--reference", "x"), "--reference is not used with --spec ngram."),
        (("--spec", "recycling", "--corpus", "x"), "--corpus is not used with --spec recycling."),
        (("--spec", "off", "--draft-max", "4"), "--draft-max is not used with --spec off."),
        (("--accept", "both"), "The option 'accept' is out of range."),
        (("--accept", "ratio"), "The acceptance rule 'ratio' needs a drafter with known draft probabilities."),
        (("--spec", "off", "--spec-trace", "x"), "--spec-trace is not used with --spec off."),
    ],
)
@pytest.mark.parametrize("verb", ["generate", "chat"])
def test_flags_that_say_nothing_are_refused_before_a_model_is_looked_for(verb, arguments, said, inline):
    result = inline(verb, "-m", "no-such-model", *arguments, "--json", stdin=b"Hello")
    assert (result.returncode, json.loads(result.stdout)["error"]["what"]) == (2, said)


@pytest.mark.parametrize(
    ("content", "code", "kind"), [(None, 6, "StorageError"), (b"ab\xff", 3, "InputError")], ids=["missing", "binary"]
)
@pytest.mark.parametrize("verb", ["generate", "chat"])
def test_a_reference_that_cannot_be_read(verb, content, code, kind, inline, tmp_path):
    if content is not None:
        (tmp_path / "x").write_bytes(content)
    result = inline(verb, "-m", "no-such-model", "--reference", tmp_path / "x", "--json", stdin=b"Hello")
    assert (result.returncode, json.loads(result.stdout)["error"]["type"]) == (code, kind)


def test_a_reference_becomes_an_option(text_file, tmp_path):
    options = GenerationConfig(seed=1)
    assert SpeculationFlags().applied_to(options) is options
    assert SpeculationFlags(reference=text_file).applied_to(options).reference == text_file.read_text()
    (tmp_path / "large").write_bytes(b"x" * ((16 << 20) + 1))
    with pytest.raises(InputError, match=r"16\.0 MiB"):
        SpeculationFlags(reference=tmp_path / "large").applied_to(options)


def test_a_corpus_changes_no_token(ask, inline, native_package, text_file, tmp_path):
    plain = json.loads(ask("--spec", "off", "--json").stdout)
    text_file.write_text("Hello" + plain["text"])
    corpus = tmp_path / "corpus"
    assert inline("corpus", "build", text_file, "-m", native_package, "--out", corpus).returncode == 0
    for mode in ("auto", "suffix"):
        helped = json.loads(ask("--spec", mode, "--corpus", corpus, "--json").stdout)
        assert (helped["token_ids"], helped["spec"]["mode"]) == (plain["token_ids"], mode)


def test_a_corpus_that_is_none_or_not_the_models_is_an_error(ask, text_file, tmp_path):
    build_corpus([[1, 2, 3]], tmp_path / "other", vocab_size=4, tokenizer_sha256="0" * 64)
    for path, code in ((text_file, 3), (tmp_path / "missing", 6), (tmp_path / "other", 3)):
        assert ask("--corpus", path).returncode == code


# --- the portable op profile ---


def test_auto_is_silently_off_in_the_portable_profile(ask_portable):
    result = ask_portable("--json")
    assert (json.loads(result.stdout)["spec"], result.stderr) == (None, b"")


@pytest.mark.parametrize("mode", ["ngram", "suffix"])
def test_a_drafter_in_the_portable_profile_is_warned_about_once(mode, ask_portable):
    result = ask_portable("--json", "--spec", mode)
    assert json.loads(result.stdout)["spec"]["mode"] == mode
    told = result.stderr.decode()
    assert told.count("warning:") == 1
    assert f"with --spec {mode} the text may differ from plain decoding. Only chains are drafted." in told


def test_recycling_in_the_portable_profile_is_said_to_draft_nothing(ask_portable):
    result = ask_portable("--json", "--spec", "recycling")
    told = result.stderr.decode()
    assert json.loads(result.stdout)["spec"]["rows_drafted"] == 0
    assert told.count("warning:") == 1
    assert "warning: --spec recycling never drafts with this model" in told
    assert "differ" not in told


def test_what_auto_does_not_use_in_the_portable_profile_is_named(ask_portable, text_file, tmp_path):
    trace = tmp_path / "trace"
    told = ask_portable("--reference", text_file, "--draft-max", "4", "--spec-trace", trace).stderr.decode()
    expected = (
        "warning: speculation is off (auto, op profile portable): not used: --reference, --draft-max, --spec-trace.\n"
    )
    assert told == expected
    assert trace.read_text() == ""


# --- no answer waits for a measurement ---


def test_the_first_answer_measures_nothing(ask):
    assert (ask("--spec", "off").stderr, ask().stderr) == (b"", b"")


# --- the trace ---


def test_a_trace_has_every_step(ask, tmp_path):
    trace = tmp_path / "trace.jsonl"
    for _ in range(2):
        document = json.loads(ask("--json", "--spec-trace", trace).stdout)
        lines = [json.loads(line) for line in trace.read_text().splitlines()]
        assert len(lines) == document["spec"]["steps"]
        assert 1 + sum(line["emitted"] for line in lines) == document["usage"]["completion_tokens"]
        assert lines[0]["position"] == document["usage"]["prompt_tokens"] + 1


def test_a_trace_goes_on_when_the_model_changes(inline, native_package, tmp_path):
    trace = tmp_path / "trace.jsonl"
    arguments = ("chat", "-m", native_package, *GREEDY, "--spec-trace", trace, "--json")
    document = json.loads(inline(*arguments, stdin=b"one\n/ctx 256\ntwo\n").stdout)
    steps = [turn["spec"]["steps"] for turn in document["turns"]]
    assert len(steps) == 2
    assert len(trace.read_text().splitlines()) == sum(steps)


def test_a_trace_replaces_no_other_file(ask, text_file, tmp_path):
    before = text_file.read_text()
    for path, code in ((text_file, 2), (tmp_path / "missing" / "trace", 6), (tmp_path, 6)):
        assert ask("--spec-trace", path).returncode == code
    assert text_file.read_text() == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_costs_the_trace_and_not_the_answer(ask):
    result = ask("--spec-trace", "/dev/full", "-q")
    assert result.returncode == 0
    assert result.stdout.decode().strip()
    assert result.stderr.decode() == "warning: the trace is not complete: /dev/full: No space left on device\n"


def test_a_stopped_answer_leaves_whole_lines(start, slow_package, tmp_path):
    trace = tmp_path / "trace.jsonl"
    arguments = ("--json-lines", "--spec", "recycling", "--spec-trace", trace, "-c", "512", *ENDLESS)
    process = start("generate", "-m", slow_package, "-p", "Hello", *arguments)
    for _ in range(5):
        assert process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 143
    text = trace.read_text()
    assert text.endswith("\n")
    assert len([json.loads(line)["position"] for line in text.splitlines()]) >= 3


class TestTraceFile:
    def test_decisions_are_on_disk_at_once(self, tmp_path):
        trace = TraceFile((tmp_path / "x").open("w"))
        trace.write({"position": 1})
        assert (tmp_path / "x").read_text() == '{"position": 1}\n'
        trace.close()

    def test_what_comes_after_the_end_is_dropped(self, tmp_path):
        trace = TraceFile((tmp_path / "x").open("w"))
        trace.close()
        trace.write({"position": 1})
        trace.close()
        assert (tmp_path / "x").read_text() == ""
        assert trace.error is None

    @pytest.mark.parametrize("content", [b"", b'{"position": 4, "arm": "off"}\n{"pos'])
    def test_an_empty_file_and_an_earlier_trace_are_replaced(self, content, tmp_path):
        (tmp_path / "x").write_bytes(content)
        with open_trace(tmp_path / "x", Terminal(io.StringIO(), io.StringIO())) as write:
            write({"position": 1})
        assert (tmp_path / "x").read_text() == '{"position": 1}\n'

    @pytest.mark.parametrize("content", [b"\xff\xfe", b"[1]\n", b"12\n", b'{"name": "x"}\n', b"[" * 100_000])
    def test_other_files_are_kept(self, content, tmp_path):
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(ConfigError), open_trace(tmp_path / "x", Terminal(io.StringIO(), io.StringIO())):
            pass
        assert (tmp_path / "x").read_bytes() == content

    def test_an_error_in_between_closes_it(self, tmp_path):
        opened = []

        def fail():
            with open_trace(tmp_path / "x", Terminal(io.StringIO(), io.StringIO())) as write:
                opened.append(write)
                write({"position": 1})
                raise StorageError("no")

        with pytest.raises(StorageError, match="no"):
            fail()
        opened[0]({"position": 2})
        assert (tmp_path / "x").read_text() == '{"position": 1}\n'


@pytest.mark.parametrize("verb", ["generate", "chat"])
def test_help_names_the_flags(verb, inline):
    told = inline(verb, "--help").stdout.decode()
    assert all(flag in told for flag in ("--spec", "--draft-max", "--reference", "--corpus", "--spec-trace"))


def test_a_measurement_that_no_file_takes_is_told_once(tmp_path):
    costs, key = RowCosts((1, 8), (64,), ((2.0, 3.0),)), {"package_id": "x"}
    (tmp_path / "file").write_text("")
    notices = CalibrationNotices(Terminal(io.StringIO(), err := io.StringIO()))
    kept, lost = (CostStore(tmp_path / name, notices.lost) for name in ("folder", "file"))
    # What an answer teaches by the way: nobody has waited for it.
    assert not lost.save(key, costs)
    notices.measuring("exits")
    assert kept.save(key, costs)
    assert NOT_SAVED not in err.getvalue()
    assert not lost.save(key, costs)
    assert not lost.save(key, costs)
    assert err.getvalue().count(f"warning: {NOT_SAVED}") == 1
