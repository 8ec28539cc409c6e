from __future__ import annotations

import json
import os
import re
import signal
import subprocess

import pexpect
import pytest

import edge_rt.cli.command_line as command_line_module
from edge_rt.cli.main import main
from edge_rt.cli.options.flags import DEFAULT_MODEL
from edge_rt.cli.options.typer_commands import PlainGroup
from edge_rt.store.recipes import DEFAULT_MODEL as STORE_DEFAULT
from edge_rt.version import VERSION
from tests.cli.conftest import ENDLESS, PROGRAM
from tests.helpers.clock import Told

HEAVY = ("numpy", "onnxruntime", "gguf", "onnx", "onnx_ir", "tokenizers", "jinja2", "huggingface_hub", "typer", "rich")


def test_help_is_quick_and_imports_nothing_heavy(cli, cli_env):
    code = (
        "import sys\nfrom edge_rt.cli.main import main\nassert main(['--help']) == 0\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    loaded = subprocess.run([PROGRAM[0], "-c", code], env=cli_env, capture_output=True, text=True)
    assert loaded.stderr.strip() == "[]"
    # In processor time, against libraries that draw such pages: seconds tell how fast and how busy the machine is.
    libraries = [PROGRAM[0], "-c", "import typer, typer.rich_utils, rich.table"]
    shown, imported = [], []
    for _ in range(3):
        shown.append(processor_time(lambda: cli("--help")))
        imported.append(processor_time(lambda: subprocess.run(libraries, env=cli_env, check=True)))
    assert 0 < min(shown) < min(imported)


def test_the_overview_says_what_typer_would_say_of_the_commands(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["--help"]) == 0
    ours = capsys.readouterr().out
    monkeypatch.setattr(command_line_module, "_Program", PlainGroup)
    with pytest.raises(SystemExit):
        command_line_module.command_line()(["--help"], prog_name="edge-rt")
    typers = capsys.readouterr().out
    assert words_of(ours) == words_of(typers)
    assert max(map(len, ours.splitlines())) == 100


def words_of(page: str) -> list[str]:
    return re.sub("[─│╭╮╰╯]", " ", page).split()


@pytest.mark.parametrize(("variable", "styles"), [("TERM", {"1;36", "2", "0"}), ("NO_COLOR", {"1", "2", "0"})])
def test_a_screen_gets_a_painted_overview(variable, styles, spawn):
    child = spawn("--help", env={variable: "xterm"})
    child.expect(pexpect.EOF)
    assert styles <= set(re.findall(r"\x1b\[([0-9;]*)m", child.before))
    assert ("1;36" in styles) is ("1;36m" in child.before)


def test_commands_begin_without_the_libraries_of_the_command_line(cli_env):
    lines = (("list",), ("generate", "-m", "absent", "-p", "x"), ("plan", "-m", "absent"))
    heavy = ("typer", "click", "pydantic", "rich", "prompt_toolkit", "huggingface_hub", "onnxruntime", "psutil")
    code = (
        f"import sys\nfrom edge_rt.cli.main import main\nfor line in {lines!r}:\n main(line)\n"
        f" print(line[0], [name for name in {heavy!r} if name in sys.modules], file=sys.stderr)"
    )
    loaded = subprocess.run([PROGRAM[0], "-c", code], env=cli_env, capture_output=True, text=True)
    assert {f"{line[0]} []" for line in lines} <= set(loaded.stderr.splitlines())


def processor_time(run) -> float:
    """Seconds of processor time of the processes that `run` starts and waits for."""
    before = os.times()
    assert run().returncode == 0
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def test_default_model_is_the_stores():
    assert DEFAULT_MODEL == STORE_DEFAULT


def test_version(cli):
    result = cli("--version")
    assert (result.returncode, result.stdout.decode()) == (0, f"edge-rt {VERSION}\n")


def test_without_a_verb_the_help_is_shown(cli):
    result = cli()
    assert result.returncode == 2
    assert result.stdout.count(b"Usage: edge-rt") == 1
    assert result.stderr.strip() == b""


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("genrate",), "'generate'"),
        (("generate", "--tempp", "1"), "--temp"),
        (("generate", "--ctx", "many"), "--ctx"),
        (("generate", "--threads", "0"), "--threads"),
        (("generate", "hello", "world"), "The prompt is one argument, in quotes"),
        (("chat", "org/name", "hello"), "'edge-rt generate -m MODEL PROMPT'"),
        (("run", "org/name"), "Did you mean 'edge-rt chat MODEL'"),
        (("help",), "Did you mean 'edge-rt --help'?"),
        (("export",), "--out"),
        (("list", "--store", ""), "the path is empty"),
        (("corpus", "info", ""), "the path is empty"),
    ],
)
def test_usage_errors(arguments, hint, capsys):
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("error: ")
    assert hint in output.err
    assert re.search(r"[.?] See 'edge-rt", output.err)


@pytest.mark.parametrize("flag", ["--json", "--json-lines"])
def test_a_usage_error_is_json_too(flag, capsys):
    assert main(["generate", flag, "--tempp", "1"]) == 2
    output = capsys.readouterr().out
    assert json.loads(output)["error"]["exit_code"] == 2
    assert (output.count("\n") == 1) is (flag == "--json-lines")


