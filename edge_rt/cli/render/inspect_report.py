"""What a model computes, layer by layer, as rows of a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge_rt.device.names import CPU_BITS, SELF_TEST, VULKAN, DeviceName
from edge_rt.errors import ErrorJSON, MemoryBudgetExceeded
from edge_rt.system.byte_size import counted, exact_size, human_bytes, round_up, show_at_least, show_size

if TYPE_CHECKING:
    from edge_rt.device.provider import GpuProviders
    from edge_rt.export import ExportForecast
    from edge_rt.ort.compute_device import ComputeDevice
    from edge_rt.ort.providers import ProviderState
    from edge_rt.package.ahead import AheadInfo
    from edge_rt.package.decoder import Decoder, Rope
    from edge_rt.package.layers import Attention, Experts, Layer
    from edge_rt.package.manifest import KvLosses
    from edge_rt.package.weights_info import Quality, TensorClass, WeightsInfo

Row = tuple[str, str]

_FACTORS = ("embedding_scale", "residual_scale", "logit_scale")
_QK_NORMS = {"none": "", "head": "norms of heads", "row": "norms of rows"}


def decoder_rows(decoder: Decoder, ahead: AheadInfo | None = None) -> list[Row]:
    """Return the rows about a decoder: each kind of layer once, with the numbers of its layers; and a block ahead."""
    rows = [("family", decoder.family)]
    for number, kind in enumerate(decoder.kinds):
        layers = [layer for layer, found in enumerate(decoder.pattern) if found == number]
        name = "every layer" if len(decoder.kinds) == 1 else f"layers {ranges(layers)}"
        rows.append((name, _layer_text(kind, decoder)))
    if ahead is not None:
        tokens = f"guesses the first {ahead.vocabulary} tokens"
        rows.append(("block ahead", f"{_layer_text(ahead.layer, decoder)}; {tokens}"))
    rows.append(
        ("norms", f"{'LayerNorm' if decoder.norm == 'layer' else 'RMSNorm'}, epsilon {decoder.norm_epsilon:.6g}")
    )
    rows += [(name.replace("_", " "), f"{value:.6g}") for name in _FACTORS if (value := getattr(decoder, name)) != 1.0]
    if decoder.logit_softcap:
        rows.append(("soft-cap of logits", f"{decoder.logit_softcap:.6g}"))
    where = "when the package is loaded" if decoder.loads_rope else "weights.bin"
    rows.append(("tables of rotations", where))
    return rows


def ranges(numbers: list[int]) -> str:
    """Return ascending numbers as text, neighbours joined: ``0-4, 6-10``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def rounding_rows(rounding: Mapping[str, Any]) -> list[Row]:
    """Return the rows about activations that have 16 bits, and what rounding the others to 8 changes."""
    fine = rounding["fine_blocks"]
    blocks = counted(sum(map(len, fine.values())), "block")
    layers: dict[str, list[int]] = {}
    for name in fine:
        layer, _, kind = name.rpartition(".")
        layers.setdefault(kind, []).extend([int(layer.removeprefix("layer"))] if layer else [])
    inputs = (f"{kind} {ranges(sorted(numbers))}" if numbers else kind for kind, numbers in layers.items())
    return [
        (
            "KL from float activations",
            f"{rounding['kl']:.3g} nats a token, {rounding['int8_kl']:.3g} with 8 bits alone",
        ),
        ("measured on", counted(rounding["tokens"], "token")),
        ("16 bits", f"{blocks} of 32 in {counted(len(fine), 'input')}"),
        ("of layers", "; ".join(inputs) or "-"),
    ]


def _layer_text(layer: Layer, decoder: Decoder) -> str:
    parts = list(_mixer_texts(layer, decoder))
    for inner in layer.feed_forwards:
        parts.append(f"{inner.activation} {'with' if inner.is_gated else 'without'} a gate, {inner.size}")
        if inner.limit:
            parts[-1] += f", limits {inner.limit:.6g}"
        if inner.has_bias:
            parts[-1] += ", biases"
    if layer.experts is not None:
        parts[-1] += f", {_experts_text(layer.experts)}"
    if layer.has_post_norms:
        parts.append("norms before and behind" if layer.has_pre_norms else "norms behind only")
    return "; ".join(parts)


