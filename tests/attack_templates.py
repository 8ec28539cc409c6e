"""Attacks chat templates, and with them their sandbox.

``python -m tests.attack_templates FOLDER`` renders conversations made of control tokens with every ``*.jinja`` file of
the folder. A second rendering with other characters tells which characters come from messages
(:mod:`tests.helpers.template_oracle`): none may count as the template's own.

``python -m tests.attack_templates --hostile 300 --seed 1`` renders templates made at random that ask for much work
(:mod:`tests.helpers.hostile_templates`), each in a process that can be stopped, and prints a table: all have to end in
time, rendered or refused.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from edge_rt.errors import InvalidTemplate
from edge_rt.text.template import ChatTemplate
from tests.helpers.hostile_templates import hostile_templates
from tests.helpers.template_oracle import attack, control_texts, fragments, leaks

SPECIAL_TOKENS = ("<|im_start|>", "<|im_end|>")
USER = [{"role": "user", "content": "Hi"}]
_MOST_SECONDS = 1.0  # of CPU time: those of a rendering, reading the template, and the last step
_MOST_MEBIBYTES = 64.0
_HANGS = 30.0  # of the clock


def main() -> None:
    """Attack the files of a folder, or the sandbox."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("-n", "--number", type=int, default=100_000, help="renderings in all")
    parser.add_argument("--hostile", type=int, default=0, help="templates made at random")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.worker:
        work()
        return
    failed = attack_sandbox(hostile_templates(chosen.seed, chosen.hostile)) if chosen.hostile else 0
    if chosen.folder is not None:
        failed += attack_folder(chosen.folder, chosen.number, random.Random(chosen.seed))
    raise SystemExit(failed > 0)


def attack_folder(folder: Path, number: int, rng: random.Random) -> int:
    """Return how many conversations leaked."""
    templates = []
    for file in sorted(folder.glob("*.jinja")):
        source = file.read_text(encoding="utf-8")
        try:
            template = ChatTemplate(source, special_tokens=control_texts(source), bos_token="<bos>", eos_token="<eos>")
        except InvalidTemplate as error:
            print(f"{file.name}: {error}")
            continue
        templates.append((file.name, template, fragments(source)))
    compared = leaked = 0
    for index in range(number // 2):
        name, template, parts = templates[index % len(templates)]
        found = leaks(template, attack(rng, parts, rng.randrange(3)))
        compared += found is not None
        if found:
            leaked += 1
            print(f"{name}: {found[:3]}")
    print(f"{2 * (number // 2)} renderings in pairs, {compared} pairs compared, {leaked} with a leak")
    return leaked


def attack_sandbox(templates: Iterable[tuple[str, str]]) -> int:
    """Return how many templates took too long, and print a table of all."""
    ends: dict[str, Counter[str]] = {}
    slowest: list[tuple[float, float, str, str]] = []
    worker = _Worker()
    for kind, source in templates:
        seconds, mebibytes, end = worker.render(source)
        ends.setdefault(kind, Counter())[end] += 1
        slowest.append((seconds, mebibytes, end, source))
    worker.stop()
    print(f"{'kind':<10}{'templates':>10}" + "".join(f"{end:>10}" for end in ("rendered", "refused", "other", "hung")))
    for kind, counts in sorted(ends.items()):
        row = "".join(f"{counts[end]:>10}" for end in ("rendered", "refused", "other", "hung"))
        print(f"{kind:<10}{counts.total():>10}{row}")
    slowest.sort(reverse=True)
    late = [
        entry
        for entry in slowest
        if entry[0] > _MOST_SECONDS or entry[1] > _MOST_MEBIBYTES or entry[2] in {"other", "hung"}
    ]
    for seconds, mebibytes, end, source in [*late, *slowest[: max(5 - len(late), 0)]]:
        print(f"{seconds:6.2f} s {mebibytes:5.0f} MiB more {end:>9}: {source if len(source) < 400 else _short(source)}")
    most = max(entry[1] for entry in slowest)
    print(f"slowest {slowest[0][0]:.2f} s of CPU time, most memory {most:.0f} MiB, {len(late)} beyond the limits")
    return len(late)


def work() -> None:
    """Render the templates on standard input, one JSON text a line, and write what each took."""
    for line in sys.stdin:
        peak, start = _peak(), time.process_time()
        try:
            ChatTemplate(json.loads(line), special_tokens=SPECIAL_TOKENS).render(USER)
            end = "rendered"
        except InvalidTemplate:
            end = "refused"
        except Exception:  # an error of another type is a finding
            end = "other"
        print(json.dumps([time.process_time() - start, _peak() - peak, end]), flush=True)


class _Worker:
    """A process that renders, started anew when it hangs or dies."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def render(self, source: str) -> tuple[float, float, str]:
        """Return the seconds, the MiB by which the peak of memory grew, and how it ended."""
        if self._process is None:
            command = [sys.executable, "-m", "tests.attack_templates", "--worker"]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(source) + "\n")
        process.stdin.flush()
        timer = threading.Timer(_HANGS, process.kill)
        timer.start()
        answer = process.stdout.readline()
        timer.cancel()
        if not answer:
            self.stop()
            return _HANGS, 0.0, "hung"
        seconds, mebibytes, end = json.loads(answer)
        return seconds, mebibytes, end

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.communicate()
            self._process = None


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _short(source: str) -> str:
    return f"{source[:200]} … {source[-150:]}"


if __name__ == "__main__":
    main()
