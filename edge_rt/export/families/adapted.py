"""Adapters on a model: their tensors under the names of the model's, and with rows in its order; misfits are refused.

Where the head is the embedding and an adapter changes one of them, the package has both: so the adapter was trained.
(PEFT's ``merge_and_unload`` then changes both, and warns of it.) New rows of tokens of the embedding change both, as in
training, unless the head has rows of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from edge_rt.errors import ConfigError, InvalidModelFile, UnsupportedModel
from edge_rt.export.decoder.tensors import expected_shapes, listed, split_fused
from edge_rt.export.families.family import Family
from edge_rt.export.families.folder import HEADS, PREFIXES, is_same_data
from edge_rt.export.sources.adapters import MERGE_YOURSELF, PEFT, Adapter, LowRank, TokenRows
from edge_rt.export.sources.gguf_types import TensorInfo, shown
from edge_rt.export.sources.source import Source, TokenizerBuild
from edge_rt.package.decoder import Decoder
from edge_rt.system.byte_size import counted
from edge_rt.system.checkpoint_names import folder_name

if TYPE_CHECKING:
    from edge_rt.export.sources.packed_arrays import Array

_FLOATS: Final = ("F32", "F16", "BF16")
_EMBEDDING, _HEAD = "token_embd.weight", "output.weight"


@dataclass
class _Change:
    """What adapters do to one tensor: what replaces it, what is added, rows that are replaced; and whose each is."""

    whole: tuple[Adapter, TensorInfo] | None = None
    products: list[tuple[Adapter, LowRank]] = field(default_factory=list)
    tokens: list[tuple[Adapter, TokenRows]] = field(default_factory=list)

    @property
    def has_arithmetic(self) -> bool:
        """Whether more is done than to replace it."""
        return bool(self.products or self.tokens)


def merge_adapters(
    source: Source, decoder: Decoder, family: Family, adapters: Sequence[Adapter], *, rounds: bool
) -> tuple[Source, Decoder]:
    """Return the model that adapters make of another one.

    Args:
        rounds: whether the user chose types for the package, so that what is quantised already may be rounded again.
    """
    if family.config_factors is not None:
        raise UnsupportedModel(
            f"{adapters[0].name}: adapters of this architecture are not merged.",
            f"{family.name} has multipliers, which are folded into the matrices that they belong to.",
            MERGE_YOURSELF,
        )
    changes: dict[str, _Change] = {}
    for adapter in adapters:
        _collect(changes, adapter, source, decoder, family)
    tensors, is_tied = dict(source.tensors), decoder.is_tied
    if is_tied:
        is_tied = not _unties(changes)
        if not is_tied:
            tensors[_HEAD] = replace(tensors[_EMBEDDING], name=_HEAD)
            head = changes.setdefault(_HEAD, _Change())
            # Tokens were trained with one matrix for both, unless the head has its own.
            head.tokens = head.tokens or changes.get(_EMBEDDING, _Change()).tokens
    quantised = [
        name
        for name, change in changes.items()
        if change.has_arithmetic and change.whole is None and tensors[name].type_name not in _FLOATS
    ]
    if quantised and not rounds:
        kinds = dict.fromkeys(tensors[name].type_name for name in quantised)
        raise ConfigError(
            "The model is quantised already, and an adapter is merged into floats.",
            f"{len(quantised)} of the matrices that the adapter changes are {', '.join(kinds)}.",
            "Give the model in BF16, F16 or F32; or choose types with --weights int4 or int8: these matrices are "
            "then rounded a second time.",
        )
    merged = {name: _merged(name, tensors[name], change, source, decoder, family) for name, change in changes.items()}
    remarks = source.remarks
    if quantised:
        were = "was" if len(quantised) == 1 else "were"
        again = "adapters are merged into floats, which are rounded a second time"
        remarks += (f"{counted(len(quantised), 'tensor')} {were} quantised already: {again}.",)
    if is_tied != decoder.is_tied:
        remarks += (
            "An adapter changes embedding and head, which the model shares, in different ways: both are stored.",
        )
    return replace(
        source,
        tensors={**tensors, **merged},
        remarks=remarks,
        adapters=tuple(adapters),
        build_tokenizer=lambda rows: _warned(source.build_tokenizer(rows), adapters),
    ), replace(decoder, is_tied=is_tied)


def _unties(changes: dict[str, _Change]) -> bool:
    """Return whether embedding and head, until now one, become different; a change that both have stays that of one."""
    embedding, head = changes.get(_EMBEDDING, _Change()), changes.get(_HEAD, _Change())
    if embedding.whole is not None and head.whole is not None and not (embedding.products or head.products):
        (adapter, one), (_, other) = embedding.whole, head.whole
        if adapter is head.whole[0] and _is_same(adapter, one, other):
            del changes[_HEAD]
            return False
    if head.tokens and embedding.tokens:
        (first, rows), (second, heads) = embedding.tokens[0], head.tokens[0]
        if first is not second:
            raise _twice(second, _HEAD)
        if rows.tokens == heads.tokens and _is_same(first, rows.tensor, heads.tensor):
            del changes[_HEAD]
            return False
    return bool(head.tokens) or any(
        change.whole is not None or change.products
        for name in (_EMBEDDING, _HEAD)
        if (change := changes.get(name)) is not None
    )


def _is_same(adapter: Adapter, one: TensorInfo, other: TensorInfo) -> bool:
    """Return whether two tensors of an adapter are equal, bit by bit."""
    file = adapter.weights
    return (one.type_name, one.shape) == (other.type_name, other.shape) and is_same_data(
        (file, one.offset), (file, other.offset), one.nbytes
    )


def _collect(changes: dict[str, _Change], adapter: Adapter, source: Source, decoder: Decoder, family: Family) -> None:
    """Add what an adapter does, tensor by tensor, under the model's names."""
    if adapter.architecture is not None and adapter.architecture not in family.architectures:
        raise _foreign(adapter, source, f"It was made for the architecture {adapter.architecture!r:.40}")
    names = _names(family, decoder) if adapter.kind == PEFT else None
    stated = (*adapter.products, *adapter.wholes, *adapter.tokens)
    if names is not None and (unknown := [name for name in stated if name not in names]):
        raise _foreign(adapter, source, f"The model has no {listed([shown(name) for name in unknown])}")
    expected = {**expected_shapes(decoder), _HEAD: expected_shapes(decoder)[_EMBEDDING]}
    where, wrong = adapter.name, []

    def ours(name: str) -> str:
        return name if names is None else names[name]

    def require(name: str, stored: str, shape: tuple[int, ...]) -> None:
        if name not in expected:
            wrong.append(f"no {shown(stored)}")
        elif expected[name] != shape:
            wrong.append(f"{shown(stored)} {list(expected[name][::-1])}, the adapter's is {list(shape[::-1])}")

    for stored, whole in adapter.wholes.items():
        for name, tensor in split_fused(where, {ours(stored): replace(whole, name=ours(stored))}, decoder).items():
            require(name, stored, tensor.shape)
            change = changes.setdefault(name, _Change())
            if change.whole is not None or change.products:
                raise _twice(adapter, stored)
            if adapter.scale != 1 and stored not in adapter.copies:
                raise ConfigError(
                    f"{where}: no scale can be applied to tensors that an adapter replaces.",
                    f"The scale is {adapter.scale:g}; {shown(stored)} is stored whole.",
                    "Leave the scale out.",
                )
            change.whole = adapter, tensor
    for stored, product in adapter.products.items():
        left = replace(product.left, name=ours(stored))
        parts = {left.name: left} if product.turns_left else split_fused(where, {left.name: left}, decoder)
        for name, part in parts.items():
            found = replace(product, left=replace(part, name=product.left.name))
            require(name, stored, found.shape)
            change = changes.setdefault(name, _Change())
            if change.tokens or (change.whole is not None and change.whole[0] is not adapter):
                raise _twice(adapter, stored)
            change.products.append((adapter, found))
    for stored, rows in adapter.tokens.items():
        require(ours(stored), stored, (rows.tensor.shape[0], expected[_EMBEDDING][1]))
        change = changes.setdefault(ours(stored), _Change())
        if change.whole is not None or change.products or change.tokens:
            raise _twice(adapter, stored)
        if max(rows.tokens, default=0) >= decoder.vocab_size:
            wrong.append(f"no token {max(rows.tokens)}")
        change.tokens.append((adapter, rows))
    if wrong:
        raise _foreign(adapter, source, f"The model has {listed(wrong)}")


