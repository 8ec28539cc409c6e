"""Creates the IO binding of a package; the only place that distinguishes op profiles."""

from __future__ import annotations

from collections.abc import Sequence

from edge_rt.errors import ConfigError
from edge_rt.ort.compute_device import ComputeDevice
from edge_rt.package.manifest import KV_FORMATS, Manifest
from edge_rt.package.spec_modes import MAX_DRAFT
from edge_rt.package.states import CHECKPOINTS
from edge_rt.runtime.forward.io_binding_base import IOBinding
from edge_rt.runtime.forward.io_binding_native import LARGEST_PASS, NativeIOBinding


def usable_formats(manifest: Manifest) -> list[str]:
    """Return the cache formats of a package that this version supports, preferred first."""
    return [name for name in manifest.kv_formats if name in KV_FORMATS[manifest.op_profile]]


def check_kv_format(manifest: Manifest, name: str) -> None:
    """Refuse a cache format that a package does not have."""
    usable = usable_formats(manifest)
    if name not in usable:
        known = name in KV_FORMATS[manifest.op_profile]
        other = "export the model again, with this version" if known else "leave it out"
        raise ConfigError(
            "The package's KV cache has no such format.",
            f"Got {name!r:.40}; with the op profile {manifest.op_profile} it can be {', '.join(usable)}.",
            f"Choose one of these, or {other}.",
        )


def open_io_binding(
    manifest: Manifest,
    capacity: int,
    kv_format: str | Sequence[str] | None,
    *,
    largest_pass: int = LARGEST_PASS,
    hidden: bool = False,
    stream: bool = False,
    sequences: int = 0,
    rows: int | None = None,
    drafts: int = MAX_DRAFT + 1,
    checkpoints: int = CHECKPOINTS,
    device: ComputeDevice | None = None,
    host_layers: int = 0,
) -> IOBinding:
    """Return the IO binding for a package's op profile, with cache memory for ``capacity`` tokens.

    Args:
        kv_format: one format for the cache, or one per layer; None takes the one that the package prefers.
        hidden: whether passes return hidden states (``Outputs.hidden``); the session must then be opened with the
            binding's ``more_outputs``.
        stream: whether they return the stream of all rows (``Outputs.stream``), in packages with a block that predicts
            further ahead, in this process.
        sequences: most of one pass, where the package and the device compute several; 0: one has the cache.
        rows: that these share; None: as in ``NativeIOBinding``.
        drafts: most of a pass, where layers have states; ``checkpoints``: of these, how many are kept, in this process.
        device: where the cache lies, one that the package can run on (``open_device``); None: in this process.
        host_layers: with a device: how many layers, the first ones, the CPU computes, with their cache in this process.
    """
    kv_format = usable_formats(manifest)[0] if kv_format is None else kv_format
    formats, layers = (kv_format,) if isinstance(kv_format, str) else tuple(kv_format), manifest.model.num_layers
    for name in formats:
        check_kv_format(manifest, name)
    if not isinstance(kv_format, str) and len(formats) != layers:
        raise ConfigError(
            "The KV cache needs a format for every layer.",
            f"Got {len(formats)}, the model has {layers}.",
            "Give one format for all of them, or one for each.",
        )
    if hidden and manifest.op_profile != NativeIOBinding.profile:
        raise ConfigError(
            "Graphs of this op profile return no hidden states.",
            f"The op profile is {manifest.op_profile}; native graphs return them.",
            "Leave them out, or export the model with the profile native.",
        )
    if manifest.op_profile == "traced":
        from edge_rt.runtime.forward.io_binding_portable import TracedIOBinding

        assert device is None, device
        return TracedIOBinding(manifest.model, capacity, formats[0])
    decoder = manifest.decoder
    assert decoder is not None, manifest.op_profile
    if device is not None and manifest.op_profile == NativeIOBinding.profile:
        from edge_rt.runtime.forward.io_binding_gpu import GpuIOBinding

        return GpuIOBinding(
            decoder,
            capacity,
            kv_format,
            device=device,
            sequences=sequences,
            rows=rows,
            largest_pass=largest_pass,
            drafts=drafts,
            checkpoints=checkpoints,
            hidden=hidden,
            stream=stream,
            host_layers=host_layers,
        )
    assert not host_layers, host_layers
    if device is not None:
        from edge_rt.runtime.forward.io_binding_gpu import DeviceIOBinding

        assert manifest.op_profile == DeviceIOBinding.profile, manifest.op_profile
        return DeviceIOBinding(decoder, capacity, formats[0], device=device)
    if manifest.op_profile == "portable":
        from edge_rt.runtime.forward.io_binding_portable import PortableIOBinding

        return PortableIOBinding(decoder, capacity, formats[0])
    return NativeIOBinding(
        decoder,
        capacity,
        kv_format,
        sequences=sequences,
        rows=rows,
        largest_pass=largest_pass,
        drafts=drafts,
        checkpoints=checkpoints,
        hidden=hidden,
        stream=stream,
    )
