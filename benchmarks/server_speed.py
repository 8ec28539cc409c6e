"""Tokens per second of many clients, and how long each waits: `edge-rt serve` against llama.cpp's `llama-server`.

    python benchmarks/server_speed.py PACKAGE --gguf model.Q4_1.gguf model.Q4_0.gguf --llama-server PATH \
        --prompts question.jsonl [--clients 8] [--tokens 128] [--rounds 5] [--samples FILE]

Every server is a process of its own with a slot for each client, and stopped (SIGSTOP) while another one works. A round
asks all of them for the same streamed chats, greedy ones and sampled ones, with prompts that no round before had: the
first messages of the lines (``turns``). A client asks for its next answer when it has one. First tokens and pauses
between pieces of text are what clients see. ``--samples`` keeps rounds for later runs, whose report is on all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from alternating import ratio_text

SETTINGS = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.8, "top_p": 0.95, "top_k": 40, "min_p": 0.05},
}
OURS = "edge-rt"
STARTING_S = 120.0


async def answer(port: int, body: dict) -> dict:
    """Return an answer's tokens, the seconds to its first text, and those between its pieces."""
    data = json.dumps(body).encode()
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Connection: close\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    lines = [(time.perf_counter(), line) async for line in reader if line.startswith((b"HTTP/", b"data: {"))]
    writer.close()
    if b" 200 " not in lines[0][1]:
        raise SystemExit(f"port {port} answered {lines[0][1]!r}")
    events = [(when, json.loads(line[6:])) for when, line in lines[1:]]
    times = [when for when, one in events if one["choices"] and one["choices"][0]["delta"].get("content")]
    tokens = next(one["usage"]["completion_tokens"] for _, one in reversed(events) if one.get("usage"))
    return {"tokens": tokens, "first": times[0] - began, "between": np.diff(times).tolist()}


async def load(port: int, bodies: list[dict], clients: int) -> dict:
    """Let clients ask for all of these, each for one at a time; return what they saw."""
    left = iter(bodies)

    async def client() -> list[dict]:
        return [await answer(port, body) for body in left]

    began = time.perf_counter()
    answers = [one for mine in await asyncio.gather(*(client() for _ in range(clients))) for one in mine]
    return {
        "seconds": time.perf_counter() - began,
        "tokens": sum(one["tokens"] for one in answers),
        "first": [one["first"] for one in answers],
        "between": [pause for one in answers for pause in one["between"]],
    }


class Server:
    """A server that is stopped except while it is asked."""

    def __init__(self, name: str, command: list[str], port: int) -> None:
        self.name, self.port = name, port
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def wait(self) -> None:
        """Wait until the model is loaded, then stop the process."""
        end = time.monotonic() + STARTING_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"{self.name} did not start (exit code {self._process.poll()})")
            time.sleep(0.1)
        os.kill(self._process.pid, signal.SIGSTOP)

    def _is_ready(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            return b" 200 " in connection.recv(64)
        return False

    def work(self, bodies: list[dict], clients: int) -> dict:
        """Let the process work on requests."""
        os.kill(self._process.pid, signal.SIGCONT)
        result = asyncio.run(load(self.port, bodies, clients))
        os.kill(self._process.pid, signal.SIGSTOP)
        return result

    def close(self) -> None:
        """End the process."""
        if self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGCONT)
            self._process.terminate()
            self._process.wait()


