"""Entry point of the exporter: the checkpoint's header is checked before numpy or ONNX Runtime are imported."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge_rt.errors import ConfigError
from edge_rt.export.opening import open_checkpoint
from edge_rt.export.options import Adapters, ExportOptions
from edge_rt.package.manifest import BUILT_IN_CALIBRATION
from edge_rt.package.reader import absolute_path
from edge_rt.system.notebooks import usual_progress
from edge_rt.system.option_names import known_options
from edge_rt.system.progress import ProgressCallback

if TYPE_CHECKING:
    from edge_rt.export.estimate import ExportEstimate
    from edge_rt.export.exporter import ExportReport
    from edge_rt.export.preparing import ExportForecast
    from edge_rt.package.sampling import SamplingAdvice

__all__ = ["export_model", "export_with", "open_checkpoint", "plan_export", "plan_with"]


@known_options()
def export_model(
    source: str | Path,
    out: str | Path,
    *,
    via: str | None = None,
    profile: str | None = None,
    activations: str | None = None,
    weights: str | None = None,
    size: int | str | None = None,
    calibration: Path | str | None = BUILT_IN_CALIBRATION,
    kv: str | None = None,
    sampling: SamplingAdvice | None = None,
    force: bool = False,
    accept_loss: bool = False,
    exits: Sequence[int] = (),
    adapters: Adapters = (),
    progress: ProgressCallback | None = None,
    on_estimate: Callable[[ExportEstimate], None] | None = None,
    on_chatter: Callable[[str], None] | None = None,
) -> ExportReport:
    """Turn a checkpoint into a package.

    The destination is absent or complete at every moment: everything is written to a private folder beside it, compared
    with a plain numpy forward pass of the checkpoint, and then renamed.

    Args:
        source: a GGUF file (any part of a split one), or a folder with ``config.json``, safetensors and
            ``tokenizer.json``; of a supported architecture.
        out: folder to create.
        via: ``"transformers"``: transformers' own exporter traces the model, of any architecture, and the package has
            the op profile ``"traced"``; it needs the extra ``transformers``, and carries neither ``profile`` nor
            ``activations``, ``size``, a file of ``calibration``, ``kv``, ``accept_loss``, ``exits``, ``adapters``,
            nor ``weights`` but floats. None: edge-rt's own exporter, for the architectures that it knows.
        profile: ``"native"``: edge-rt's own operators, fast and exact; ``"portable"``: ONNX Runtime's; None: native if
            this machine can run it.
        activations: ``"int8"``: linear layers round their input to int8 per block of 32 (fast); ``"auto"``: the same,
            but in native packages the blocks that matter most, measured on the text of ``calibration``, have 16 bits;
            ``"float"``: no rounding, and the profile is the portable one. None: ``"auto"``.
        weights: types of the matrices. ``"keep"``: the checkpoint's; ``"int4"``: floats and 8 bits become 4 bits, with
            8 for embedding and head, and about 6 for half of the attention values and feed-forward
            outputs; ``"int8"``, ``"f16"``, ``"f32"``: floats become that. None: ``"keep"`` for GGUF files and folders
            that are quantised already, ``"int4"`` for folders of floats, and of what is converted to floats.
        size: most bytes of ``weights.bin``, or a text such as ``"700MiB"``, instead of ``weights``: every matrix gets 4
            to 8 bits, as its errors change the model's predictions. None: no limit.
        calibration: text to quantise weights with and, in the native profile, for the constants with which 4-bit keys
            (the cache formats ``int4`` and ``int4x2``) are written: ``"built-in"``; a UTF-8 file of at least 512
            tokens, or a ``.json`` file, a list of conversations, each a list of ``{"role": ..., "content": ...}``;
            None: weights are rounded without it, there are no constants, and no cache format is measured.
        kv: format of the KV cache that the package is loaded with by default, one of those of the op profile. None:
            in the native profile ``"int8"`` if it loses at most ``edge_rt.export.check.predictions.MAX_KV_LOSS`` nats
            a token more than ``"f16"`` on the calibration text, else ``"f16"``, as without such a text.
        sampling: recommended sampling values of the model; None: those in the checkpoint's keys ``general.sampling.*``
            or, without them, a ``generation_config.json`` beside it.
        force: replace a package at ``out``.
        accept_loss: accept weights that change the model's predictions by more than
            ``edge_rt.export.check.quality.MAX_KL``, with a warning.
        exits: numbers of layers behind which the graph is cut, the smallest first, such as ``(6, 10, 15)``: a draft can
            end there (``spec="exit"``). Native profile only; no exits make one graph.
        adapters: LoRA adapters that are merged into the checkpoint's floats before these are rounded, in their order:
            folders that PEFT wrote, or GGUF files of llama.cpp; with scales, or without them as they are. What is
            quantised already is rounded a second time, which has to be asked for by ``weights`` or ``size``.
        progress: called with the stages of ``STAGES``; None: they are shown in a notebook, and nowhere else.
        on_estimate: called once with the predicted disk and memory, before anything is written.
        on_chatter: called once, with ``via`` alone, with what the other exporter printed, also if it failed.

    Raises:
        InputError: the checkpoint is malformed, unsupported, or its template or tokenizer is; or the calibration text,
            or ``generation_config.json``.
        QualityLoss: quantising the weights changes the predictions too much, and ``accept_loss`` is not set.
        StorageError: the destination exists, or does not fit the disk.
        MemoryBudgetExceeded: the export does not fit the memory.
        ConfigError: ``profile``, ``activations``, ``kv`` or ``weights`` are unknown, or do not go together with each
            other, with ``size`` or with ``exits``, which must rise and lie between the layers; the model does not fit
            ``size``; a ``calibration`` text is named for the portable profile and weights that are not quantised; or
            ``adapters`` are given for a checkpoint that is quantised, and no ``weights``.
        RuntimeUnavailable: the native profile was asked for, and this machine cannot run it; or the extra
            ``transformers`` is not installed.
    """
    options = ExportOptions(
        via=via,
        profile=profile,
        activations=activations,
        weights=weights,
        size=size,
        calibration=calibration,
        kv=kv,
        sampling=sampling,
        force=force,
        accept_loss=accept_loss,
        exits=exits,
        adapters=adapters,
        progress=progress or usual_progress(),
        on_estimate=on_estimate,
        on_chatter=on_chatter,
    )
    return export_with(Path(source), Path(out), options)


def export_with(source: Path, out: Path, options: ExportOptions) -> ExportReport:
    """Export as ``export_model`` does."""
    started = time.monotonic()
    source = absolute_path(source)
    if options.via is not None:
        from edge_rt.export.traced.export import export_traced

        return export_traced(source, out, options, started)
    checkpoint, decoder = open_checkpoint(source, options.scales, rounds=options.chooses_types)
    from edge_rt.export.exporter import export_checkpoint

    return export_checkpoint(checkpoint, decoder, out, options, started)


def plan_export(source: str | Path, out: str | Path, **options: Any) -> ExportForecast:
    """Return what ``export_model`` with the same arguments would do; nothing is written and no tensor is read.

    Raises:
        ConfigError: ``via`` is given; what another exporter makes is not known beforehand.
    """
    return plan_with(Path(source), Path(out), ExportOptions(**options))


def plan_with(source: Path, out: Path, options: ExportOptions) -> ExportForecast:
    """Plan as ``plan_export`` does."""
    if options.via is not None:
        raise ConfigError(
            "An export through another exporter cannot be shown beforehand.",
            f"Got via {options.via!r:.40}.",
            "Leave out --dry-run, or --via.",
        )
    checkpoint, decoder = open_checkpoint(absolute_path(source), options.scales, rounds=options.chooses_types)
    from edge_rt.export.preparing import decide, forecast

    return forecast(checkpoint, decoder, decide(checkpoint, decoder, options), out, force=options.force)
