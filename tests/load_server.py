"""By hand: `edge-rt serve` under load: many clients, slow and leaving ones, bad requests, kills and restarts.

    nice python -m tests.load_server [--minutes 10] [--clients 200] [--model NAME] [--memory 600MiB] [--kills 2]

Clients of OpenAI's, Anthropic's and Ollama's routes ask a server process at random for answers that a model alone has
given before. What each gets must be that answer, or its beginning if the client or the server has left; a refusal must
be the one that the request deserves, or say when to come again. The resident memory stays within the budget, no more
requests wait than the queue has, and outside of kills no connection breaks. Prints a summary as JSON; the exit code is
1 if anything else was seen.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import edge_rt
from edge_rt.errors import RuntimeUnavailable
from edge_rt.system.byte_size import parse_size
from edge_rt.system.process_memory import read_memory

TOPICS = (
    "a haiku", "the moon", "rain", "a lighthouse", "bread", "a compiler", "the number seven", "a fox", "winter",
    "a bicycle", "tea", "an atlas", "glass", "a violin", "salt", "a bridge", "the sea", "a clock", "paper", "moss",
)  # fmt: skip
SLOTS, QUEUE, CONTEXT = 4, 64, 4096
MOST_WAITED = 120.0
CUT, DONE = "cut", "done"


@dataclass(frozen=True)
class Asked:
    """A request whose answer is known."""

    messages: list
    options: dict
    text: str


def answers_alone(name, count):
    """Return requests with what a model alone answers."""
    asked = []
    with edge_rt.load(name, ctx=CONTEXT, spec="off") as model:
        for number in range(count):
            topic = TOPICS[number % len(TOPICS)]
            messages = [{"role": "user", "content": f"Tell me about {topic}, in {number % 5 + 1} sentences."}]
            if number % 3 == 0:
                messages.insert(0, {"role": "system", "content": "You are a patient teacher. " * 8})
            options = {"max_tokens": (8, 16, 32, 48)[number % 4], "temperature": 0}
            if number % 2:
                options |= {"temperature": 0.8, "top_p": 0.95, "seed": number}
            asked.append(Asked(messages, options, model.generate(messages, **options).text))
    return asked


def openai_text(event):
    """Return the text of an event of a chat completion."""
    return "".join(one["delta"].get("content") or "" for one in event.get("choices", ()))


def anthropic_text(event):
    """Return the text of an event of a message."""
    return event["delta"].get("text", "") if event["type"] == "content_block_delta" else ""


def bad_requests():
    """Return requests that must be refused, with their statuses."""
    message = {"messages": [{"role": "user", "content": "Hello"}]}
    long = {"messages": [{"role": "user", "content": "word " * 20_000}]}
    chat = "/v1/chat/completions"
    return [
        (chat, b"{", {}, 400),
        (chat, b"[" * 5000, {}, 400),
        (chat, json.dumps({"messages": 7}).encode(), {}, 400),
        (chat, json.dumps({**message, "temperature": "hot"}).encode(), {}, 400),
        (chat, json.dumps({**message, "model": "../../etc/passwd"}).encode(), {}, 404),
        (chat, json.dumps({**message, "response_format": {"type": "json_schema"}}).encode(), {}, 400),
        (chat, json.dumps(long).encode(), {}, 400),
        (chat, json.dumps(message).encode(), {"Host": "evil.example"}, 403),
        (chat, json.dumps(message).encode(), {"Origin": "http://evil.example"}, 403),
        (chat, json.dumps(message).encode(), {"Content-Type": "text/plain"}, 415),
        ("/v1/messages", json.dumps(message).encode(), {}, 400),
        ("/nothing", b"{}", {}, 404),
    ]


async def closed(writer):
    """Close a connection, however it is."""
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


class Response:
    """A response that is read from a connection of its own."""

    def __init__(self, reader):
        self._reader = reader
        self.status, self.headers = 0, {}

    async def begin(self):
        """Read the head."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        self.status = int(first.split()[1])
        self.headers = dict(line.lower().split(": ", 1) for line in lines if ": " in line)

    async def parts(self):
        """Yield what comes, until the end."""
        if "chunked" not in self.headers.get("transfer-encoding", ""):
            yield await self._reader.readexactly(int(self.headers["content-length"]))
            return
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            yield (await self._reader.readexactly(size + 2))[:-2]

    async def body(self):
        """Return all."""
        return b"".join([part async for part in self.parts()])


