"""Folder of transformers -> package with a traced graph: read, trace, adapt, write, check, publish."""

from __future__ import annotations

import functools
import gc
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from edge_rt.errors import InputError, InvalidModelFile, UnsupportedModel
from edge_rt.export.check.compare import CheckResult
from edge_rt.export.checkpoint import text_warnings
from edge_rt.export.estimate import require_room
from edge_rt.export.exporter import ExportReport, Stages, report_of
from edge_rt.export.families.folder import describe_folder
from edge_rt.export.families.registry import require_decoder
from edge_rt.export.graph.onnx_ir_import import ir
from edge_rt.export.options import ExportOptions
from edge_rt.export.sources.hf_folder import HFFolder, hf_source, read_hf_config, read_hf_folder
from edge_rt.export.sources.source import Source, TokenizerBuild
from edge_rt.export.traced import passes as check, store
from edge_rt.export.traced.interface import TracedInterface, find_interface
from edge_rt.export.traced.pass_memory import estimate_trace, packed_and_mapped, pass_points
from edge_rt.export.traced.passes import TracedPasses
from edge_rt.export.traced.rewrite import adapt
from edge_rt.export.traced.store import simplify, write_out
from edge_rt.export.traced.tracing import ModelNumbers, Trace, chatter, require_tracer, run_worker
from edge_rt.export.writing import GRAPH_FILE, write_texts
from edge_rt.package.decoder import Decoder, Dimensions, Model
from edge_rt.package.manifest import (
    FORMAT_VERSION,
    KV_FORMATS,
    TEMPLATE_FILE,
    TOKENIZER_FILE,
    TOOL_TEMPLATE_FILE,
    Manifest,
    Segment,
    SourceInfo,
    TokenizerInfo,
)
from edge_rt.package.reader import absolute_path, stored_name
from edge_rt.package.sampling import SamplingAdvice
from edge_rt.package.weights_info import TracedInfo
from edge_rt.package.writer import PackageWriter
from edge_rt.system.checkpoint_names import folder_name
from edge_rt.system.files import sha256_files
from edge_rt.text.tokenizer import Tokenizer
from edge_rt.version import VERSION

PROFILE: Final = "traced"
STAGES: Final = ("read", "plan", "trace", "weights", "graph", "check", "publish")
"""Names of the stages, in order."""
_TRACE_FOLDER: Final = "trace"

Tracer = Callable[[Path, Path], Trace]


def export_traced(
    path: Path, out: Path, options: ExportOptions, started: float, tracer: Tracer | None = None
) -> ExportReport:
    """Export a folder through transformers' own exporter.

    Args:
        tracer: traces the model of a folder into another one; None: transformers, in a process of its own.
    """
    stage = Stages(STAGES, options.progress, started)
    stage("read")
    PackageWriter(out, force=options.force).check_destination()
    folder = _read(path)
    # Nobody installs torch for a model that is refused then.
    if tracer is None:
        require_tracer()
    source = hf_source(folder, {})
    advice = source.read_advice() if options.sampling is None else options.sampling
    if isinstance(rows := folder.config.get("vocab_size"), int):
        # A tokenizer that cannot be used is refused before the minutes of a trace.
        source.build_tokenizer(rows)
    stage("plan")
    estimate = estimate_trace(folder)
    if options.on_estimate is not None:
        options.on_estimate(estimate)
    require_room(estimate, absolute_path(out))
    with PackageWriter(out, force=options.force) as writer:
        stage("trace", message="transformers traces the model")
        traces = writer.folder / _TRACE_FOLDER
        trace = _trace(path, traces, run_worker if tracer is None else tracer, options.on_chatter)
        stage("weights")
        model, interface, info = _adapted(trace, writer.folder, functools.partial(stage, "weights"))
        described = _model(folder, trace.numbers, interface, trace.logits.shape[1])
        stage("graph")
        tokenizer = source.build_tokenizer(described.vocab_size)
        loaded = Tokenizer.from_text(tokenizer.json_text, info=tokenizer, embedding_rows=described.vocab_size)
        write_texts(tokenizer, writer.folder)
        store.write_graph(model, writer.folder / GRAPH_FILE)
        del model
        shutil.rmtree(traces)
        gc.collect()
        stage("check")
        result, rows_alike = _check(writer.folder / GRAPH_FILE, described, trace)
        gc.collect()
        stage("publish")
        package = writer.publish(
            _manifest(source, described, trace.numbers.num_parameters, tokenizer, advice, info(rows_alike))
        )
    stage("publish", 1, 1, "done")
    warnings = (*source.remarks, *text_warnings(tokenizer, loaded))
    return report_of(package, estimate, (result,), warnings, stage.seconds())


def _trace(path: Path, traces: Path, tracer: Tracer, on_chatter: Callable[[str], None] | None) -> Trace:
    traces.mkdir()
    try:
        return tracer(path, traces)
    finally:
        if on_chatter is not None:
            on_chatter(chatter(traces))