def _names(family: Family, decoder: Decoder) -> dict[str, str]:
    """Return transformers' name of every tensor that there may be -> GGUF's."""
    names = dict.fromkeys(HEADS, _HEAD)
    modules = dict(family.top_names)
    for layer in range(decoder.num_layers):
        modules |= {f"layers.{layer}.{hf}": f"blk.{layer}.{ours}" for hf, ours in family.layer_names.items()}
    # An adapter may have been trained on the text model alone, or on the whole that it is part of.
    for prefix in PREFIXES:
        for kind in ("weight", "bias"):
            names |= {f"{prefix}{hf}.{kind}": f"{ours}.{kind}" for hf, ours in modules.items()}
    return names


def _merged(
    name: str, tensor: TensorInfo, change: _Change, source: Source, decoder: Decoder, family: Family
) -> TensorInfo:
    """Return what a tensor becomes."""
    base, base_order = tensor, None
    if change.whole is not None:
        adapter, base = change.whole
        base_order = _row_order(name, adapter, source, decoder, family)
        is_shifted = family.config_norm_offset and name.endswith("_norm.weight") and _is_foreign_kind(adapter, source)
        if is_shifted or (base_order is not None and len(base.shape) == 1):
            raise UnsupportedModel(
                f"{adapter.name}: the adapter replaces a vector that a {source.kind} model stores in another form.",
                f"It is {name}.",
                "Give model and adapter in files of one kind, both of transformers or both GGUF.",
            )
    if not change.has_arithmetic and base_order is None:
        return replace(base, name=name)
    from edge_rt.export.sources.packed import PackedTensor
    from edge_rt.export.weights.merged import Merge, merged_tensor

    if isinstance(base, PackedTensor) and (base.input_order is not None or base.row_order is not None):
        raise UnsupportedModel(
            "Adapters cannot be merged into this model: its quantisation moved inputs (desc_act).",
            f"The matrix is {name}.",
            "Give the model in BF16, F16 or F32.",
        )
    products = tuple(
        (product, _row_order(name, adapter, source, decoder, family)) for adapter, product in change.products
    )
    return merged_tensor(name, Merge(base, base_order, products, tuple(rows for _, rows in change.tokens)))


