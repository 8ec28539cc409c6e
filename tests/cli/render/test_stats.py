"""The figures under an answer."""

from __future__ import annotations

import dataclasses
import io

import pytest

from edge_rt.cli.render.console import Terminal
from edge_rt.cli.render.stats import spec_text, stats_parts, tell_stats, tell_table
from edge_rt.runtime.results import Memory, Result, SpecStats, Timings, Usage

SPEC = SpecStats(
    mode="auto",
    steps=44,
    tokens_per_step=2.9,
    draft_n=104,
    draft_n_accepted=71,
    acceptance=71 / 104,
    rows_drafted=1300,
    accepted_per_position=(0.75, 0.5, 0.25),
    drafting_ms=12.34,
    verifying_ms=300.0,
    drafting_share=0.0395,
    choices={"off": 4, "fusion": 40},
    memory_bytes=3 << 20,
)
RESULT = Result(
    text="x",
    token_ids=(1,) * 128,
    finish_reason="length",
    stop_string=None,
    usage=Usage(prompt_tokens=520, completion_tokens=128, total_tokens=648, cached_tokens=8),
    timings=Timings(
        cache_n=8,
        prompt_n=512,
        prompt_ms=413.0,
        prompt_per_second=1240.0,
        predicted_n=128,
        predicted_ms=3325.0,
        predicted_per_second=38.2,
        ttft_ms=430.0,
    ),
    spec=SPEC,
    memory=Memory(peak_bytes=int(1.31 * 2**30), kv_bytes=5 << 20),
)


def told(tell, result, **options):
    terminal = Terminal(io.StringIO(), err := io.StringIO(), **options)
    tell(terminal, result)
    return err.getvalue()


def test_the_line():
    assert stats_parts(RESULT) == [
        "prompt 512 tokens, 1 240 tok/s",
        "first token 0.43 s",
        "answer 128 tokens, 38.2 tok/s",
        "speculation: 71 of 104 guesses right",
        "peak memory 1.31 GiB",
    ]


def test_a_gpu_that_computed_is_named():
    assert stats_parts(RESULT, "cuda (Orin)") == [*stats_parts(RESULT), "cuda (Orin)"]
    for device in ("cpu", "cuda (Orin)"):
        table = told(lambda terminal, result, device=device: tell_table(terminal, result, device), RESULT)
        assert f"device       {device}" in table.splitlines()


@pytest.mark.parametrize("spec", [None, dataclasses.replace(SPEC, steps=0)], ids=["off", "a single token"])
def test_the_line_says_nothing_of_what_did_not_happen(spec):
    assert stats_parts(dataclasses.replace(RESULT, spec=spec)) == [
        part for part in stats_parts(RESULT) if "speculation" not in part
    ]


def test_steps_without_drafts_have_no_acceptance():
    spec = dataclasses.replace(SPEC, draft_n=0, draft_n_accepted=0, acceptance=0.0, tokens_per_step=1.0)
    assert spec_text(spec) == "no guesses"


def test_the_table():
    rows = {line[:12].rstrip(): line[13:] for line in told(tell_table, RESULT).splitlines()}
    assert rows["speculation"] == "auto: 71 of 104 guesses right (68 %), 2.9 tokens a step, 44 steps"
    assert rows["choices"] == "fusion 40, off 4"
    assert rows["drafted"] == "1 300 rows, 104 of them tested (their parents were kept)"
    assert rows["drafting"] == "4.0 % of the time (12.3 ms)"
    assert rows["drafters"] == "hold 3.0 MiB"
    assert rows["by position"] == "75 % 50 % 25 %"
    plain = told(tell_table, dataclasses.replace(RESULT, spec=None))
    assert set(told(tell_table, RESULT).splitlines()) > set(plain.splitlines())
    assert "drafte" not in plain


@pytest.mark.parametrize(("shares", "shown"), [((0.75, 0.006, 0.004, 0.001), "75 % 1 %"), ((0.005,), None), ((), None)])
def test_positions_that_hardly_ever_stay_are_cut(shares, shown):
    spec = dataclasses.replace(SPEC, accepted_per_position=shares)
    lines = told(tell_table, dataclasses.replace(RESULT, spec=spec)).splitlines()
    found = [line[13:] for line in lines if line.startswith("by position")]
    assert found == ([] if shown is None else [shown])


def test_verbose_takes_the_table():
    assert told(tell_stats, RESULT, verbose=True) == told(tell_table, RESULT)
    assert told(tell_stats, RESULT) == " · ".join(stats_parts(RESULT)) + "\n"


def test_figures_that_were_asked_for_are_shown_when_quiet():
    assert told(tell_stats, RESULT, quiet=True) == told(tell_stats, RESULT)
