"""Which runtimes take part in a comparison of answers."""

from __future__ import annotations

from pathlib import Path

import answer_speed
import pytest

NEEDED = ["--package", "p", "--gguf", "m.gguf", "--prompts", "q.jsonl"]
FLAGS = {
    "llama.cpp": ["--llama-python", "a"],
    "onnxruntime-genai": ["--genai-python", "b", "--genai-model", "folder"],
    "OpenVINO GenAI": ["--openvino-python", "c"],
}


@pytest.mark.parametrize("chosen", [[], ["llama.cpp"], ["onnxruntime-genai", "OpenVINO GenAI"], list(FLAGS)])
def test_peers_take_part_if_their_interpreters_are_named(chosen):
    flags = [flag for name in chosen for flag in FLAGS[name]]
    commands = answer_speed.peers(answer_speed.parser().parse_args([*NEEDED, *flags]), Path("work"))
    assert {name.partition(",")[0].removesuffix(" Q4_1").removesuffix(" Q4_0") for name in commands} == set(chosen)
    assert all(Path(command[1]).is_file() for command in commands.values())


@pytest.mark.parametrize("name", FLAGS)
def test_every_peer_answers_plainly_and_with_drafts(name):
    commands = answer_speed.peers(answer_speed.parser().parse_args([*NEEDED, *FLAGS[name]]), Path("work"))
    assert {command[-1] for command in commands.values()} == {"plain", "lookup"}
    assert all(command[0] == FLAGS[name][1] for command in commands.values())


def test_speed_is_all_tokens_in_all_the_time():
    assert answer_speed.speed([(10, 1000.0), (50, 2000.0)]) == 20.0


class FakeWorker:
    """Takes a millisecond a token, times a factor, and keeps the prompts."""

    def __init__(self, name: str, factor: float) -> None:
        self.name, self.factor = name, factor
        self.prompts: list[list[int]] = []

    def ask(self, *, prompt: list[int], max_tokens: int, ends: list[int]) -> dict:
        self.prompts.append(prompt)
        return {"ids": [5], "first_ms": self.factor * len(prompt), "ms": 0.0}


def test_first_tokens_are_timed_behind_the_same_new_prompts():
    ours, peer = FakeWorker("edge-rt, auto", 1.0), FakeWorker("peer", 3.0)
    lines = answer_speed.first_tokens([ours, peer], [4, 8], rounds=2)
    assert " 4.0 ms" in lines[0]
    assert "12.0 ms" in lines[1]
    assert "3.00 (3.00-3.00)" in lines[3]
    assert ours.prompts == peer.prompts
    assert len({tuple(prompt) for prompt in ours.prompts}) == len(ours.prompts) == 6