def _experts_text(experts: Experts) -> str:
    text = f"{experts.chosen} of {counted(experts.count, 'expert')}"
    if experts.groups > 1:
        text += f" in {experts.chosen_groups} of {experts.groups} groups"
    if experts.latent:
        text += f", of {experts.latent} latent features"
    if experts.has_own_norms:
        text += " beside it, with norms of their own"
    if experts.has_scales:
        text += ", scales"
    return f"{text}, a gate of the other" if experts.has_shared_gate else text


def _mixer_texts(layer: Layer, decoder: Decoder) -> Iterator[str]:
    if layer.attention is not None:
        yield _attention_text(layer.attention, decoder)
    if (delta := layer.gated_delta) is not None:
        heads = f"{counted(delta.value_heads, 'head')} of {delta.value_dim} over {delta.key_heads} of {delta.key_dim}"
        yield f"gated delta rule, {heads}, convolution over {counted(delta.taps, 'row')}"
    if (space := layer.state_space) is not None:
        heads = f"{counted(space.heads, 'head')} of {space.head_dim} in {counted(space.groups, 'group')}"
        yield f"state space, {heads}, states of {space.state_size}, convolution over {counted(space.taps, 'row')}"
    if layer.short_conv is not None:
        biases = ", biases" if layer.short_conv.has_bias else ""
        yield f"short convolution over {counted(layer.short_conv.taps, 'row')}{biases}"


def _attention_text(attention: Attention, decoder: Decoder) -> str:
    parts = [f"{counted(attention.num_heads, 'head')} of {attention.head_dim} over {attention.num_kv_heads}"]
    parts.append(f"window {attention.window}" if attention.window else "all tokens")
    parts.append("no rotation" if attention.rope is None else _rope_text(decoder.ropes[attention.rope], attention))
    if norms := _QK_NORMS[attention.qk_norm]:
        parts.append(f"{norms} behind the rotation" if attention.norm_after_rope else norms)
    if attention.softcap:
        parts.append(f"soft-cap {attention.softcap:.6g}")
    if attention.has_qkv_bias:
        parts.append("biases of q, k, v and output" if attention.has_output_bias else "biases of q, k, v")
    if attention.has_gate:
        parts.append("gates of the output")
    if attention.has_sinks:
        parts.append("sinks")
    if (scaling := attention.query_scaling) is not None:
        parts.append(f"queries grow from position {scaling.original_context}")
    return ", ".join(parts)


def _rope_text(rope: Rope, attention: Attention) -> str:
    text = f"rope {rope.kind} {rope.base:.6g}"
    if rope.dimensions != attention.head_dim:
        text += f" of {rope.dimensions}"
    if rope.long_frequencies:
        text += f" (others in loads with a context beyond {rope.short_context})"
    return text


def drafter_rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the facts of a drafter as rows of two columns."""
    rows = [("path", facts["path"])]
    if "acceptance" in facts:
        head, training, measured = facts["head"], facts["training"], facts["acceptance"]
        formats = ", ".join(f"{name} {form}" for name, form in head["formats"].items())
        shares = ", ".join(f"{share:.2f}" for share in measured["positions"])
        blocks = counted(head["blocks"], "block")
        rows += [
            (
                "kind",
                f"{facts['drafter_kind']}, {human_bytes(facts['size_bytes'])}, {facts['license'] or 'no licence'}",
            ),
            ("trained for", f"{facts['target']['name']}, checkpoint {facts['target']['source_sha256'][:12]}"),
            (
                "head",
                f"{blocks} of {head['intermediate_size']}, {head['vocabulary_size']} tokens",
            ),
            ("matrices", formats),
            *_acceptance_rows(facts["exits"], measured, shares),
            ("training", f"{training['recipe']}, seed {training['seed']}, {training['steps']} steps"),
            ("data", f"{training['tokens']} tokens, {training['epochs']:g} epochs, {training['hours']:g} h"),
            ("texts", training["data"]),
        ]
    if "origin" in facts:
        rows.append(("found", f"{_PLACES[facts['origin']]}; {facts['reason'] or 'fits'}"))
    return rows


def _acceptance_rows(exits: list[dict[str, Any]], measured: dict[str, Any], shares: str) -> list[tuple[str, str]]:
    if not exits:
        return [
            ("acceptance", f"{shares} by position on {measured['tokens']} tokens"),
            ("first token", f"{measured['top2']:.2f} among 2, {measured['top4']:.2f} among 4"),
        ]
    return [
        (
            f"exit {one['layer']}",
            f"{one['top1']:.2f} of {measured['tokens']} tokens, {one['top2']:.2f} among 2, {one['top4']:.2f} among 4",
        )
        for one in exits
    ]


_PLACES = {"package": "in the package's folder", "installed": "installed with edge-rt"}


def traced_rows(traced: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the rows about a traced graph; ``traced`` are the fields of ``TracedInfo``."""
    rows = traced["exact_rows"]
    speculation = (
        f"chains: up to {rows} tokens computed together have the bits of single ones, checked at the export"
        if rows > 1
        else "off: tokens that are computed together do not have the bits of single ones"
    )
    return [
        ("exporter", str(traced["exporter"])),
        ("speculation", speculation),
        ("packed by ONNX Runtime", human_bytes(traced["packed_bytes"])),
        ("read in place", human_bytes(traced["mapped_bytes"])),
    ]


