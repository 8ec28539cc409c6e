"""Reads the numbers of ``config.json`` with checks, and refuses what nobody has asked for but changes the result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from edge_rt.errors import InvalidModelFile, UnsupportedModel, as_json
from edge_rt.package.decoder import MAX_CONTEXT, MAX_LAYERS, MAX_ROWS, MIN_EPSILON, Dimensions
from edge_rt.package.layers import MAX_EPSILON, MAX_HEAD_DIM, MAX_HEADS, MAX_WIDTH
from edge_rt.system.checkpoint_names import CONFIG_FILE

FULL, SLIDING = "full_attention", "sliding_attention"

NEUTRAL_VALUES: Final[Mapping[str, tuple[Any, ...]]] = {
    "attention_bias": (False,),
    "attention_in_multiplier": (1,),
    "attention_k_eq_v": (False,),
    "attention_multiplier": (),
    "attention_out_multiplier": (1,),
    "attn_layer_period": (),
    "attn_logit_softcapping": (),
    "attn_output_gate": (False,),
    "clip_qkv": (),
    "conv_bias": (False,),
    "embedding_multiplier": (1,),
    "enable_moe_block": (False,),
    "final_logit_softcapping": (),
    "hidden_act": ("silu", "swish"),
    "hidden_activation": ("silu",),
    "hidden_size_per_layer_input": (0,),
    "hybrid_override_pattern": (),
    "key_multiplier": (1,),
    "layernorm_epsilon": (),
    "layers_block_type": (),
    "linear_num_key_heads": (),
    "linear_num_value_heads": (),
    "lm_head_multiplier": (1,),
    "logits_scaling": (1,),
    "mamba_d_ssm": (),
    "mamba_hidden_act": ("silu",),
    "mamba_n_heads": (),
    "mamba_num_heads": (),
    "mamba_proj_bias": (False,),
    "mamba_rms_norm": (False,),
    "mlp_bias": (False,),
    "mlp_hidden_act": ("silu",),
    "mlp_multipliers": ([1, 1],),
    "mlp_only_layers": ([],),
    "moe_intermediate_size": (0,),
    "moe_latent_size": (0,),
    "moe_shared_expert_intermediate_size": (0,),
    "n_group": (0, 1),
    "n_routed_experts": (0, 1),
    "no_rope_layers": (),
    "num_experts": (0, 1),
    "num_kv_shared_layers": (0,),
    "num_local_experts": (0, 1),
    "parallel_residual": (False,),
    "per_layer_config": ({},),
    "partial_rotary_factor": (1,),
    "projectors_bias": (False,),
    "qk_norm": (False,),
    "query_pre_attn_scalar": (),
    "residual_multiplier": (1,),
    "routed_scaling_factor": (1,),
    "shared_expert_intermediate_size": (0,),
    "shared_intermediate_size": (0,),
    "ssm_in_multiplier": (1,),
    "ssm_multipliers": ([1, 1, 1, 1, 1],),
    "ssm_out_multiplier": (1,),
    "ssm_state_size": (),
    "swiglu_limit": (),
    "use_bias": (False,),
    "use_bidirectional_attention": (False, "vision"),
    "use_double_wide_mlp": (False,),
    "use_parallel_residual": (False,),
    "use_qk_norm": (False,),
    "use_qkv_bias": (False,),
    "use_sliding_window": (False,),
}
"""Keys that change what is computed -> values, besides null, for which they do not. A family that reads a key takes
care of it."""


class ConfigReader:
    """Values of ``config.json``, or of the section of it that describes the text model."""

    def __init__(self, where: str, values: Mapping[str, Any]) -> None:
        self.where = where
        self.values = values
        self._read: set[str] = set()
        self._defaults: dict[str, int] = {}

    def defaults(self, **values: int) -> None:
        """Set the family's values of numbers that configurations may leave out."""
        self._defaults |= values

    def has(self, key: str) -> bool:
        """Return whether a key is there and not null."""
        return self.get(key) is not None

    def get(self, key: str) -> Any:
        """Return a value as it is; None where it is missing."""
        self._read.add(key)
        return self.values.get(key)

    def count(self, key: str, most: int, *, least: int = 1, default: int | None = None) -> int:
        """Return a whole number."""
        value = self._value(key, self._defaults.get(key) if default is None else default, (int,))
        if not least <= value <= most:
            raise self._out_of_range(key, value, least, most)
        return int(value)

    def number(self, key: str, *, least: float, most: float, default: float | None = None) -> float:
        """Return a number."""
        value = self._value(key, default, (int, float))
        if not least <= value <= most:
            raise self._out_of_range(key, value, least, most)
        return float(value)

    def numbers(self, key: str, count: int, *, least: float, most: float) -> tuple[float, ...]:
        """Return a list of numbers."""
        values = self._value(key, None, (list,))
        is_good = len(values) == count and all(
            isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most
            for value in values
        )
        if not is_good:
            raise self.wrong(key, f"{len(values)} values, {values!r:.60}")
        return tuple(float(value) for value in values)

    def flag(self, key: str, *, default: bool = False) -> bool:
        """Return a truth value."""
        return bool(self._value(key, default, (bool,)))

    def text(self, key: str, default: str | None = None) -> str:
        """Return a text."""
        return str(self._value(key, default, (str,)))

    def activation(self, key: str, names: Mapping[str, str], default: str) -> str:
        """Return the activation that a name stands for."""
        name = self.text(key, default)
        if name not in names:
            raise self.refused(f"{key} is {name!r:.60}")
        return names[name]

    def softcap(self, key: str, default: float = 0.0) -> float:
        """Return a soft-cap; 0 for none, the default where the configuration does not have the key."""
        if key in self.values and self.get(key) is None:
            return 0.0
        return self.number(key, least=0.0, most=1e6, default=default)

    def part(self, key: str) -> ConfigReader | None:
        """Return an object within; None where it is missing."""
        if not self.has(key):
            return None
        return ConfigReader(self.where, self._value(key, None, (dict,)))

    def alias(self, key: str, other: str) -> None:
        """Let the value of another key, where it is there, be that of a key."""
        if self.has(other):
            self.state(key, self.values[other])

    def state(self, key: str, value: Any) -> None:
        """Let a key have a value that follows from others."""
        self.values = {**self.values, key: value}

    def assume(self, key: str, value: Any) -> None:
        """Let a key that is missing, or null, have a value."""
        if not self.has(key):
            self.values = {**self.values, key: value}

    def is_null(self, key: str) -> bool:
        """Return whether a key is there and null."""
        return key in self.values and not self.has(key)

    def layer_types(self, layers: int) -> tuple[bool, ...] | None:
        """Return for every layer whether it has a sliding window; None where the configuration does not list them."""
        kinds = self.kinds("layer_types", layers, (FULL, SLIDING))
        return None if kinds is None else tuple(kind == SLIDING for kind in kinds)

    def kinds(self, key: str, layers: int | None, known: tuple[str, ...]) -> tuple[str, ...] | None:
        """Return a word for every layer; None where the configuration does not list them. No ``layers``: any number."""
        if not self.has(key):
            return None
        kinds = self._value(key, None, (list,))
        if layers is not None and len(kinds) != layers:
            raise self.wrong(key, f"{len(kinds)} entries for {layers} layers")
        for kind in kinds:
            if kind not in known:
                raise self.refused(f"{key} has {kind!r:.60}")
        return tuple(kinds)

    def indices(self, key: str, layers: int) -> frozenset[int] | None:
        """Return numbers of layers; None where the configuration does not list them."""
        if not self.has(key):
            return None
        numbers = self._value(key, None, (list,))
        if not all(type(number) is int and 0 <= number < layers for number in numbers):
            raise self.wrong(key, f"{numbers!r:.60} for {layers} layers")
        return frozenset(numbers)

    def dimensions(
        self,
        name: str,
        *,
        head_dim: int | None = None,
        is_tied: bool = False,
        epsilon: str = "rms_norm_eps",
        epsilon_default: float = 1e-6,
    ) -> Dimensions:
        """Return the sizes; without a head size of configuration or family it is hidden size over heads."""
        width, heads = self.count("hidden_size", MAX_WIDTH), self.count("num_attention_heads", MAX_HEADS)
        kv_heads = self.count("num_key_value_heads", heads, default=self._defaults.get("num_key_value_heads", heads))
        if heads % kv_heads or (head_dim is None and not self.has("head_dim") and width % heads):
            raise InvalidModelFile(
                f"{self.where}: the numbers of heads in {CONFIG_FILE} do not fit.",
                f"{heads} heads, {kv_heads} of them for keys, {width} wide.",
                "Fetch the model again.",
            )
        size = self.count("head_dim", MAX_WIDTH, default=width // heads if head_dim is None else head_dim)
        require_head_dim(self.where, size, "Export it with --via transformers, or choose another model.")
        return Dimensions(
            name=name,
            family=self.text("model_type", ""),
            hidden_size=width,
            num_layers=self.count("num_hidden_layers", MAX_LAYERS),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=size,
            intermediate_size=self.count("intermediate_size", 4 * MAX_WIDTH),
            vocab_size=self.count("vocab_size", MAX_ROWS),
            context_length=self.count("max_position_embeddings", MAX_CONTEXT),
            norm_epsilon=self.number(epsilon, least=MIN_EPSILON, most=MAX_EPSILON, default=epsilon_default),
            is_tied=self.flag("tie_word_embeddings", default=is_tied),
        )

    def refuse_variants(self) -> None:
        """Refuse keys that change what is computed and that nobody has read."""
        strange = [
            f"{key} is {as_json(value)}"
            for key, allowed in NEUTRAL_VALUES.items()
            if key not in self._read and (value := self.values.get(key)) is not None and value not in allowed
        ]
        if strange:
            raise self.refused(*strange)

    def refused(self, *what: str) -> UnsupportedModel:
        """Return the error for settings that edge-rt does not compute."""
        more = f" and {len(what) - 5} more" if len(what) > 5 else ""
        return UnsupportedModel(
            f"{self.where}: {CONFIG_FILE} asks for something that edge-rt does not compute.",
            f"{', '.join(what[:5])}{more}.",
            "Export it with --via transformers, or choose another model.",
        )

    def wrong(self, key: str, found: str) -> InvalidModelFile:
        """Return the error for a value that cannot be used."""
        return InvalidModelFile(
            f"{self.where}: '{key}' in {CONFIG_FILE} cannot be used.", f"Found {found:.200}.", "Fetch the model again."
        )

    def _value(self, key: str, default: Any, kinds: tuple[type, ...]) -> Any:
        value = self.get(key)
        value = default if value is None else value
        if value is None:
            raise InvalidModelFile(
                f"{self.where}: '{key}' in {CONFIG_FILE} is missing.",
                f"It has {len(self.values)} other keys, and edge-rt assumes no value for this one.",
                "Add it as the model's authors state it, or choose another model.",
            )
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise InvalidModelFile(
                f"{self.where}: '{key}' in {CONFIG_FILE} has the wrong type.",
                f"Found {as_json(value)}.",
                "Fetch the model again, or choose another one.",
            )
        return value

    def _out_of_range(self, key: str, value: float, least: float, most: float) -> InvalidModelFile:
        return InvalidModelFile(
            f"{self.where}: '{key}' in {CONFIG_FILE} is out of range.",
            f"It is {as_json(value)}, limit {least} to {most}.",
            "Fetch the model again.",
        )


def require_head_dim(where: str, head_dim: int, way_out: str) -> None:
    """Refuse heads of an odd size, which no operator takes: rotations turn pairs. ``way_out`` is for the error."""
    if head_dim % 2 or head_dim > MAX_HEAD_DIM:
        raise UnsupportedModel(
            f"{where}: this attention head size is not supported.",
            f"It is {head_dim}, it must be even and at most {MAX_HEAD_DIM}.",
            way_out,
        )
