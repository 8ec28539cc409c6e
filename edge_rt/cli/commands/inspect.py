"""``edge-rt inspect``: facts about a package or a checkpoint, without loading it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from edge_rt.cli.options import flags
from edge_rt.cli.options.groups import ModelFlags, OutputFlags, PlaceFlags
from edge_rt.cli.options.spread import only
from edge_rt.cli.render.console import Terminal
from edge_rt.cli.render.inspect_report import (
    decoder_rows,
    drafter_rows,
    kv_text,
    placement_facts,
    placement_rows,
    rounding_rows,
    traced_rows,
    weights_rows,
)
from edge_rt.cli.render.stats import facts_lines
from edge_rt.device.names import AUTO, CPU, ON_CPU
from edge_rt.store.inspection import Inspected, inspect as inspect_model
from edge_rt.system.byte_size import counted

SHOWN_TEMPLATE_LINES = 12
NO_TEMPLATE = "none: chats are written as ChatML if its tokens are in the vocabulary, and refused if not"
_APART = (
    "rounding", "kv_losses", "chat_template", "placement", "weights", "decoder", "not_described", "traced", "drafters",
    "ahead",
)  # fmt: skip


@dataclass(frozen=True)
class InspectFlags:
    """Whether hashes are checked."""

    verify: Annotated[bool, flags.VERIFY] = False


def inspect(
    wanted: InspectFlags,
    load: Annotated[ModelFlags, only("named", "model", "device")],
    output: OutputFlags,
    places: Annotated[PlaceFlags, only("store", "config")],
) -> int:
    """Show the facts of a package, a checkpoint or a trained drafter: sizes, quantisation, licence, template.

    With --device cuda, vulkan or webgpu also which nodes of a package's graph run there.
    """
    terminal = output.terminal()
    device = ON_CPU
    if load.device not in (None, AUTO, CPU):
        from edge_rt.runtime.load.options import LoadOptions

        device = LoadOptions(device=load.device).device_name
    inspected = inspect_model(load.reference, places.open_store(), verify=wanted.verify)
    facts = inspected.facts
    if device.is_gpu and facts["kind"] == "package":
        facts["placement"] = placement_facts(Path(facts["path"]), device)
    if output.json:
        terminal.document(facts)
    elif facts["kind"] == "drafter":
        verified = "yes" if wanted.verify else "not checked (--verify)"
        terminal.table([("name", facts["name"]), ("verified", verified), *drafter_rows(facts)])
    else:
        _print(terminal, inspected, whole_template=output.verbose)
    return 0


def _print(terminal: Terminal, inspected: Inspected, *, whole_template: bool) -> None:
    from edge_rt.system.byte_size import human_bytes

    facts, weights, decoder = inspected.facts, inspected.weights, inspected.decoder
    template = facts["chat_template"]
    sections = {name: facts[name] for name in ("model", "metadata") if name in facts}
    sizes = {name: facts[name] for name in ("files", "bytes_by_type", "experts") if name in facts}
    flat = {name: value for name, value in facts.items() if name not in {*sections, *sizes, *_APART}}
    if "source" in flat:
        source = dict(flat["source"])
        adapters = {f"adapter {number}": one for number, one in enumerate(source.pop("adapters"), 1)}
        flat |= {"source": source, **adapters}
    flat["size"] = human_bytes(flat.pop("size_bytes"))
    if "verified" in flat:
        flat["verified"] = "yes" if flat["verified"] else "not checked (--verify)"
    if (advised := flat.pop("recommended_sampling", None)) is not None:
        flat["sampling"] = {
            name: f"{value} (the model's)" if name in advised else value for name, value in flat["sampling"].items()
        }
    for heading, parts in sizes.items():
        flat[heading] = {part: human_bytes(size) for part, size in parts.items()}
    rows = facts_lines(flat)
    if facts["kind"] == "package":
        rows.append(("KV cache", kv_text(facts["kv_formats"], inspected.kv_losses)))
    terminal.table(rows)
    if weights is not None:
        terminal.line("\nweights")
        terminal.table(("", *row) for row in weights_rows(weights))
    if facts.get("rounding") is not None:
        terminal.line("\nactivations")
        terminal.table(("", *row) for row in rounding_rows(facts["rounding"]))
    if decoder is not None:
        terminal.line("\ndecoder")
        terminal.table(("", *row) for row in decoder_rows(decoder, inspected.ahead))
    elif reason := facts.get("not_described"):
        terminal.line(f"\ndecoder: no description. {reason}")
    if facts.get("traced") is not None:
        terminal.line("\ntraced graph")
        terminal.table(("", *row) for row in traced_rows(facts["traced"]))
    if "placement" in facts:
        terminal.line("\nplacement")
        terminal.table(("", *row) for row in placement_rows(facts["placement"]))
    for drafter in facts.get("drafters", ()):
        terminal.line(f"\ndrafter {drafter['name']}")
        terminal.table(("", *row) for row in drafter_rows(drafter))
    for name, section in sections.items():
        terminal.line(f"\n{name}")
        terminal.table(("", *row) for row in facts_lines(section))
    terminal.line("\nchat template")
    lines = (template or NO_TEMPLATE).splitlines()
    shown = lines if whole_template else lines[:SHOWN_TEMPLATE_LINES]
    for line in shown:
        terminal.line(f"  {line}")
    if len(lines) > len(shown):
        terminal.note(f"  ... {counted(len(lines) - len(shown), 'more line')}, shown with -v", "dim")
