from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edge_rt.cli.render.plots import draw_speculation as draw, require_plot
from edge_rt.cli.render.progress import STATUS_LINE_SECONDS as LINE_SECONDS, StatusLine
from edge_rt.errors import ConfigError, StorageError
from edge_rt.package.reader import open_package

FIGURES = [
    "prompts", "tokens", "speedup", "speedup_interval", "speedup_mean", "speedup_with_prefill", "tokens_per_step",
    "acceptance", "accepted_per_position", "tok_s", "tok_s_plain", "drafting_share", "repetition",
]  # fmt: skip


@pytest.fixture
def prompts(tmp_path):
    lines = [("a", "the sea was calm"), ("b", "count from one to ten"), ("a", "they came to an island")]
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps({"turns": [text, "x"], "category": name}) for name, text in lines))
    return path


@pytest.fixture
def bench(inline, native_package, prompts):
    return lambda *more: inline("bench", "-m", native_package, "--prompts", prompts, "--max-tokens", "24", *more)


def test_the_document_has_all_figures(bench):
    result = bench("--spec", "recycling", "--json")
    document = json.loads(result.stdout)
    assert result.returncode == 0
    extra = ["by_category", "least_repetitive_half", "left_out", "spec", "tables", "max_tokens", "temperature"]
    assert list(document)[: len(FIGURES) + len(extra)] == FIGURES + extra
    assert (document["prompts"], document["tokens"], document["left_out"]) == (3, 72, [])
    assert (document["spec"], document["tables"], document["temperature"]) == ("recycling", "warm", 0.0)
    assert document["model"]["op_profile"] == "native"
    low, high = document["speedup_interval"]
    assert 0 < low <= high
    assert document["tokens_per_step"] >= 1
    assert {name: group["prompts"] for name, group in document["by_category"].items()} == {"a": 2, "b": 1}
    for group in (*document["by_category"].values(), document["least_repetitive_half"]):
        assert list(group) == FIGURES


def test_the_table_says_what_was_measured(bench, tmp_path):
    picture = tmp_path / "out.png"
    result = bench("--spec", "ngram", "--cold", "--temp", "0.7", "--seed", "4", "--limit", "2", "--plot", picture)
    lines = result.stdout.decode().splitlines()
    assert result.returncode == 0
    assert [line.split("|")[1].strip() for line in lines[:5:2]] == ["prompts of", "all", "b"]
    assert [len(cell.strip(" ")) >= 2 for cell in lines[1].strip("|").split("|")] == [True] * 10
    assert any(line.startswith("speculation ngram, temperature 0.7, tables cold;") for line in lines)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert b"2/2 prompts" in result.stderr


def test_plain_against_plain(bench):
    document = json.loads(bench("--spec", "off", "--limit", "2", "--json").stdout)
    assert (document["tokens_per_step"], document["acceptance"], document["drafting_share"]) == (1.0, None, 0.0)
    told = bench("--spec", "off", "--limit", "2")
    assert "\nplain against plain, greedy, tables warm;" in told.stdout.decode()
    assert b"warning" not in told.stderr


def test_auto_is_said_to_be_off_in_the_portable_profile(inline, small_package, prompts):
    arguments = ("bench", "-m", small_package, "--prompts", prompts, "-n", "4", "--limit", "1")
    result = inline(*arguments, "--draft-max", "4")
    assert "\nplain against plain (speculation auto is off), greedy" in result.stdout.decode()
    assert b"warning: speculation is off (auto, op profile portable)" in result.stderr
    assert b"Not used: --draft-max.\n" in result.stderr
    drafting = inline(*arguments, "--spec", "ngram", "--json")
    assert json.loads(drafting.stdout)["spec_in_force"] == "ngram"
    assert b"warning: the op profile of this model is portable" in drafting.stderr
    idle = inline(*arguments, "--spec", "recycling", "--json")
    assert b"warning: --spec recycling never drafts with this model" in idle.stderr


