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
