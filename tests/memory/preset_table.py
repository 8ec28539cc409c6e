"""The table of presets in ``docs/devices.md``: python -m tests.memory.preset_table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from edge_rt.memory.device import PRESETS_FILE

DOCS = Path(__file__).parents[2] / "docs" / "devices.md"
_SHOWN = ("total_gb", "available_gb", "bandwidth_gb_s", "efficiency")


def table() -> Iterator[str]:
    """Yield its lines."""
    yield "| `--device` | GB | free | of the GPU | free | GB/s | share | sources |"
    yield "|---|---|---|---|---|---|---|---|"
    for entry in json.loads(PRESETS_FILE.read_text(encoding="utf-8"))["devices"]:
        gpu = entry.get("gpu", {})
        own = {"total_gb": "", "available_gb": ""}
        if gpu:
            own = {name: _figure(gpu[name]) if name in gpu else "shared" for name in own}
        computes = gpu or entry
        cells = [_figure(entry[name]) for name in _SHOWN[:2]] + list(own.values())
        cells += [_figure(computes[name]) for name in _SHOWN[2:]]
        yield f"| `{entry['name']}` | {' | '.join(cells)} | {'; '.join(_sources(entry, computes))} |"


def _figure(figure: Mapping[str, Any]) -> str:
    return f"{figure['value']} {figure['evidence']}"


def _sources(entry: Mapping[str, Any], computes: Mapping[str, Any]) -> Iterator[str]:
    places = [entry, *([computes] if computes is not entry else [])]
    figures = [place[name] for place in places for name in _SHOWN[:2] if name in place]
    figures += [computes[name] for name in _SHOWN[2:]]
    seen = {"estimate", "default share of the peak for devices without a measurement"}
    for figure in figures:
        if figure["source"] not in seen:
            seen.add(figure["source"])
            yield figure["source"].removeprefix("estimate: ")


if __name__ == "__main__":
    print("\n".join(table()))