@pytest.mark.parametrize(("count", "said"), [(6, True), (7, False)])
def test_a_half_of_few_prompts_is_no_figure_to_go_by(count, said, bench, prompts):
    prompts.write_text("word\n" * count)
    told = bench("-n", "2").stdout.decode()
    assert ("the least repetitive half has only 3 prompts: too few to rely on" in told) is said


def test_the_picture_is_titled_with_the_package(inline, native_package, prompts, tmp_path):
    picture = tmp_path / "out.svg"
    arguments = ("--prompts", prompts, "--limit", "1", "-n", "4", "--spec", "off", "--plot", picture)
    assert inline("bench", "-m", native_package, *arguments).returncode == 0
    title = f"{native_package.name}, native, cache {open_package(native_package).manifest.kv_formats[0]}"
    assert title in picture.read_text()


def test_long_prompts_are_left_out_and_told(bench, prompts):
    prompts.write_text("short\n" + "word " * 600)
    result = bench("--json")
    document = json.loads(result.stdout)
    assert (result.returncode, document["prompts"]) == (0, 1)
    assert [item["prompt"] for item in document["left_out"]] == [1]
    assert b"warning: 1 left out, too long for the context: 1" in result.stderr
    prompts.write_text("word " * 600)
    assert bench().returncode == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--prompts", "x", "--tg", "5"), "--prompts does not work with --tg."),
        (("--prompts", "x", "--calibrate"), "--prompts does not work with --calibrate."),
        (("--calibrate", "-r", "2", "--cold"), "--calibrate does not work with --repetitions, --cold."),
        (("--spec", "auto", "--plot", "x.png"), "There are no prompts for --spec, --plot."),
        (("--raw",), "--prompts is missing"),
        (("--prompts", "x", "--spec", "magic"), "mode of speculation is unknown"),
        (("--prompts", "x", "--spec", "ngram", "--corpus", "y"), "--corpus is not used"),
        (("--prompts", "x", "--spec", "off", "--draft-max", "4"), "--draft-max is not used"),
        (("--prompts", "x", "--temp", "-3"), "'temperature'"),
        (("--prompts", "x", "--plot", "picture.doc"), "cannot be a plot"),
    ],
)
def test_options_that_would_be_dropped_are_refused(arguments, said, inline):
    result = inline("bench", "-m", "nothing-here", *arguments)
    assert result.returncode == 2
    assert said in result.stderr.decode()


def test_calibrate_measures_and_keeps(inline, native_package, cli_env):
    result = inline("bench", "-m", native_package, "--calibrate", "--json")
    costs = json.loads(result.stdout)["row_costs"]
    assert costs["rows"][0] == 1
    assert all(ms > 0 for line in costs["ms"] for ms in line)
    (stored,) = Path(cli_env["XDG_CACHE_HOME"]).glob("edge-rt/row-costs/*.json")
    assert [entry["ms"] for entry in json.loads(stored.read_text())["entries"]] == [costs["ms"]]
    table = inline("bench", "-m", native_package, "--calibrate").stdout.decode().splitlines()
    assert table[0].split("|")[1].strip() == "rows of one pass"
    assert len(table) == 2 + len(costs["rows"])
    names = [cell.strip() for cell in table[0].strip("|").split("|")][1:]
    assert names == [name for depth in costs["depths"] for name in (f"ms @ {depth}", f"relative @ {depth}")]
    assert table[2].count("1.00x") == len(costs["depths"])


def test_costs_that_the_disk_does_not_take_are_told(inline, native_package, cli_env):
    kept = inline("bench", "-m", native_package, "--calibrate", "--json")
    assert json.loads(kept.stdout)["is_kept"]
    assert b"could not be saved" not in kept.stderr
    folder = Path(cli_env["XDG_CACHE_HOME"]) / "edge-rt"
    shutil.rmtree(folder)
    folder.write_text("a file where the folder should be")
    lost = inline("bench", "-m", native_package, "--calibrate", "--json")
    assert (lost.returncode, json.loads(lost.stdout)["is_kept"]) == (0, False)
    assert b"warning: the measurement could not be saved" in lost.stderr