def _read(path: Path) -> HFFolder:
    """Read the headers of a folder."""
    if not path.is_dir():
        raise UnsupportedModel(
            f"{path.name} is not a folder of transformers.",
            "Only such folders can be exported via transformers.",
            "Leave --via out, or give the folder of the original model.",
        )
    require_decoder(path.resolve().name, read_hf_config(path))
    folder = read_hf_folder(path)
    if "quantization_config" in folder.config:
        raise UnsupportedModel(
            f"{path.resolve().name}: its weights are quantised already.",
            "Via transformers, only weights of floats are exported.",
            "Give the folder of the model that it was quantised from.",
        )
    return folder


def _adapted(
    trace: Trace, out: Path, on_bytes: Callable[[int, int], None]
) -> tuple[ir.Model, TracedInterface, Callable[[int], TracedInfo]]:
    """Return the graph of a package, whose weights were written to ``out``; and a maker of what is known of it."""
    name, vocab_size = trace.numbers.architecture, trace.logits.shape[1]
    model = write_out(ir.load(trace.graph))
    interface = find_interface(model.graph, name, trace.exporter)
    sizes = interface.dimensions
    adapt(model, interface, vocab_size, name)
    simplify(model, f"edge-rt {VERSION}")
    packed, mapped = packed_and_mapped(model.graph)
    store.write_weights(model, store.place(model), out, on_bytes)
    points, nodes = pass_points(model, sizes), model.graph.num_nodes()

    def info(exact_rows: int) -> TracedInfo:
        return TracedInfo(
            exporter=trace.exporter,
            exact_rows=exact_rows,
            packed_bytes=packed,
            mapped_bytes=mapped,
            nodes=nodes,
            passes=points,
        )

    return model, interface, info


def _check(graph: Path, model: Model, trace: Trace) -> tuple[CheckResult, int]:
    capacity = check.check_capacity(model.context_length)
    passes = TracedPasses(graph, model, max(capacity, len(trace.token_ids)))
    result = check.check_logits(passes, trace.token_ids, trace.logits)
    return result, check.exact_rows(passes, model.vocab_size, capacity)


def _model(folder: HFFolder, numbers: ModelNumbers, interface: TracedInterface, vocab_size: int) -> Model:
    """Return the description of a model whose family is known, else plausible dimensions."""
    graph = (interface.num_layers, interface.kv_heads, interface.head_dim, vocab_size)
    try:
        _, decoder = describe_folder(folder)
    except InputError:
        pass  # of a family, or a variant of one, that edge-rt does not compute itself
    else:
        if (decoder.num_layers, decoder.num_kv_heads, decoder.head_dim, decoder.vocab_size) == graph:
            return decoder
    for name, value, least in (
        ("hidden_size", numbers.hidden_size, 1),
        ("num_attention_heads", numbers.num_heads, 1),
        ("max_position_embeddings", int(numbers.context_length), 2),
    ):
        if value < least:
            raise InvalidModelFile(
                f"{folder.path.name}: the configuration lacks a number.",
                f"{name!r} is {value}, at least {least}.",
                "Fetch it again.",
            )
    heads = numbers.num_heads
    return Dimensions(
        name=stored_name(Path(folder_name(folder.path)))[:200],
        family=numbers.architecture,
        hidden_size=numbers.hidden_size,
        num_layers=interface.num_layers,
        num_heads=heads if heads % interface.kv_heads == 0 else interface.kv_heads,
        num_kv_heads=interface.kv_heads,
        head_dim=interface.head_dim,
        intermediate_size=int(numbers.intermediate_size) or 4 * numbers.hidden_size,
        vocab_size=vocab_size,
        context_length=int(numbers.context_length),
        norm_epsilon=float(numbers.norm_epsilon) or 1e-5,
        is_tied=numbers.tied_embedding,
    )


def _manifest(
    source: Source,
    model: Model,
    num_parameters: int,
    tokenizer: TokenizerBuild,
    advice: SamplingAdvice | None,
    info: TracedInfo,
) -> Manifest:
    types: dict[str, Any] = dict.fromkeys(("embedding", "attention", "feed_forward", "head"), "F32")
    return Manifest(
        format_version=FORMAT_VERSION,
        producer=f"edge-rt {VERSION}",
        num_parameters=num_parameters,
        op_profile=PROFILE,
        activations="float",
        quantisation=types,
        kv_formats=KV_FORMATS[PROFILE],
        segments=(Segment("model", GRAPH_FILE, 0, model.num_layers),),
        tokenizer=TokenizerInfo(TOKENIZER_FILE, tokenizer.bos_token_id, tokenizer.eos_token_ids, tokenizer.add_bos),
        chat_template=TEMPLATE_FILE if tokenizer.chat_template is not None else None,
        tool_template=TOOL_TEMPLATE_FILE if tokenizer.tool_template is not None else None,
        source=SourceInfo(source.kind, stored_name(source.path), sha256_files(source.paths), source.size),
        license=source.license,
        sampling=advice,
        decoder=model if isinstance(model, Decoder) else None,
        dimensions=model if isinstance(model, Dimensions) else None,
        traced=info,
        files={},
    )
