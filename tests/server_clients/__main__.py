"""By hand: clients that people have against `edge-rt serve`, and a table of what passed.

    python -m tests.server_clients [--model smollm2-135m-instruct] [--client openai] [--json FILE]

A server process has the model three times: as it is, with a chat template that teaches tools, and with one that lets it
think. It has memory for one at a time, two slots and a queue of two, so that clients that ask much are told to come
again. Clients that are not installed are left out, and named. The exit code is 1 if a call failed.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import edge_rt
from edge_rt.store.config import default_store_root
from tests.helpers.packages import copied, replace_file
from tests.helpers.tool_templates import TOOL_TEMPLATES
from tests.server_clients.by_the_sheet import CLAUDE_CODE, CODEX, ZED
from tests.server_clients.calls import MESSAGES, MOST, QUESTION, Client, Served
from tests.server_clients.frameworks import LANGCHAIN, LITELLM, LLAMAINDEX, LLM, OLLAMA
from tests.server_clients.makers import ANTHROPIC, OPENAI

CLIENTS = (OPENAI, ANTHROPIC, LANGCHAIN, LLAMAINDEX, LLM, OLLAMA, LITELLM, CODEX, CLAUDE_CODE, ZED)
SLOTS, CONTEXT = 2, 4096
ROOM = 96 << 20
"""Memory of the server besides one model: not enough for a second one."""
THINKING = TOOL_TEMPLATES["Qwen"].replace(
    "'<|im_start|>assistant\\n'",
    "'<|im_start|>assistant\\n' + ('<think>\\n' if enable_thinking | default(true) else '<think>\\n\\n</think>\\n\\n')",
)


def made_store(package: Path, store: Path) -> None:
    """Make a store with the model as it is, and with other templates."""
    packages = store / "packages"
    packages.mkdir(parents=True)
    for name, template in (("plain", None), ("tools", TOOL_TEMPLATES["Qwen"]), ("thinking", THINKING)):
        copied(package, packages).rename(packages / name)
        if template is not None:
            replace_file(packages / name, "chat_template.jinja", template.encode())


@contextmanager
def server(folder: Path, memory: int) -> Generator[str]:
    """Run a server while a block runs; yield its address."""
    command = [sys.executable, "-m", "edge_rt", "serve", "-m", "plain", "--port", "0", "--queue", "2"]
    command += ["--slots", SLOTS, "--ctx", CONTEXT, "--memory", f"{memory >> 20}MiB", "--no-prompt-cache"]
    with (folder / "log.txt").open("w") as log:
        process = subprocess.Popen([str(part) for part in command], stderr=log)
        try:
            yield _address(process, folder / "log.txt")
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    for _ in range(600):
        text = log.read_text()
        if " on http://" in text:
            return text.split(" on ")[1].split("/v1")[0]
        if process.poll() is not None:
            break
        time.sleep(0.1)
    raise SystemExit(f"the server did not start: {text}")


def run(client: Client, served: Served) -> list[dict[str, str | float | None]]:
    """Let a client do what it can; return what came of each call."""
    rows = []
    for call in client.calls:
        started, error = time.perf_counter(), None
        try:
            call(served)
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure!s:.600}"
            traceback.print_exc()
        rows.append({"call": call.__name__, "seconds": round(time.perf_counter() - started, 2), "error": error})
        print(f"  {client.name}: {call.__name__}: {error or 'passed'}", file=sys.stderr)
    return rows


def main() -> bool:
    """Run all; return whether a call failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--client", action="append", help="only this one; repeatable")
    parser.add_argument("--json", type=Path, help="file for what came of each call")
    arguments = parser.parse_args()
    greedy = {"max_tokens": MOST, "temperature": 0}
    with edge_rt.load(arguments.model, ctx=CONTEXT, slots=SLOTS, formats=True) as model:
        package, memory = model.package.path, model.plan.total_bytes + ROOM
        answer = model.generate(MESSAGES, **greedy).text
        rest = model.generate(QUESTION, **greedy).text
        sampled = {seed: model.generate(MESSAGES, max_tokens=MOST, temperature=1, seed=seed).text for seed in (5, 6, 7)}
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        # What clients write about themselves goes with the folder.
        for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "LLM_USER_PATH"):
            os.environ[name] = folder
        os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
        made_store(package, default_store_root())
        with server(Path(folder), memory) as url:
            served = Served(url, answer, rest, sampled)
            for client in CLIENTS:
                if arguments.client is None or client.name in arguments.client:
                    version = _version(client)
                    rows = [] if version is None else run(client, served)
                    results[client.name] = {"version": version or "not installed", "calls": rows}
    print("| client | version | calls | passed |\n|---|---|---|---|")
    for name, result in results.items():
        passed = sum(row["error"] is None for row in result["calls"])
        print(f"| {name} | {result['version']} | {len(result['calls'])} | {passed} |")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=2))
    return any(row["error"] for result in results.values() for row in result["calls"])


def _version(client: Client) -> str | None:
    """Return the version of a client; None: it is not installed."""
    if client.package is None:
        return "written after the sheet, not the program"
    try:
        return importlib.metadata.version(client.package)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main())
