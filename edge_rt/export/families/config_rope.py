"""Rotary embeddings as ``config.json`` states them, in the newer way (one object) and in the older one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from edge_rt.errors import InvalidModelFile, UnsupportedModel, as_json
from edge_rt.export.families.config_reader import FULL, SLIDING, ConfigReader
from edge_rt.export.families.rope import (
    MAX_ROPE_THETA,
    MIN_ROPE_THETA,
    Yarn,
    default_rope,
    divided_rope,
    linear_rope,
    llama3_divisors,
    proportional_rope,
    yarn_borders,
    yarn_rope,
    yarn_temperature,
)
from edge_rt.package.decoder import MAX_CONTEXT, Rope
from edge_rt.system.checkpoint_names import CONFIG_FILE

_KINDS: Final = ("rope_type", "type")
_COMMON: Final = (*_KINDS, "rope_theta", "partial_rotary_factor", "original_max_position_embeddings")
_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": (
        *("factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow"),
        *("mscale", "mscale_all_dim", "truncate"),
    ),
    "proportional": ("factor",),
    "dynamic": ("alpha", "factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"),
}
"""Kind of scaling -> keys that it has, besides those that all have."""


def read_rope(
    config: ConfigReader,
    dimensions: int,
    context: int,
    *,
    layer_type: str | None = None,
    theta_key: str | None = "rope_theta",
    theta: float = 10_000.0,
    rotated_share: float = 1.0,
    is_partial: bool = False,
    is_scaled: bool = True,
    known: tuple[str, ...] = (),
) -> Rope:
    """Return the rotation of a model, or of its layers of one type.

    Args:
        layer_type: of the layers, where newer configurations have an object for each.
        theta_key: of the base, in older configurations; None: they do not state it.
        rotated_share: the family's share of a head that is rotated, where none is stated.
        is_partial: whether the family rotates a share of a head where the configuration says so; else it is refused.
    """
    parameters = _parameters(config, layer_type)
    legacy = _mapping(config, "rope_scaling") if is_scaled else {}
    stated = None if theta_key is None else config.get(theta_key)
    if legacy and parameters:
        # Where types of layers have objects, the older one is laid over theirs.
        _require_agreement(config, legacy, parameters, parameters.get("rope_theta") if layer_type else stated)
    base = legacy.get("rope_theta", parameters.get("rope_theta", theta if stated is None else stated))
    if isinstance(base, bool) or not isinstance(base, int | float) or not MIN_ROPE_THETA <= base <= MAX_ROPE_THETA:
        raise _wrong(config, theta_key or "rope_theta", base)
    scaling = legacy or parameters
    rotated = _rotated(config, {**parameters, **scaling}, dimensions, rotated_share)
    is_partial = is_partial or scaling.get("rope_type") == "proportional"
    if not is_partial and rotated != dimensions:
        raise config.refused("partial_rotary_factor is not 1, which this family does not use")
    if scaling and layer_type is None:
        scaling = {**scaling, "original_max_position_embeddings": original_context(config, scaling, context)}
    if scaling.get("rope_type") == "proportional":
        _require_known(config, scaling, known)
        return proportional_rope(float(base), dimensions, rotated, _number(config, scaling, "factor", 1.0))
    return _scaled(config, scaling, float(base), rotated, context, known)


def original_context(config: ConfigReader, scaling: Mapping[str, Any], context: int) -> Any:
    """Return the tokens of the context of training: the outer key comes before that of the object, the context last."""
    for stated in (config.get("original_max_position_embeddings"), scaling.get("original_max_position_embeddings")):
        if stated is not None:
            return stated
    return context


def _parameters(config: ConfigReader, layer_type: str | None) -> Mapping[str, Any]:
    """Return the object of the newer way, that of one type of layer where there is one for each."""
    parameters = _mapping(config, "rope_parameters")
    if layer_type is None:
        if any(isinstance(value, dict) for key, value in parameters.items() if key not in _KINDS):
            raise _unsupported(config, f"of each type of layer, {', '.join(parameters):.80}")
        return parameters
    if parameters and not any(kind in parameters for kind in (FULL, SLIDING)):
        raise config.refused("rope_parameters has no object for each type of layer")
    # Null stands for the defaults.
    nested = parameters.get(layer_type)
    if nested is not None and not isinstance(nested, dict):
        raise _wrong(config, layer_type, nested)
    return nested or {}


def _require_agreement(
    config: ConfigReader, legacy: Mapping[str, Any], parameters: Mapping[str, Any], theta: Any
) -> None:
    """Refuse two objects that say different things of the same rotation."""
    old, new = (
        {"rope_type": one.get("type", "default"), "rope_theta": theta}
        | {key: value for key, value in one.items() if key != "type" and value is not None}
        for one in (legacy, parameters)
    )
    if different := [key for key in {**old, **new} if old.get(key) != new.get(key)]:
        raise config.refused(f"rope_scaling and rope_parameters differ in {', '.join(different):.80}")


def _scaled(
    config: ConfigReader, scaling: Mapping[str, Any], base: float, rotated: int, context: int, known: tuple[str, ...]
) -> Rope:
    kind = _require_known(config, scaling, known)
    if kind == "default":
        return default_rope(base, rotated)
    if kind == "dynamic":
        # With a fixed alpha it is another base; without one frequencies would depend on the length of each text.
        if scaling.get("alpha") is None:
            raise _unsupported(config, "'dynamic' without an alpha")
        if rotated == 2:
            # The exponent of alpha is rotated / (rotated - 2).
            raise _unsupported(config, "'dynamic' of 2 elements of a head")
        return replace(
            default_rope(base * _number(config, scaling, "alpha") ** (rotated / (rotated - 2)), rotated), kind="dynamic"
        )
    factor = _number(config, scaling, "factor")
    if kind == "linear":
        return linear_rope(base, rotated, factor)
    if kind == "llama3":
        low, high = (_number(config, scaling, f"{end}_freq_factor") for end in ("low", "high"))
        # Settings that a training writes may have a fraction of a token.
        original = _number(config, scaling, "original_max_position_embeddings", context)
        if original < 1:
            raise _wrong(config, "original_max_position_embeddings", original)
        if high <= low:
            raise _wrong(config, "high_freq_factor", high)
        divisors = llama3_divisors(base, rotated, factor=factor, low=low, high=high, original_context=original)
        return divided_rope(default_rope(base, rotated), "llama3", divisors)
    yarn = _yarn(config, scaling, factor, context)
    first, last = yarn_borders(base, rotated, yarn)
    if last < first:
        # Implementations differ in what they make of it.
        raise config.refused(f"YaRN's original context of {yarn.original_context} tokens is too short for a blend")
    return yarn_rope(base, rotated, yarn)


def _require_known(config: ConfigReader, scaling: Mapping[str, Any], known: tuple[str, ...]) -> str:
    """Return the kind of scaling; refuse one that is unknown, or that has unknown keys."""
    key = next((key for key in _KINDS if key in scaling), None)
    kind: Any = "default" if key is None else scaling[key]
    if key is not None and not isinstance(kind, str | None):
        raise _wrong(config, key, kind)
    if kind not in _KEYS:
        raise _unsupported(config, f"{kind!r:.40}")
    strange = [key for key in scaling if key not in (*_COMMON, *_KEYS[kind], *known) and scaling[key] is not None]
    # What a model without scaling says of it has no meaning.
    if strange and kind != "default":
        raise _unsupported(config, f"{kind!r} with {', '.join(strange):.80}")
    return str(kind)


def _yarn(config: ConfigReader, scaling: Mapping[str, Any], factor: float, context: int) -> Yarn:
    usual = yarn_temperature(factor)
    share, of_all = scaling.get("mscale"), scaling.get("mscale_all_dim")
    if share and of_all:
        usual = yarn_temperature(factor, _number(config, scaling, "mscale"))
        usual /= yarn_temperature(factor, _number(config, scaling, "mscale_all_dim"))
    return Yarn(
        factor,
        _tokens(config, scaling, "original_max_position_embeddings", context),
        _number(config, scaling, "attention_factor", usual),
        beta_fast=_number(config, scaling, "beta_fast", 32.0),
        beta_slow=_number(config, scaling, "beta_slow", 1.0),
        is_truncated=_flag(config, scaling, "truncate", default=True),
    )


def _rotated(config: ConfigReader, parameters: Mapping[str, Any], dimensions: int, default: float = 1.0) -> int:
    """Return how many elements of a head are rotated."""
    share = parameters.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    share = default if share is None else share
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise _wrong(config, "partial_rotary_factor", share)
    rotated = int(dimensions * share)
    if rotated < 2 or rotated % 2:
        raise _wrong(config, "partial_rotary_factor", share)
    return rotated


def rope_part(config: ConfigReader) -> ConfigReader:
    """Return the object that describes the rotation, in either way; an empty one if there is none."""
    legacy, parameters = _mapping(config, "rope_scaling"), _mapping(config, "rope_parameters")
    if legacy and parameters:
        _require_agreement(config, legacy, parameters, config.get("rope_theta"))
    return ConfigReader(config.where, legacy or parameters)


def rotated_dimensions(config: ConfigReader, dimensions: int) -> int:
    """Return how many elements of a head are rotated."""
    parameters = {**_mapping(config, "rope_parameters"), **_mapping(config, "rope_scaling")}
    return _rotated(config, parameters, dimensions)


def _mapping(config: ConfigReader, key: str) -> Mapping[str, Any]:
    value = config.get(key)
    if value is not None and not isinstance(value, dict):
        raise _wrong(config, key, value)
    return value or {}


def _number(config: ConfigReader, scaling: Mapping[str, Any], key: str, default: float | None = None) -> float:
    value = scaling.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1e-3 <= value <= MAX_CONTEXT:
        raise _wrong(config, key, value)
    return float(value)


def _flag(config: ConfigReader, scaling: Mapping[str, Any], key: str, *, default: bool) -> bool:
    value = scaling.get(key)
    if not isinstance(value, bool | None):
        raise _wrong(config, key, value)
    return default if value is None else value


def _tokens(config: ConfigReader, scaling: Mapping[str, Any], key: str, default: int) -> int:
    """Return a number of tokens, which some configurations write as 4096.0."""
    value = _number(config, scaling, key, default)
    if value < 1 or not value.is_integer():
        raise _wrong(config, key, value)
    return int(value)


def _wrong(config: ConfigReader, key: str, value: object) -> InvalidModelFile:
    return InvalidModelFile(
        f"{config.where}: the rope settings in {CONFIG_FILE} cannot be used.",
        f"'{key}' is {as_json(value)}.",
        "Fetch the model again.",
    )


def _unsupported(config: ConfigReader, what: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"{config.where}: the rope scaling {what} is not supported.",
        f"Supported: {', '.join(_KEYS)}.",
        "Export it with --via transformers, or choose another model.",
    )