def _is_foreign_kind(adapter: Adapter, source: Source) -> bool:
    """Return whether adapter and model are in files of different kinds."""
    return (adapter.kind == PEFT) != (source.kind == "safetensors")


def _row_order(name: str, adapter: Adapter, source: Source, decoder: Decoder, family: Family) -> Array | None:
    """Return the adapter's row for every row of the model's: converters to GGUF move rows of queries and keys."""
    has_halves = family.config_has_halves if adapter.kind == PEFT else family.header_has_halves
    module = name.split(".")[-2]
    heads = {"attn_q": decoder.num_heads, "attn_k": decoder.num_kv_heads}
    if has_halves == source.has_halves or module.removesuffix("_norm") not in heads:
        return None
    import numpy as np

    from edge_rt.export.weights.blocks import unpermuted_rows

    order = unpermuted_rows(heads[module.removesuffix("_norm")], decoder.head_dim)
    return order if source.has_halves else np.argsort(order)


def _warned(build: TokenizerBuild, adapters: Sequence[Adapter]) -> TokenizerBuild:
    """Return the tokenizer with a warning for every adapter that comes with another chat template."""
    from edge_rt.export.sources.hf_folder import chat_templates

    warnings = []
    for adapter in adapters:
        template = chat_templates(adapter.path).get("default") if adapter.kind == PEFT else None
        if template is not None and template != build.chat_template:
            warnings.append(
                f"{adapter.name} has a chat template of its own, which is not used: the package has the model's."
            )
    return replace(build, warnings=(*build.warnings, *warnings))


def _foreign(adapter: Adapter, source: Source, why: str) -> InvalidModelFile:
    model = source.path.name if source.kind == "gguf" else folder_name(source.path)
    trained = f" It was trained on {adapter.model:.120}." if adapter.model else ""
    return InvalidModelFile(
        f"{adapter.name} is not an adapter of {model}.",
        f"{why}.{trained}",
        "Give the model that it was trained on.",
    )


def _twice(adapter: Adapter, name: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"{adapter.name}: a tensor is replaced that is changed in another way, too.",
        f"It is {shown(name)}.",
        MERGE_YOURSELF,
    )
