"""``--prompt-cache``, and the commands that show and clear what it keeps."""

from __future__ import annotations

import json
import shutil

PROMPT = "The little boat left the harbour at dawn. " * 12


def test_a_prompt_is_read_by_the_next_command_until_it_is_cleared(inline, native_package, tmp_path):
    folder = tmp_path / "prompts"
    command = ("generate", PROMPT, "-m", native_package, "-n", "4", "--temp", "0", "--json", "--prompt-cache", folder)

    def cached():
        return json.loads(inline(*command).stdout)["usage"]["cached_tokens"]

    def listed():
        return json.loads(inline("cache", "list", folder, "--json").stdout)

    assert inline("cache", "list", folder).returncode == 6
    assert [cached(), cached()] == [0, 192]
    (entry,) = listed()["models"]
    assert (entry["tokens"], entry["bytes"]) == (192, listed()["bytes"])
    assert entry["model"].encode() in inline("cache", "list", folder).stdout
    assert inline("cache", "clear", folder).returncode == 2
    assert json.loads(inline("cache", "clear", folder, "--yes", "--json").stdout)["bytes"] > entry["bytes"]
    assert b"No prompts are stored" in inline("cache", "list", folder).stderr
    assert cached() == 0


def test_what_goes_wrong_is_a_warning_beside_the_answer(inline, native_package, tmp_path):
    folder = tmp_path / "prompts"
    command = ("generate", PROMPT, "-m", native_package, "-n", "4", "--temp", "0", "--prompt-cache", folder)
    first = inline(*command)
    for path in folder.glob("*/*.rows"):
        path.write_bytes(bytes(path.stat().st_size))
    again = inline(*command)
    assert (again.returncode, again.stdout) == (0, first.stdout)
    assert b"was damaged, and is removed" in again.stderr


def test_a_package_gets_its_system_message(inline, native_package, tmp_path):
    package = shutil.copytree(native_package, tmp_path / "package")
    made = json.loads(inline("cache", "add", "-m", package, "--system", PROMPT, "--json").stdout)
    assert made["tokens"] == 192
    answer = inline("generate", "Where to?", "-m", package, "-s", PROMPT, "-n", "4", "--json")
    assert json.loads(answer.stdout)["usage"]["cached_tokens"] == 192
    assert inline("cache", "add", "-m", package, "--system", "Be brief.").returncode == 2