ERRORS = [
    (2, "ConfigError", ("generate", "-p", "x", "--temp", "nan", "-m", "{package}")),
    (2, "ConfigError", ("generate", "-p", "x", "--top-p", "0", "-m", "{package}")),
    (2, "ConfigError", ("generate", "-p", "x", "--ctx", str(2**40), "-m", "{package}")),
    (2, "ConfigError", ("generate", "-p", "x", "--threads", "1000000", "-m", "{package}")),
    (2, "ConfigError", ("generate", "-p", "x", "--logit-bias", "five", "-m", "{package}")),
    (2, "ConfigError", ("generate", "-p", "x", "-n", "0", "-m", "{package}")),
    (2, "ConfigError", ("generate", "-m", "{package}")),
    (2, "ConfigError", ("chat", "Hello there")),
    (2, "ConfigError", ("list", "--config", "absent.toml")),
    (3, "ModelNotFound", ("generate", "-p", "x", "-m", "no-such-model")),
    (3, "ModelNotFound", ("inspect", DEFAULT_MODEL)),
    (3, "ModelNotFound", ("rm", "absent", "--yes")),
    (3, "ContextOverflow", ("generate", "-p", "x", "-n", "100000", "-m", "{package}")),
    (5, "RuntimeUnavailable", ("generate", "-p", "x", "--device", "webgpu:99", "-m", "{package}")),
    (6, "StorageError", ("export", "-m", "{gguf}", "--out", "{package}")),
]


@pytest.mark.parametrize(("code", "kind", "arguments"), ERRORS)
def test_exit_codes(code, kind, arguments, inline, small_package, small_gguf, tmp_path):
    filled = [text.format(package=small_package, gguf=small_gguf) for text in arguments]
    result = inline(*filled, "--json", "--store", tmp_path / "store")
    document = json.loads(result.stdout)
    assert (result.returncode, document["error"]["type"], document["error"]["exit_code"]) == (code, kind, code)
    assert f"error: {document['error']['what']}" in result.stderr.decode()


def test_memory_budget_is_exit_code_4(cli_env, small_gguf, tmp_path):
    code = (
        "import edge_rt.export.estimate as e, sys\ne.available_memory_bytes = lambda: 1000\n"
        f"from edge_rt.cli.main import main\nsys.exit(main(['export', '-m', {str(small_gguf)!r}, '--out', 'out']))"
    )
    result = subprocess.run([PROGRAM[0], "-c", code], env=cli_env, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 4
    assert "1.0 KiB are available" in result.stderr
    assert not (tmp_path / "out").exists()


def test_an_unexpected_error_is_one_line_without_v(cli_env):
    code = (
        "import edge_rt.cli.options.groups as groups, sys\n"
        "def boom(*a): raise RuntimeError('odd')\n"
        "groups.PlaceFlags.open_store = boom\n"
        "from edge_rt.cli.main import main\nsys.exit(main(['list', '--json', *sys.argv[1:]]))"
    )
    plain = subprocess.run([PROGRAM[0], "-c", code], env=cli_env, capture_output=True, text=True)
    assert plain.returncode == 1
    assert plain.stderr.startswith("error: unexpected RuntimeError: odd")
    assert "Traceback" not in plain.stderr
    assert json.loads(plain.stdout)["error"]["exit_code"] == 1
    verbose = subprocess.run([PROGRAM[0], "-c", code, "-v"], env=cli_env, capture_output=True, text=True)
    assert "Traceback" in verbose.stderr


def test_without_onnxruntime_the_error_says_what_to_install(cli_env, small_package):
    code = "import sys; sys.modules['onnxruntime'] = None; from edge_rt.cli.main import main; sys.exit(main())"
    command = [PROGRAM[0], "-c", code]
    result = subprocess.run(
        [*command, "generate", "-m", small_package, "-p", "x"],
        env=cli_env,
        capture_output=True,
        stdin=subprocess.DEVNULL,
    )
    assert result.returncode == 5
    assert b"pip install 'onnxruntime>=" in result.stderr
    doctor = subprocess.run([*command, "doctor", "--json"], env=cli_env, capture_output=True)
    assert doctor.returncode == 5
    assert "ONNX Runtime is not installed." in json.loads(doctor.stdout)["problems"][0]


def test_without_onnxruntime_nothing_is_downloaded(cli_env, tmp_path):
    verbs = (("pull",), ("generate", "-p", "x", "-m"), ("export", "--out", "out", "-m"))
    code = (
        "import sys; sys.modules['onnxruntime'] = None\nfrom edge_rt.cli.main import main\n"
        f"for verb in {verbs!r}: print(main([*verb, 'nobody/nothing']), file=sys.stderr)"
    )
    command = [PROGRAM[0], "-c", code]
    done = subprocess.run(command, env=cli_env, cwd=tmp_path, capture_output=True, stdin=subprocess.DEVNULL, text=True)
    lines = done.stderr.splitlines()
    assert sum(line.startswith("error: ONNX Runtime is not installed.") for line in lines) == len(verbs), lines
    assert lines.count("5") == len(verbs)


def test_a_closed_stdout_is_quiet(start, slow_package):
    process = start("generate", "-m", slow_package, "-p", "hello", "-n", "4000", *ENDLESS)
    process.stdout.read(1)
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 141


def test_a_page_of_help_that_nobody_reads_is_quiet(start):
    process = start("generate", "--help")
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 141


# What an answer does with the third signal, test_notices tells.
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_signals_while_bench_measures(signum, code, start, slow_package):
    process = start("bench", "-m", slow_package, "-r", "100", "--json")
    process.stderr.readline()
    told = Told(process.pid)
    process.send_signal(signum)
    stdout, _ = process.communicate()
    told.must_be_done()
    assert process.returncode == code
    assert json.loads(stdout)["error"]["exit_code"] == code


def test_a_signal_among_json_lines_is_one_line(start, slow_package):
    process = start("generate", "-m", slow_package, "-p", "hello", "--json-lines", "-n", "5000", *ENDLESS)
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    stdout, _ = process.communicate()
    assert json.loads(stdout.splitlines()[-1])["error"]["exit_code"] == process.returncode == 143