@dataclass
class Load:
    """Clients, their server, and what was seen.

    Attributes:
        is_up: set while the server answers; what breaks when it is not, is no mistake.
        cuts: how often the server was killed.
    """

    asked: list
    port: int
    ends: float
    bad: list = field(default_factory=bad_requests)
    is_up: asyncio.Event = field(default_factory=asyncio.Event)
    cuts: int = 0
    counts: Counter = field(default_factory=Counter)
    mistakes: list = field(default_factory=list)
    firsts: list = field(default_factory=list)
    betweens: list = field(default_factory=list)
    most_under_way: int = 0
    most_bytes: int = 0

    async def client(self, seed):
        """Ask until the end."""
        rng = random.Random(seed)
        await asyncio.sleep(rng.random() * 2)
        while time.monotonic() < self.ends:
            await self.is_up.wait()
            cuts = self.cuts
            try:
                async with asyncio.timeout(MOST_WAITED):
                    kind = await (self.ask_badly(rng) if rng.random() < 0.05 else self.ask(rng))
            except (OSError, asyncio.IncompleteReadError, ValueError) as error:
                kind = CUT
                if self.cuts == cuts and self.is_up.is_set():
                    # A kill is seen by the clients before it is known here.
                    await asyncio.sleep(0.5)
                if self.cuts == cuts:
                    self.mistakes.append(f"a connection broke, {type(error).__name__}: {error!s:.200}")
            except TimeoutError:
                kind = "hung"
                self.mistakes.append(f"no answer within {MOST_WAITED:.0f} s")
            self.counts[kind] += 1

    async def send(self, path, body, headers=(), buffer=None):
        """Send a request; return its response and the writer to close."""
        connection = socket.socket()
        if buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        connection.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", self.port))
        except OSError:
            connection.close()
            raise
        reader, writer = await asyncio.open_connection(sock=connection, limit=1 << 16)
        given = {"Host": f"127.0.0.1:{self.port}", "Content-Type": "application/json", **dict(headers)}
        given |= {"Content-Length": str(len(body)), "Connection": "close"}
        head = "".join(f"{name}: {value}\r\n" for name, value in given.items())
        writer.write(f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + body)
        return Response(reader), writer

    async def ask_badly(self, rng):
        """Ask for what must be refused."""
        path, body, headers, status = rng.choice(self.bad)
        response, writer = await self.send(path, body, headers)
        try:
            await response.begin()
            await response.body()
        finally:
            await closed(writer)
        if response.status == status:
            return "bad, refused"
        return await self.came_early(response, rng, f"a bad request of {path} ({status})")

    async def came_early(self, response, rng, what):
        """Take a refusal that says when to come again; anything else is a mistake."""
        if response.status not in (429, 503) or "retry-after" not in response.headers:
            self.mistakes.append(f"{what} got {response.status}")
            return "wrong status"
        await asyncio.sleep(min(float(response.headers["retry-after"]), 5.0) * (0.2 + rng.random()))
        return f"told to come again ({response.status})"

    async def ask(self, rng):
        """Ask for one answer, as one of many kinds of clients."""
        asked = rng.choice(self.asked)
        api = rng.choices(("openai", "anthropic", "ollama"), (6, 2, 2))[0]
        kind = rng.choices(("whole", "reads", "slow", "leaves"), (3, 5, 1, 1))[0]
        if api != "openai":
            kind = "whole" if api == "ollama" or "seed" in asked.options else kind
        if api == "anthropic" and "seed" in asked.options:
            api = "openai"  # Anthropic's API has no seeds.
        body = {"messages": asked.messages, "stream": kind != "whole"}
        if api == "ollama":
            path = "/api/chat"
            options = dict(asked.options)
            body["options"] = {"num_predict": options.pop("max_tokens"), **options}
        elif api == "anthropic":
            path, body = "/v1/messages", {**body, **asked.options}
            if asked.messages[0]["role"] == "system":
                body |= {"system": asked.messages[0]["content"], "messages": asked.messages[1:]}
        else:
            path, body = "/v1/chat/completions", {**body, **asked.options}
        started = time.monotonic()
        response, writer = await self.send(path, json.dumps(body).encode(), buffer=4096 if kind == "slow" else None)
        try:
            await response.begin()
            if response.status != 200:
                await response.body()
                return await self.came_early(response, rng, f"a request of {path}")
            if kind == "whole":
                self.compare(asked, self.whole_text(api, await response.body()), f"{path}, whole")
                return f"{api}, {kind}"
            return await self.read(response, asked, api, kind, rng, started)
        finally:
            await closed(writer)

    @staticmethod
    def whole_text(api, body):
        """Return the text of an answer that came at once."""
        answer = json.loads(body)
        if api == "openai":
            return answer["choices"][0]["message"]["content"]
        if api == "anthropic":
            return "".join(one.get("text", "") for one in answer["content"])
        return answer["message"]["content"]

    async def read(self, response, asked, api, kind, rng, started):
        """Read a stream: as it comes, slowly, or not to its end."""
        text, seen, rest = "", None, b""
        leaves_behind = rng.randrange(len(asked.text) + 1) if kind == "leaves" else None
        has_ended = False
        async for part in response.parts():
            *events, rest = (rest + part).split(b"\n\n")
            for event in events:
                data = b"".join(line[6:] for line in event.split(b"\n") if line.startswith(b"data: "))
                if data == b"[DONE]":
                    has_ended = True
                    continue
                if not data:
                    continue
                value = json.loads(data)
                if "error" in value:
                    self.mistakes.append(f"an answer failed: {value['error']}")
                    return "failed"
                has_ended |= value.get("type") == "message_stop"
                piece = (anthropic_text if api == "anthropic" else openai_text)(value)
                text += piece
                if piece and kind == "reads":
                    now = time.monotonic()
                    (self.firsts if seen is None else self.betweens).append(now - (started if seen is None else seen))
                    seen = now
            if kind == "slow":
                await asyncio.sleep(rng.random() * 0.5)
            if leaves_behind is not None and len(text) >= leaves_behind:
                self.compare(asked, text, f"{api}, beginning", is_whole=False)
                return f"{api}, left"
        if not has_ended:
            raise ValueError("the stream ended without its last event")
        self.compare(asked, text, f"{api}, {kind}")
        return f"{api}, {kind}"

    def compare(self, asked, text, what, *, is_whole=True):
        """See whether a text is the answer, or begins it."""
        if text != asked.text if is_whole else not asked.text.startswith(text):
            self.mistakes.append(f"{what}: got {text!r:.300}, alone it is {asked.text!r:.300}")

    async def watch(self, process, budget):
        """Look at memory and queue once a second while the server runs."""
        while process.returncode is None:
            with suppress(RuntimeUnavailable):
                memory = read_memory(Path(f"/proc/{process.pid}"))
                self.most_bytes = max(self.most_bytes, memory.resident_bytes)
                if memory.resident_bytes > budget:
                    self.mistakes.append(f"{memory.resident_bytes >> 20} MiB are more than the budget")
            with suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
                async with asyncio.timeout(10):
                    reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                    writer.write(b"GET /v1/edge/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                    response = Response(reader)
                    await response.begin()
                    status = json.loads(await response.body())
                    await closed(writer)
                    under_way = status["answering"] + status["waiting"]
                    self.most_under_way = max(self.most_under_way, under_way)
                    if under_way > SLOTS + QUEUE:
                        self.mistakes.append(f"{under_way} requests are answered or wait")
            await asyncio.sleep(1)


def percentiles(seconds):
    """Return what half and 95 of a hundred are below, in milliseconds."""
    ordered = sorted(seconds) or [0.0]
    return {f"p{share}": round(1e3 * ordered[(len(ordered) - 1) * share // 100], 1) for share in (50, 95)}


async def started(arguments, port, folder):
    """Start the server and wait until it answers."""
    command = ["serve", "--port", str(port), "--memory", arguments.memory, "--slots", str(SLOTS)]
    command += ["--queue", str(QUEUE), "--ctx", str(CONTEXT), "--prompt-cache", folder, "--quiet"]
    command += ["-m", arguments.model]
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "edge_rt", *command)
    async with asyncio.timeout(120):
        while True:
            with suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                answer = await reader.readuntil(b"\r\n")
                await closed(writer)
                if b" 200 " in answer:
                    return process
            if process.returncode is not None:
                raise SystemExit("the server did not start")
            await asyncio.sleep(0.1)


async def run(arguments, asked):
    """Run all; return what was seen."""
    with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        seconds, began = 60 * arguments.minutes, time.monotonic()
        load = Load(asked, port, began + seconds)
        budget = parse_size(arguments.memory)
        process = await started(arguments, port, folder)
        load.is_up.set()
        clients = [asyncio.create_task(load.client(seed)) for seed in range(arguments.clients)]
        watching = asyncio.create_task(load.watch(process, budget))
        for number in range(arguments.kills):
            await asyncio.sleep(max(0.0, began + seconds * (number + 1) / (arguments.kills + 1) - time.monotonic()))
            load.is_up.clear()
            load.cuts += 1
            process.kill()
            await process.wait()
            process = await started(arguments, port, folder)
            watching = asyncio.create_task(load.watch(process, budget))
            load.is_up.set()
        await asyncio.gather(*clients)
        process.terminate()
        async with asyncio.timeout(60):
            if await process.wait() != 0:
                load.mistakes.append(f"SIGTERM ended the server with {process.returncode}")
        await watching
    return load


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--memory", default="600MiB")
    arguments = parser.parse_args()
    load = asyncio.run(run(arguments, answers_alone(arguments.model, 60)))
    summary = {
        "counts": dict(sorted(load.counts.items())),
        "first_token_ms": percentiles(load.firsts),
        "between_tokens_ms": percentiles(load.betweens),
        "most_resident_mib": load.most_bytes >> 20,
        "most_under_way": load.most_under_way,
        "mistakes": len(load.mistakes),
        "first_mistakes": load.mistakes[:10],
    }
    print(json.dumps(summary, indent=2))
    return bool(load.mistakes)


if __name__ == "__main__":
    sys.exit(main())