def free_port() -> int:
    """Return a port that nobody has."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextmanager
def servers(arguments: argparse.Namespace) -> Iterator[list[Server]]:
    """Yield the servers, ours first, all of them stopped."""
    count, threads = arguments.clients, str(arguments.threads)
    port = free_port()
    command = [sys.executable, "-m", "edge_rt", "serve", "-m", str(arguments.package), "--port", str(port)]
    command += ["--slots", str(count), "--ctx", str(arguments.ctx), "--threads", threads, "--no-prompt-cache"]
    running = [Server(OURS, [*command, *arguments.serve], port)]
    for path in arguments.gguf:
        port = free_port()
        command = [str(arguments.llama_server), "-m", str(path), "--port", str(port), "-np", str(count)]
        command += ["-c", str(count * arguments.ctx), "-t", threads]
        running.append(Server(f"llama-server, {path.stem}", command, port))
    try:
        for one in running:
            one.wait()
        yield running
    finally:
        for one in running:
            one.close()


def measure(arguments: argparse.Namespace, earlier: list[dict]) -> list[dict]:
    """Return what was seen in further rounds."""
    lines = arguments.prompts.read_text(encoding="utf-8").splitlines()
    texts = [text for line in lines if len(text := json.loads(line)["turns"][0]) <= arguments.longest]
    random.Random(0).shuffle(texts)
    size, first = arguments.answers, 1 + max((one["round"] for one in earlier), default=-1)
    need = (first + arguments.rounds) * size * len(SETTINGS)
    if need > len(texts):
        raise SystemExit(f"{need} prompts are needed, {arguments.prompts.name} has {len(texts)}")
    samples = []
    with servers(arguments) as running:
        warm = {"messages": [{"role": "user", "content": "Count to a hundred."}], "max_tokens": 64, "stream": True}
        for one in running:
            one.work([{**warm, "stream_options": {"include_usage": True}}] * arguments.clients, arguments.clients)
        for round_ in range(first, first + arguments.rounds):
            settings = list(enumerate(SETTINGS.items()))
            for number, (setting, options) in settings if round_ % 2 else settings[::-1]:
                begin = (round_ * len(SETTINGS) + number) * size
                bodies = [
                    {
                        "model": "default", "messages": [{"role": "user", "content": text}], "stream": True,
                        "max_tokens": arguments.tokens, "stream_options": {"include_usage": True}, "seed": seed,
                        **options,
                    }
                    for seed, text in enumerate(texts[begin : begin + size])
                ]  # fmt: skip
                for one in running if (round_ + number) % 2 else running[::-1]:
                    seen = one.work(bodies, arguments.clients)
                    samples.append({"round": round_, "setting": setting, "server": one.name, **seen})
                    rate = seen["tokens"] / seen["seconds"]
                    print(f"round {round_}, {setting}, {one.name}: {rate:.0f} tokens/s", file=sys.stderr)
    return samples


def shown(seconds: list[float]) -> str:
    """Return the median and what 95 of a hundred are below, in milliseconds."""
    return "{:.0f} / {:.0f} ms".format(*1e3 * np.percentile(seconds, [50, 95]))


def report(samples: list[dict]) -> None:
    """Print a table of all rounds."""
    print("| | tokens per second | edge-rt is faster | first token, p50 / p95 | between pieces, p50 / p95 |")
    print("|--" * 5 + "|")
    for setting in SETTINGS:
        of_setting = [one for one in samples if one["setting"] == setting]
        rates: dict[str, list[float]] = {}
        for one in sorted(of_setting, key=lambda one: one["round"]):
            rates.setdefault(one["server"], []).append(one["tokens"] / one["seconds"])
        for name in sorted(rates, key=lambda name: name != OURS):
            mine = [one for one in of_setting if one["server"] == name]
            first, between = ([second for one in mine for second in one[key]] for key in ("first", "between"))
            ratio = "" if name == OURS else ratio_text(rates[OURS], rates[name])
            cells = f"{name}, {setting}", f"{np.median(rates[name]):.0f}", ratio, shown(first), shown(between)
            print("| " + " | ".join(cells) + " |")
    print(f"{len({one['round'] for one in samples})} rounds")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package")
    parser.add_argument("--gguf", type=Path, nargs="+", required=True, help="files for llama-server")
    parser.add_argument("--llama-server", type=Path, required=True, help="the program")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--answers", type=int, default=16, help="of all clients, in a round")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--ctx", type=int, default=1024, help="of each slot")
    parser.add_argument("--longest", type=int, default=2000, help="characters of a prompt; longer ones are left out")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--serve", nargs="*", default=[], help="further options of edge-rt serve: --serve=--spec=off")
    parser.add_argument("--samples", type=Path, help="keep rounds here, and report on all that it has")
    arguments = parser.parse_args()
    path = arguments.samples
    earlier = json.loads(path.read_text()) if path is not None and path.exists() else []
    samples = earlier + measure(arguments, earlier)
    if path is not None:
        path.write_text(json.dumps(samples))
    report(samples)


if __name__ == "__main__":
    main()