def test_signals_stop_it(start, slow_package, prompts):
    process = start("bench", "-m", slow_package, "--prompts", prompts, "--max-tokens", "400", "--json")
    assert b"warning: speculation is off" in process.stderr.readline()
    assert process.stderr.readline() == b"1/3 prompts\n"
    process.send_signal(signal.SIGTERM)
    stdout, _ = process.communicate()
    assert process.returncode == 143
    assert json.loads(stdout)["error"]["exit_code"] == 143


# --- the picture ---


def group(speedup, interval, prompts=4):
    return {"speedup": speedup, "speedup_interval": interval, "prompts": prompts}


@pytest.mark.parametrize("accepted", [[], [0.7, 0.5, 0.2], [0.9 - 0.03 * n for n in range(23)]])
@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_pictures_of_all_sorts(accepted, suffix, tmp_path):
    document = {
        **group(2.5, [2.2, 2.9], 12),
        "accepted_per_position": accepted,
        "by_category": {
            "writing": group(0.7, [0.5, 0.9]),
            "qa": group(3.5, None, 1),
            "untimed": group(None, None, 1),
            "$\\x_$ & <b>": group(3.5, [1.0, 6.5]),
        },
        "least_repetitive_half": group(1.8, [1.5, 2.1], 6),
    }
    path = tmp_path / f"picture{suffix}"
    require_plot(path)
    draw(document, path, title="$\\x$")
    assert path.stat().st_size > 5000
    if suffix == ".svg":
        # Every bar says its figure; what could not be measured has none.
        text = path.read_text()
        assert [text.count(f"<!-- {name} ") for name in ("writing", "qa", "untimed", "all")] == [1, 1, 0, 1]


def test_a_picture_without_a_place_is_refused_before_measuring(tmp_path):
    with pytest.raises(StorageError, match="folder does not exist"):
        require_plot(tmp_path / "absent" / "picture.png")
    with pytest.raises(ConfigError):
        require_plot(tmp_path / "picture")


def test_without_matplotlib_nothing_is_measured(cli_env, native_package, prompts, tmp_path):
    code = "import sys; sys.modules['matplotlib'] = None; from edge_rt.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "bench", "-m", native_package, "--prompts", prompts, "--plot", "out.png"]
    result = subprocess.run(command, env=cli_env, cwd=tmp_path, capture_output=True, stdin=subprocess.DEVNULL)
    assert (result.returncode, result.stdout) == (5, b"")
    assert b"pip install 'matplotlib" in result.stderr


# --- the line that says how far it is ---


class Recorder:
    """Stands for a terminal: keeps what it is told."""

    def __init__(self, *, is_tty):
        self.err_is_tty = is_tty
        self.told = []

    def note(self, text):
        self.told.append(text)

    def control(self, sequence):
        if self.err_is_tty:
            self.told.append(sequence)


def test_a_screen_is_redrawn():
    terminal = Recorder(is_tty=True)
    line = StatusLine(terminal, 2)
    line.show(1, "prompts \x1b[31m")
    line.clear()
    assert terminal.told == ["\r\x1b[K1/2 prompts \u241b[31m", "\r\x1b[K"]


def test_elsewhere_lines_are_few_and_the_last_is_told():
    terminal, now = Recorder(is_tty=False), iter([0.0, 0.0, 1.0, LINE_SECONDS, LINE_SECONDS, LINE_SECONDS + 1])
    line = StatusLine(terminal, 4, clock=lambda: next(now))
    for done in range(1, 5):
        line.show(done, "done")
    assert terminal.told == ["1/4 done", "3/4 done", "4/4 done"]