def weights_rows(info: WeightsInfo) -> list[Row]:
    """Return the rows about weights that were quantised."""
    choice = info.choice if not info.size else f"at most {show_size(info.size)}"
    text = "no text" if info.calibration is None else f"{info.calibration}, {info.calibration_tokens} tokens"
    rows = [("weights", choice), ("calibration of weights", text)]
    rows += [(_title(name), _class_text(found)) for name, found in info.classes.items()]
    if info.quality is not None:
        rows += _quality_rows(info.quality)
    return rows


def kv_text(formats: Sequence[str], losses: KvLosses | None) -> str:
    """Return the default format of a package's cache, and what it was chosen by.

    Args:
        formats: of the package, the default first.
    """
    if len(formats) == 1:
        return f"{formats[0]}, the only format"
    if losses is None:
        return f"{formats[0]} by default, not measured"
    measured = "; ".join(
        f"{name} {loss.kl:.2g} nats, {100 * loss.same_best:.1f} %" for name, loss in losses.formats.items()
    )
    return (
        f"{formats[0]} by default, measured at the export on {losses.tokens} tokens ({losses.source}). KL from a cache "
        f"in f32, same best token: {measured}. int8 may lose {losses.bound:g} nats more than f16"
    )


def forecast_rows(found: ExportForecast) -> list[Row]:
    """Return the rows of a dry run."""
    choice = found.choice if not found.size else f"at most {show_size(found.size)}"
    rows = [
        ("op profile", found.profile),
        ("disk", f"at most {human_bytes(found.disk_bytes)}"),
        ("memory", f"at most {show_size(found.peak_memory_bytes)}"),
        ("weights", choice),
    ]
    for name, one in found.classes.items():
        text = _class_text(one)
        if found.most is not None:
            most = found.most[name]
            text = f"{_types(one.types)} to {_types(most.types)}, {one.bits:.2f} to {most.bits:.2f} bits a weight"
        rows.append((_title(name), text))
    return rows


def sufficient(peak_bytes: int) -> int:
    """Return a budget in which an export that was predicted to reach so many bytes is not refused again.

    What a process holds before it exports is part of the prediction; processes differ by up to 3 MiB.
    """
    return round_up(peak_bytes + (4 << 20))


def over_budget(found: ExportForecast, budget: int | None) -> ErrorJSON | None:
    """Return why an export would be refused under a memory budget, in bytes; None if it would not."""
    if budget is None or found.peak_memory_bytes <= budget:
        return None
    return MemoryBudgetExceeded(
        "The export does not fit the memory budget.",
        f"It may need up to {show_at_least(found.peak_memory_bytes)}; the budget is {show_size(budget)}.",
        f"Give --memory {exact_size(sufficient(found.peak_memory_bytes))}, or export on another machine: a package "
        "runs anywhere.",
    ).to_json()


def _class_text(found: TensorClass) -> str:
    error = "" if found.error is None else f", error {100 * found.error:.3g} %"
    if found.upper_error is not None:
        error += f", of its 4-bit view {100 * found.upper_error:.3g} %"
    return f"{_types(found.types)}, {found.bits:.2f} bits a weight{error}"


def _types(types: Mapping[str, int]) -> str:
    """Return types with their shares of the weights, the largest first."""
    total = max(1, sum(types.values()))
    if len(types) == 1:
        return next(iter(types))
    ranked = sorted(types.items(), key=lambda item: -item[1])
    return " + ".join(f"{name} ({100 * count / total:.0f} %)" for name, count in ranked)


def _title(name: str) -> str:
    return name.replace("_", "-")


