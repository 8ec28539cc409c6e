"""What a chat says of the memory of a model on a GPU."""

from __future__ import annotations

from dataclasses import replace

from edge_rt.cli.chat.advice import held_rows, on_gpu, planned_text, shared_text, term_size
from edge_rt.memory.device import preset
from edge_rt.memory.plan import make_plan
from edge_rt.memory.request import Request
from tests.memory.shapes import DEVICE, make_shape

MIB = 1 << 20
CPU = {"planned_bytes": 231 * MIB, "budget_bytes": 400 * MIB, "device_bytes": 0, "device_budget_bytes": None}
OWN = {**CPU, "device_bytes": 523 * MIB, "device_budget_bytes": 1024 * MIB}
SHARED = {**OWN, "device_budget_bytes": None}


def test_what_is_planned_is_said_with_the_gpu():
    assert [planned_text(memory) for memory in (CPU, OWN, SHARED)] == [
        "231.0 of 400.0 MiB", "231.0 of 400.0 MiB and 523.0 MiB of the GPU", "231.0 of 400.0 MiB",
    ]  # fmt: skip
    assert [shared_text(memory) for memory in (CPU, OWN, SHARED)] == ["", "", ", for the process and the GPU together"]
    assert planned_text(CPU, with_budget=False) == "231.0 MiB"
    assert [on_gpu(memory) for memory in (CPU, OWN, SHARED)] == [
        {}, {"planned on the GPU": "0.51 of 1.00 GiB"}, {"planned on the GPU": "523.0 MiB"},
    ]  # fmt: skip


def test_the_cache_is_what_it_holds_and_not_what_would_be_sent():
    facts = {"context_tokens": 256, "kv_bytes_per_token": 144}
    assert held_rows(100, (90, 90 * 144), facts, "") == {
        "conversation": "100 of 256 tokens", "cache": "12.7 KiB of 36.0 KiB, 90 rows held",
    }  # fmt: skip
    assert held_rows(373, (256, 256 * 144), facts, "a.txt, 3 tokens") == {
        "conversation": "373 tokens to send, more than the context of 256", "for the next message": "a.txt, 3 tokens",
        "cache": "36.0 KiB of 36.0 KiB, 256 rows held",
    }  # fmt: skip


def test_parts_have_the_sizes_of_both():
    device = replace(DEVICE, gpu=preset("rtx4060-laptop-8gb").gpu)
    terms = {term.name: term_size(term) for term in make_plan(make_shape(), device, Request(ctx=2048)).terms}
    assert terms["gpu_context"] == "512.0 MiB on the GPU"
    assert terms["weights"] == "94.2 MiB on the GPU"
    assert terms["logits"] == "4.5 MiB + 4.5 MiB on the GPU"
    assert terms["sampling"] == "5.5 MiB"
