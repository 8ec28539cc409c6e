"""Answers prompts within a budget, for spec_memo.py."""

from __future__ import annotations

import json
import sys

import edge_rt


def main() -> None:
    package, options = sys.argv[1], json.loads(sys.argv[2])
    model = edge_rt.load(package, **options)
    # The first answer waits for the measurement of passes.
    model.generate("Hello", max_tokens=8)
    print(json.dumps({"choice": vars(model.plan.choice)}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        options = {"temperature": 0.0, "max_tokens": request["max_tokens"], "repetition_guard": False}
        result = model.generate(request["prompt"], **options)
        answer = {"ids": list(result.token_ids), "ms": result.timings.predicted_ms}
        print(json.dumps({**answer, "peak_bytes": result.memory.peak_bytes}), flush=True)


if __name__ == "__main__":
    main()