def _quality_rows(quality: Quality) -> list[Row]:
    where = "held-out tokens" if quality.is_held_out else "tokens that it was also fitted to"
    return [
        ("KL divergence", f"{quality.kl:.3g} nats a token, on {quality.tokens} {where}"),
        ("perplexity", f"{quality.perplexity:.4g} (checkpoint: {quality.float_perplexity:.4g})"),
    ]


def device_facts(states: list[ProviderState]) -> dict[str, Any]:
    """Return kind of device -> its devices, or why there is none, as a JSON object."""
    return {state.kind: str(state.problem) if state.problem is not None else _listed(state) for state in states}


def _listed(state: ProviderState) -> list[dict[str, Any]]:
    """Return the devices of a kind; those that nothing can be computed on have a refusal."""
    found = [{**device.facts, **_bits_facts(device), "is_software": device.is_software} for device in state.devices]
    refused = [
        {"device": str(gpu.device_name), "text": gpu.name, "is_software": gpu.is_software, "refusal": str(why)}
        for gpu, why in state.refused
    ]
    return [*found, *refused]


def device_lines(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the name of every device, or the kind that there is none of, with a text for people."""
    lines: list[tuple[str, str]] = []
    for kind, found in facts.items():
        if isinstance(found, str):
            lines.append((kind, found))
        else:
            lines += [(one["device"], f"{one['text']} ({_more(one)})") for one in found]
    return lines


def _more(device: dict[str, Any]) -> str:
    if "refusal" in device:
        return str(device["refusal"])
    if "memory_bytes" not in device:
        return f"{device['provider']} {device['version']}"
    shared = " shared with the machine" if device["shares_memory"] else ""
    memory = f"{show_size(device['memory_bytes'])}{shared}"
    if "architecture" in device:
        return f"{device['architecture']}, {memory}, driver of CUDA {device['driver']}, {device['provider']}"
    dots = "8-bit dot products" if device["int8_dots"] else "no 8-bit dot products"
    halves = "16-bit storage" if device["halves"] else "no 16-bit storage"
    driver = f"driver {device['driver']}, {device['provider']}"
    return f"{device['type']}, {memory}, {dots}, {halves}, {driver}, {bits_text(device)}"


def _bits_facts(device: ComputeDevice) -> dict[str, Any]:
    """Return what is known of a device's bits where they need not be the CPU's; None: it was not tested yet."""
    if device.name.kind != VULKAN:
        return {}
    known = device.details.get(CPU_BITS)
    return {CPU_BITS: known, SELF_TEST: None if known is None else dict(device.operations)}


def bits_text(facts: Mapping[str, Any]) -> str:
    """Return what is known of a device's bits, and which operations are not as they are; see ``_bits_facts``."""
    if facts[CPU_BITS] is None:
        return "its bits were not compared with the CPU's yet: the first use does"
    text = "the CPU's bits" if facts[CPU_BITS] else "exact on this device only: its bits are not the CPU's"
    for how in ("mended", "differs"):
        if named := [name for name, found in facts[SELF_TEST].items() if found == how]:
            text += f"; {how}: {' / '.join(named)}"
    return text


def placement_facts(path: Path, device: DeviceName, own: GpuProviders | None = None) -> dict[str, Any]:
    """Return where the nodes of a package run on a device, as a JSON object.

    Args:
        own: edge-rt's own providers; None: the installed ones.
    """
    from edge_rt.device.installed import INSTALLED
    from edge_rt.ort.providers import placement
    from edge_rt.package.reader import open_package

    place = placement(open_package(path), device, own or INSTALLED)
    return {
        "device": str(place.device.name),
        "nodes": dict(Counter(node.provider for node in place.nodes)),
        "cpu_nodes": [f"{node.name} ({node.operator})" for node in place.nodes if node.is_on_cpu],
        **_bits_facts(place.device),
        **({} if place.mapped_bytes is None else {"mapped_bytes": place.mapped_bytes}),
        **({} if place.copied_bytes is None else {"copied_bytes": place.copied_bytes}),
    }


def placement_rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the same as rows of a table."""
    rows = [("device", str(facts["device"]))]
    rows += [(provider, counted(count, "node")) for provider, count in facts["nodes"].items()]
    rows += [("bits", bits_text(facts))] if CPU_BITS in facts else []
    ways = (("mapped_bytes", "read where the file is mapped"), ("copied_bytes", "copied to the device"))
    rows += [("weights", f"{show_size(facts[key])} {text}") for key, text in ways if facts.get(key)]
    return [*rows, ("on the CPU", ", ".join(facts["cpu_nodes"]) or "none")]
