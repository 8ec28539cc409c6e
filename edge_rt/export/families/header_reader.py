"""Reads the numbers of a GGUF header with checks, and refuses keys that nobody has asked for but change the result."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final

from edge_rt.errors import InvalidModelFile, StorageError, UnsupportedModel
from edge_rt.export.families.config_reader import require_head_dim
from edge_rt.export.sources.gguf_types import FETCH_AGAIN, GGUFHeader, MetadataArray, TensorInfo, Value, shown
from edge_rt.package.decoder import MAX_CONTEXT, MAX_LAYERS, MIN_EPSILON, Dimensions
from edge_rt.package.layers import MAX_EPSILON, MAX_HEADS, MAX_WIDTH
from edge_rt.package.reader import stored_name

HARMLESS_KEYS: Final = frozenset({"attention.layer_norm_epsilon", "rope.scaling.finetuned", "tensor_data_layout"})
"""Keys below the architecture that do not change the computation."""
NEUTRAL_VALUES: Final[Mapping[str, tuple[float, ...]]] = {
    # Factors: GGUF readers take 0 for "not given".
    "embedding_scale": (0, 1),
    "logit_scale": (0, 1),
    "residual_scale": (0, 1),
    "attention.output_scale": (0, 1),
    "rope.scaling.yarn_attn_factor": (1,),
    "rope.scaling.yarn_log_multiplier": (0,),
    # Limits, windows and counts: 0 means none.
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.scale": (0,),
    "attention.shared_kv_layers": (0,),
    "attention.sliding_window": (0,),
    "attn_logit_softcapping": (0,),
    "embedding_length_per_layer_input": (0,),
    "expert_count": (0,),
    "expert_group_count": (0, 1),
    "expert_shared_count": (0,),
    "expert_used_count": (0,),
    "final_logit_softcapping": (0,),
    "leading_dense_block_count": (0,),
    "moe_latent_size": (0,),
    "nextn_predict_layers": (0,),
    # Which states an embedding is made of: the mean of all, or the last one.
    "pooling_type": (0, 1, 3),
    "attention.causal": (True,),
    "use_parallel_residual": (False,),
}
"""Keys below the architecture that would change the computation -> values for which they do not. A family that reads a
key takes care of it."""

_FLOATS: Final = {"F32": "f", "F16": "e"}
_MOST_LISTED: Final = 5


class HeaderReader:
    """Values of a GGUF header below its architecture."""

    def __init__(self, header: GGUFHeader, architecture: str) -> None:
        self.header = header
        self.where = header.path.name
        self.architecture = architecture
        self._read: set[str] = set()
        self.num_blocks_ahead = 0

    def blocks_ahead(self) -> int:
        """Return how many of the blocks predict further ahead: they come last, and are not read."""
        ahead = self.count("nextn_predict_layers", MAX_LAYERS, least=0, default=0)
        if ahead and ahead >= (blocks := self.count("block_count", MAX_LAYERS)):
            raise InvalidModelFile(
                f"{self.where}: '{self.key('nextn_predict_layers')}' cannot be used.",
                f"It is {ahead}, and there are {blocks} blocks in all.",
                FETCH_AGAIN,
            )
        self.num_blocks_ahead = ahead
        return ahead

    def key(self, key: str) -> str:
        """Return the whole name of a key, which counts as read."""
        self._read.add(key)
        return f"{self.architecture}.{key}"

    def has(self, key: str) -> bool:
        """Return whether a key is there."""
        return self.key(key) in self.header.values

    def has_tensor(self, name: str) -> bool:
        """Return whether there is a tensor of a name."""
        return name in self.header.tensors

    def count(self, key: str, most: int, *, least: int = 1, default: int | None = None) -> int:
        """Return a whole number; where the file has one for every layer, they must be equal."""
        name = self.key(key)
        if default is not None and name not in self.header.values:
            return default
        value = self.header.values.get(name)
        if isinstance(value, MetadataArray):
            values = set(value.to_list())
            if len(values) != 1 or not all(type(one) is int and least <= one <= most for one in values):
                span = f", from {min(values)!r:.20} to {max(values)!r:.20}" if values else ""
                raise self.refused(f"{name!r} has {len(values)} values{span}")
            return int(values.pop())
        return self.header.get_int(name, minimum=least, maximum=most)

    def counts(self, key: str, most: int, *, layers: int, least: int = 0) -> tuple[int, ...]:
        """Return a whole number for every layer; where the file has one for all, so often."""
        value = self.header.values.get(self.key(key))
        if not isinstance(value, MetadataArray):
            return (self.count(key, most, least=least),) * layers
        values = value.to_list()
        if len(values) != layers or not all(type(one) is int and least <= one <= most for one in values):
            raise InvalidModelFile(
                f"{self.where}: '{self.key(key)}' cannot be used.",
                f"It has {len(values)} values for {layers} layers; each must be {least} to {most}.",
                FETCH_AGAIN,
            )
        return tuple(values)

    def only(self, key: str, values: tuple[int, ...]) -> int:
        """Return the number that all layers have which do not have 0."""
        found = set(values) - {0}
        if len(found) != 1:
            raise self.refused(f"{self.key(key)!r} has {len(found)} values above 0 for {len(values)} layers")
        return found.pop()

    def number(self, key: str, *, least: float, most: float, default: float | None = None) -> float:
        """Return a number."""
        name = self.key(key)
        if default is not None and name not in self.header.values:
            return default
        return self.header.get_float(name, minimum=least, maximum=most)

    def text(self, key: str, default: str) -> str:
        """Return a text."""
        return self.header.get_str(self.key(key), default=default)

    def flag(self, key: str, *, default: bool) -> bool:
        """Return a truth value."""
        value = self.header.values.get(self.key(key), default)
        if not isinstance(value, bool):
            raise InvalidModelFile(
                f"{self.where}: '{self.key(key)}' cannot be used.",
                f"It is {_shown_value(value):.60}, no truth value.",
                FETCH_AGAIN,
            )
        return value

    def factor(self, key: str) -> float:
        """Return a factor; 0 if it is not given, which files also write as 0."""
        return self.number(key, least=0.0, most=1e6, default=0.0)

    def softcap(self, key: str, default: float = 0.0) -> float:
        """Return a soft-cap; 0 for none."""
        return self.number(key, least=0.0, most=1e6, default=default)

    def is_array(self, key: str) -> bool:
        """Return whether a key is there and an array."""
        return isinstance(self.header.values.get(self.key(key)), MetadataArray)

    def flags(self, key: str, layers: int, *, ahead: int = 0) -> tuple[bool, ...]:
        """Return a truth value for every layer.

        Args:
            ahead: blocks behind the layers that may have values, too, which are left out.
        """
        value = self.header.values.get(self.key(key))
        values = value.to_list() if isinstance(value, MetadataArray) else [value]
        is_whole = len(values) in (layers, layers + ahead)
        if not is_whole or not all(type(one) in (bool, int) and one in (0, 1) for one in values):
            raise InvalidModelFile(
                f"{self.where}: '{self.key(key)}' cannot be used.",
                f"It has {len(values)} values for {layers} layers.",
                FETCH_AGAIN,
            )
        return tuple(bool(one) for one in values[:layers])

    def period(self, key: str, default: int) -> int:
        """Return a number of layers after which a pattern repeats."""
        return self.header.get_int(self.key(key), default=default, minimum=1, maximum=MAX_LAYERS)

    def floats(self, name: str, count: int) -> list[float] | None:
        """Return the numbers of a small tensor, all above 0; None if there is none."""
        tensor = self.header.tensors.get(name)
        if tensor is None:
            return None
        if tensor.shape != (count,):
            raise InvalidModelFile(
                f"{self.where}: 1 tensor has a wrong shape.",
                f"{name} {tensor.shape} instead of {(count,)}.",
                FETCH_AGAIN,
            )
        numbers = list(self._stored(tensor))
        # The comparison is false for NaN as well.
        if not all(0 < number < float("inf") for number in numbers):
            wrong = next(number for number in numbers if not 0 < number < float("inf"))
            raise InvalidModelFile(
                f"The tensor '{name}' holds a frequency factor that is not positive.",
                f"One is {wrong}; it begins at byte {tensor.offset} of the file.",
                FETCH_AGAIN,
            )
        return numbers

    def _stored(self, tensor: TensorInfo) -> Sequence[float]:
        if tensor.type_name not in (*_FLOATS, "BF16"):
            raise UnsupportedModel(
                f"{self.where}: the quantisation of 1 tensor is not supported.",
                f"{tensor.name} is {tensor.type_name}; supported: F32, F16, BF16.",
                "Choose a file in one of the supported quantisations.",
            )
        try:
            with self.header.paths[tensor.file].open("rb") as stream:
                stream.seek(tensor.offset)
                data = stream.read(tensor.nbytes)
        except OSError as error:
            raise StorageError(
                f"{self.where} cannot be read.", f"{error.strerror}.", "Check its permissions."
            ) from error
        if len(data) < tensor.nbytes:
            raise StorageError(f"{self.where} ended early.", f"{len(data)} of {tensor.nbytes} bytes came.", FETCH_AGAIN)
        if tensor.type_name == "BF16":
            data = b"".join(b"\0\0" + data[at : at + 2] for at in range(0, len(data), 2))
        return struct.unpack(f"<{tensor.elements}{_FLOATS.get(tensor.type_name, 'f')}", data)

    def dimensions(
        self,
        *,
        is_tied: bool | None = None,
        epsilon: str = "attention.layer_norm_rms_epsilon",
        kv_heads: int | None = None,
        layers: int | None = None,
        feed_forward: int | None = None,
    ) -> Dimensions:
        """Return the sizes; ``is_tied`` is None if that is told by whether the file has a head of its own.

        Args:
            kv_heads: of layers with attention, where not all have it; None: the file has one number for all.
            layers: without blocks that predict further ahead; None: the file has none.
            feed_forward: features of the widest one, where they differ; None: the file has one number for all.
        """
        width = self.count("embedding_length", MAX_WIDTH)
        heads = self.count("attention.head_count", MAX_HEADS)
        if kv_heads is None:
            kv_heads = self.count("attention.head_count_kv", heads, default=heads)
        self._require_divisor("attention.head_count_kv", kv_heads, "attention.head_count", heads)
        return Dimensions(
            name=self.header.get_str("general.name", default=stored_name(self.header.path.with_suffix("")))[:200],
            family=self.architecture,
            hidden_size=width,
            num_layers=self.count("block_count", MAX_LAYERS) if layers is None else layers,
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=self._head_dim(width, heads),
            intermediate_size=(
                self.count("feed_forward_length", 4 * MAX_WIDTH) if feed_forward is None else feed_forward
            ),
            vocab_size=self._vocab_size(),
            context_length=self.count("context_length", MAX_CONTEXT),
            norm_epsilon=self.number(epsilon, least=MIN_EPSILON, most=MAX_EPSILON),
            is_tied="output.weight" not in self.header.tensors if is_tied is None else is_tied,
        )

    def _require_divisor(self, small_key: str, small: int, large_key: str, large: int) -> None:
        if large % small:
            raise InvalidModelFile(
                f"{self.where}: '{self.key(small_key)}' does not divide '{self.key(large_key)}'.",
                f"{large} is not a multiple of {small}.",
                FETCH_AGAIN,
            )

    def _head_dim(self, width: int, heads: int) -> int:
        if not self.has("attention.key_length"):
            self._require_divisor("attention.head_count", heads, "embedding_length", width)
        head_dim = self.count("attention.key_length", MAX_WIDTH, default=width // heads)
        value_dim = self.count("attention.value_length", MAX_WIDTH, default=head_dim)
        require_head_dim(
            self.where, head_dim, "Export the model's folder of safetensors with --via transformers, or choose another."
        )
        if value_dim != head_dim:
            raise UnsupportedModel(
                f"{self.where}: these attention head sizes are not supported.",
                f"Keys have {head_dim} dimensions, values {value_dim}; both must be equal.",
                "Choose another model.",
            )
        return head_dim

    def _vocab_size(self) -> int:
        tensor = self.header.tensors.get("token_embd.weight")
        if tensor is None:
            raise InvalidModelFile(
                f"{self.where}: the tensor 'token_embd.weight' is missing.",
                f"The file has {len(self.header.tensors)} other tensors.",
                FETCH_AGAIN,
            )
        rows = tensor.shape[-1]
        stated = self.header.get_int(self.key("vocab_size"), default=rows)
        if stated != rows:
            raise InvalidModelFile(
                f"{self.where}: '{self.key('vocab_size')}' contradicts the tensor 'token_embd.weight'.",
                f"The key says {stated}, the tensor has {rows} rows.",
                FETCH_AGAIN,
            )
        return rows

    def refuse_variants(self, skipped: tuple[str, ...] = ()) -> None:
        """Refuse keys that nobody has read, unless they change nothing or begin with one of ``skipped``."""
        experts = f"{self.architecture}.expert_count"
        if "expert_count" not in self._read and (count := self.header.get_int(experts, default=0)) > 0:
            raise UnsupportedModel(
                f"{self.where}: experts are not supported in models of this architecture.",
                f"The file has {count} experts.",
                "Choose a dense model.",
            )
        prefix = f"{self.architecture}."
        strange = [
            f"{shown(key)} is {_shown_value(value)}"
            for key, value in self.header.values.items()
            if key.startswith(prefix)
            and not key.startswith(tuple(prefix + begin for begin in skipped))
            and not self._is_known(key.removeprefix(prefix), value)
        ]
        if strange:
            more = f" and {len(strange) - _MOST_LISTED} more" if len(strange) > _MOST_LISTED else ""
            raise UnsupportedModel(
                f"{self.where}: its metadata asks for something that edge-rt does not compute.",
                f"{', '.join(strange[:_MOST_LISTED])}{more}.",
                "It is a variant that edge-rt cannot run yet; choose another model.",
            )

    def _is_known(self, key: str, value: Value) -> bool:
        if key in self._read or key in HARMLESS_KEYS:
            return True
        return not isinstance(value, MetadataArray) and value in NEUTRAL_VALUES.get(key, ())

    def refused(self, what: str) -> UnsupportedModel:
        """Return the error for something that edge-rt does not compute."""
        return UnsupportedModel(
            f"{self.where}: the file asks for something that edge-rt does not compute.",
            f"{what}.",
            "It is a variant that edge-rt cannot run yet; choose another model.",
        )


def _shown_value(value: Value) -> str:
    if isinstance(value, MetadataArray):
        return f"an array of {value.length}"
    return shown(value) if isinstance(value, str) else str(value)
