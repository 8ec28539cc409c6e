"""Answers prompts with edge-rt for answer_speed.py."""

from __future__ import annotations

import json
import sys

import edge_rt


def main() -> None:
    package, threads, mode = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    model = edge_rt.load(package, threads=threads, ctx=4096, spec=mode)
    model.generate("Hello", max_tokens=8)
    print(json.dumps({"edge_rt": edge_rt.__version__, "mode": mode}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        options = {"temperature": 0.0, "max_tokens": request["max_tokens"], "repetition_guard": False}
        result = model.generate(request["prompt"], **options)
        times = {"first_ms": result.timings.prompt_ms, "ms": result.timings.predicted_ms}
        print(json.dumps({"ids": list(result.token_ids), **times}), flush=True)


if __name__ == "__main__":
    main()
