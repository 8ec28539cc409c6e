"""What can be trained for which package: checked before torch is loaded, and before anything is written."""

from __future__ import annotations

from collections.abc import Iterator

from edge_rt.errors import ConfigError, UnsupportedModel
from edge_rt.package.layers import Layer
from edge_rt.package.manifest import Manifest
from edge_rt.package.reader import Package
from edge_rt.system.byte_size import counted


def require_trainable(package: Package, exits: tuple[int, ...], unrolled: int) -> None:
    """Refuse a package for which no head, or no adapters of exits, can be trained.

    Args:
        exits: those that adapters are to be trained for; none: a head.
    """
    manifest = package.manifest
    if manifest.op_profile != "native":
        raise UnsupportedModel(
            "No drafter can be trained for this package.",
            f"Its op profile is {manifest.op_profile!r}; 'native' is needed.",
            "Export the model again with --profile native.",
        )
    if missing := set(exits).difference(manifest.exits):
        raise ConfigError(
            "The package has not all of these exits.",
            f"It has {', '.join(map(str, manifest.exits)) or 'none'}; {min(missing)} was asked for.",
            "Name exits of the package, or export the model again with --exits.",
        )
    if exits and unrolled != 1:
        raise ConfigError(
            "The adapter of an exit guesses one token.",
            f"{unrolled} steps were to be unrolled.",
            "Leave out --unrolled.",
        )


def require_draft_model(package: Package, layers: int) -> None:
    """Refuse a package for which no draft model can be trained."""
    require_plain(package)
    if not 1 <= layers < package.manifest.model.num_layers:
        raise ConfigError(
            "The draft model must have fewer layers than the model.",
            f"Asked for are {layers}, the model has {package.manifest.model.num_layers}.",
            "Give fewer --layers.",
        )


def require_plain(package: Package) -> None:
    """Refuse a package whose layers a small llama cannot start from."""
    manifest = package.manifest
    if manifest.op_profile != "native" or len(manifest.segments) != 1:
        raise UnsupportedModel(
            "No draft model can be trained for this package.",
            f"Its op profile is {manifest.op_profile!r}, with {counted(len(manifest.segments), 'segment')}; "
            "'native' with one is needed.",
            "Export the model again with --profile native and without --exits.",
        )
    if found := list(dict.fromkeys(_strange(manifest))):
        raise UnsupportedModel(
            "No draft model can be trained for this model.",
            f"Its layers are not those of a plain llama: it has {', '.join(found)}.",
            "Train --kind head, or use a drafter that needs no training.",
        )


def _strange(manifest: Manifest) -> Iterator[str]:
    """Yield what a plain llama does not have."""
    if manifest.model.sliding_window:
        yield "sliding windows"
    decoder = manifest.decoder
    assert decoder is not None, manifest.op_profile
    for layer in decoder.kinds:
        yield from _strange_layer(layer)
    facts = {
        f"the norm {decoder.norm!r}": decoder.norm != "rms",
        "biases of norms": decoder.has_norm_bias,
        "scaled embeddings, sums or logits": (decoder.embedding_scale, decoder.residual_scale, decoder.logit_scale)
        != (1.0, 1.0, 1.0),
        "capped logits": decoder.logit_softcap != 0.0,
        "rotations that are computed when it is loaded": decoder.loads_rope,
        "several rotations": len(decoder.ropes) != 1,
        "rotations of a part of a head": any(rope.dimensions != decoder.head_dim for rope in decoder.ropes),
        "layers of several kinds": len(decoder.kinds) != 1,
    }
    yield from (name for name, is_there in facts.items() if is_there)


def _strange_layer(layer: Layer) -> Iterator[str]:
    attention, feed_forward = layer.attention, layer.feed_forward
    if attention is None or feed_forward is None:
        return iter(("layers without attention" if attention is None else "experts",))
    facts = {
        "biases": attention.has_qkv_bias or attention.has_output_bias or feed_forward.has_bias,
        "norms of queries and keys": attention.qk_norm != "none",
        "capped scores": attention.softcap != 0.0,
        "attention sinks": attention.has_sinks,
        "queries scaled by position": attention.query_scaling is not None,
        "a scale of scores of its own": attention.scale != attention.head_dim**-0.5,
        "layers without rotations": attention.rope is None,
        "gates of attention": attention.has_gate,
        "limits": attention.clip != 0.0 or feed_forward.limit != 0.0,
        "feed-forwards without a gate": not feed_forward.is_gated,
        f"the activation {feed_forward.activation!r}": feed_forward.activation != "silu",
        "norms of what sub-layers add": layer.has_post_norms or not layer.has_pre_norms,
    }
    return (name for name, is_there in facts.items() if is_there)
