"""The programs of examples/ run as they stand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name, *arguments):
    """Run an example and return what it printed."""
    command = [sys.executable, EXAMPLES / name, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done


def test_async_chat(small_package):
    assert "tokens in the conversation; messages: ['system', 'user', " in run("async_chat.py", small_package).stdout


def test_fit_documents(small_package, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"Boat {number} left the harbour." for number in range(200)))
    done = run("fit_documents.py", small_package, "Which boat left?", text)
    used, room = (int(word) for word in done.stderr.split() if word.isdigit())
    assert room == 512
    assert 380 < used <= 412


def test_processes(small_package):
    lines = run("processes.py", small_package).stdout.splitlines()
    assert [line.split("'")[1] for line in lines] == [
        "Name a fruit.",
        "Name a colour.",
        "word word word word ",
        "Name an animal.",
    ]
    assert "does not fit the context" in lines[2]
