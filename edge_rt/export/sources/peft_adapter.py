"""LoRA adapters as PEFT stores them: a folder with ``adapter_config.json`` and ``adapter_model.safetensors``.

Which modules an adapter changes is said by its tensors. Behind ``base_model.model.`` and the module's name they are
called:

======================================= ==========================================================================
``lora_A.weight``, ``lora_B.weight``    A ``[rank, inputs]`` and B ``[rows, rank]`` of a linear layer
``lora_embedding_A``, ``..._B``         the same of an embedding, whose transpose the product is added to
``weight``, ``bias``                    trained whole: ``modules_to_save``, and ``bias`` with ``"all"``
``base_layer.bias``                     a trained bias of a module that has A and B, too
``base_layer.weight``                   the model's own weight, stored once more beside A and B of an embedding
``token_adapter.trainable_tokens_delta`` new rows of the tokens in ``trainable_token_indices``
======================================= ==========================================================================

The scale is ``lora_alpha / r``, or ``lora_alpha / sqrt(r)`` with ``use_rslora``; ``rank_pattern`` and
``alpha_pattern`` have other values for some modules.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from edge_rt.errors import InvalidModelFile, ModelNotFound, StorageError, UnsupportedModel
from edge_rt.export.sources.adapters import (
    MERGE_YOURSELF,
    MOST,
    PEFT,
    Adapter,
    LowRank,
    TokenRows,
    incomplete,
    low_rank,
    model_name,
    unsupported,
)
from edge_rt.export.sources.gguf_types import FETCH_AGAIN, TensorInfo, shown
from edge_rt.export.sources.hf_folder import MAX_JSON_BYTES, float_tensor, read_license
from edge_rt.export.sources.safetensors_folder import read_file, read_json, refuse_link
from edge_rt.system.byte_size import counted
from edge_rt.system.checkpoint_names import (
    ADAPTER_CONFIG_FILE,
    ADAPTER_FILE,
    INDEX_FILE,
    SINGLE_FILE,
    WEIGHTS_SUFFIX,
    folder_name,
    is_repository,
)
from edge_rt.text.tokenizer_steps import lint_pattern

_MODEL: Final = "base_model_name_or_path"
_PREFIX: Final = "base_model.model."
_PRODUCTS: Final = {
    ".lora_A.weight": ("right", False),
    ".lora_B.weight": ("left", False),
    ".lora_embedding_A": ("left", True),
    ".lora_embedding_B": ("right", True),
}
"""End of a tensor's name -> which factor of the product it is, and whether it is stored as its transpose."""
_BASE: Final = ".base_layer."
_TOKENS: Final = ".token_adapter.trainable_tokens_delta"
_OTHER_METHODS: Final = (
    *("alora_invocation_tokens", "arrow_config", "kasa_config", "monteclora_config", "layer_replication"),
    "lora_bias",
)
"""Settings of LoRA that compute something else, or more; those that begin with ``use_`` besides."""
_PLAIN_STARTS: Final = (True, False, None, "gaussian", "eva", "orthogonal")
"""Values of ``init_lora_weights`` that leave the model's weights as they are."""
_MAX_MODULE: Final = 200
"""Characters of a module's name."""
_MAX_PATTERN: Final = 200
_MAX_REPETITIONS: Final = 3
"""In a pattern for names of modules: the time to match one grows with the power of their number."""
_MAX_ALTERNATIVES: Final = 8
"""In a pattern: the time to match one may double with each."""
_MAX_PATTERNS: Final = 4096
"""Some adapters have one for every module."""
_MAX_COUNT: Final = 99
_COUNT: Final = re.compile(r"(?<=[{,])[0-9]+")
_CALL_STEPS: Final = 16
"""That the start of a match takes."""
_MAX_STEPS: Final = 10**8
"""To match all patterns with all modules, estimated from above: seconds."""

_Patterns: TypeAlias = Sequence[tuple[re.Pattern[str], object]]


def require_model(folder: Path) -> str | None:
    """Refuse a folder that holds an adapter and no model; return a remark if it holds both."""
    has_model = any((folder / name).exists() for name in (INDEX_FILE, SINGLE_FILE)) or any(
        path.name != ADAPTER_FILE for path in folder.glob(f"*{WEIGHTS_SUFFIX}")
    )
    if not (folder / ADAPTER_CONFIG_FILE).is_file():
        if not has_model or not (folder / ADAPTER_FILE).exists():
            return None
        return (
            f"{folder} holds {ADAPTER_FILE}, too, which is not part of the model. "
            f"With its {ADAPTER_CONFIG_FILE}, edge-rt export --adapter merges it."
        )
    if has_model:
        quoted = shlex.quote(str(folder))
        return (
            f"{folder} holds an adapter, too, which is not part of the model. To merge it: "
            f"edge-rt export -m {quoted} --adapter {quoted} --out DIR"
        )
    raise adapter_alone(folder)


def adapter_alone(folder: Path) -> ModelNotFound:
    """Return the error for a folder that holds an adapter where a model is wanted."""
    try:
        stated = model_name(read_json(folder / ADAPTER_CONFIG_FILE, MAX_JSON_BYTES).get(_MODEL))
    except (InvalidModelFile, StorageError):
        stated = None
    # A command to copy holds nothing else of a file that was fetched; nor does what surrounds it.
    base = stated if stated is not None and is_repository(stated) else "BASE"
    return ModelNotFound(
        f"{folder} is an adapter of {base}, not a model.",
        f"It holds {ADAPTER_CONFIG_FILE}, and no weights but those of the adapter.",
        f"Export it with its model: edge-rt export -m {base} --adapter {shlex.quote(str(folder))} --out DIR",
    )


def read_peft_adapter(folder: Path, scale: float, number: int) -> Adapter:
    """Read the settings of an adapter and the header of its tensors; ``number`` as ``TensorInfo.file`` counts."""
    where, settings, weights = folder_name(folder), folder / ADAPTER_CONFIG_FILE, folder / ADAPTER_FILE
    if not settings.is_file():
        raise ModelNotFound(
            f"{folder} is not an adapter.",
            f"It holds no {ADAPTER_CONFIG_FILE}.",
            "Give a folder that PEFT wrote, or a GGUF file with a LoRA adapter.",
        )
    refuse_link(settings)
    config = read_json(settings, MAX_JSON_BYTES)
    _require_lora(where, config)
    if not weights.is_file():
        if (folder / "adapter_model.bin").is_file():
            raise UnsupportedModel(
                f"{where} holds its weights only as a pickle.",
                "A pickle runs code when it is loaded, and adapter_model.bin is one.",
                "Save it again with a PEFT of 2023 or later, which writes safetensors: "
                "PeftModel.from_pretrained(model, folder).save_pretrained(folder).",
            )
        raise ModelNotFound(
            f"{folder} holds no weights of an adapter.",
            f"{ADAPTER_CONFIG_FILE} is there, {ADAPTER_FILE} is missing.",
            "Fetch the adapter again, all of its files.",
        )
    tensors = {stored.name: float_tensor(where, stored.name, stored) for stored in read_file(weights, number)}
    pairs: dict[str, dict[str, tuple[TensorInfo, bool]]] = {}
    wholes: dict[str, TensorInfo] = {}
    copies, tokens = set(), {}
    for name, tensor in tensors.items():
        module, end = _take_apart(where, name)
        if end in _PRODUCTS:
            factor, is_turned = _PRODUCTS[end]
            pair = pairs.setdefault(module, {})
            if factor in pair:
                raise unsupported(where, f"It has {shown(pair[factor][0].name)} and {shown(name)}")
            pair[factor] = tensor, is_turned
        elif end == _TOKENS:
            tokens[f"{module}.weight"] = _token_rows(where, config, module, tensor)
        else:
            whole = f"{module}.{end.rpartition('.')[2]}"
            if whole in wholes:
                raise unsupported(where, f"It has {shown(whole)} twice")
            wholes[whole] = tensor
            if end == f"{_BASE}weight":
                copies.add(f"{module}.weight")
    patterns = {key: _patterns(where, config, key, pairs) for key in ("rank_pattern", "alpha_pattern")}
    return Adapter(
        path=folder,
        kind=PEFT,
        weights=weights,
        paths=(weights, settings),
        scale=scale,
        license=read_license(folder),
        model=model_name(config.get(_MODEL)),
        products={
            f"{name}.weight": _product(where, config, patterns, name, pair, scale) for name, pair in pairs.items()
        },
        wholes=wholes,
        copies=frozenset(copies),
        tokens=tokens,
    )


def _require_lora(where: str, config: Mapping[str, Any]) -> None:
    """Refuse adapters that are something else than LoRA, or more."""
    if config.get("peft_type") != "LORA":
        raise unsupported(where, f"'peft_type' is {shown(str(config.get('peft_type')))}, must be 'LORA'")
    for key, value in config.items():
        is_other = key in _OTHER_METHODS or (key.startswith("use_") and key != "use_rslora")
        if is_other and value not in (None, False, [], {}):
            raise unsupported(where, f"{shown(key)} is {shown(str(value))}")
    start = config.get("init_lora_weights", True)
    if not any(start is plain or (isinstance(start, str) and start == plain) for plain in _PLAIN_STARTS):
        raise unsupported(where, f"'init_lora_weights' is {shown(str(start))}, which changes the model's own weights")


def _take_apart(where: str, name: str) -> tuple[str, str]:
    """Return the module of a tensor, and what follows in the tensor's name."""
    rest = name.removeprefix(_PREFIX)
    ends = (*_PRODUCTS, _TOKENS, f"{_BASE}weight", f"{_BASE}bias", ".weight", ".bias")
    end = next((end for end in ends if rest.endswith(end)), None)
    module = rest.removesuffix(end or "")
    if rest == name or end is None or len(module) > _MAX_MODULE or ".lora_" in module or "lora_magnitude" in rest:
        raise UnsupportedModel(
            f"{where}: the adapter has a tensor that edge-rt does not know.", f"It is {shown(name)}.", MERGE_YOURSELF
        )
    return module, end


def _product(
    where: str,
    config: Mapping[str, Any],
    patterns: Mapping[str, _Patterns],
    module: str,
    pair: Mapping[str, tuple[TensorInfo, bool]],
    scale: float,
) -> LowRank:
    name = f"{module}.weight"
    if len(pair) < 2:
        raise incomplete(where, name, "A" if "lora_B" in next(iter(pair.values()))[0].name else "B")
    (left, turns_left), (right, turns_right) = pair["left"], pair["right"]
    low_rank(where, name, LowRank(left, right, 1.0, turns_left, turns_right))
    rank = right.shape[0] if turns_right else right.shape[1]
    stated = _setting(where, config, "r", patterns["rank_pattern"], module)
    if stated != rank:
        raise InvalidModelFile(
            f"{where}: the tensors for {shown(name)} contradict {ADAPTER_CONFIG_FILE}.",
            f"They have the rank {rank}, stated is {stated:g}.",
            FETCH_AGAIN,
        )
    alpha = _setting(where, config, "lora_alpha", patterns["alpha_pattern"], module)
    factor = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
    return LowRank(left, right, scale * factor, turns_left, turns_right)


def _setting(where: str, config: Mapping[str, Any], key: str, patterns: _Patterns, module: str) -> float:
    """Return a number for a module: of the first pattern that its name ends with, or the general one."""
    value = next((special for pattern, special in patterns if pattern.match(module)), config.get(key))
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MOST:
        raise _wrong(where, key, value)
    return value


def _patterns(where: str, config: Mapping[str, Any], key: str, modules: Collection[str]) -> _Patterns:
    """Return the patterns of a setting, and what each stands for."""
    patterns = config.get(key) or {}
    if not isinstance(patterns, dict):
        raise _wrong(where, key, patterns)
    if len(patterns) > _MAX_PATTERNS:
        raise unsupported(where, f"{shown(key)} has {len(patterns)} patterns, at most are {_MAX_PATTERNS}")
    compiled = [(_compiled(where, pattern), special) for pattern, special in patterns.items()]
    # A repetition may end at every character or reach its count, for every beginning behind a dot.
    longest = max(map(len, modules), default=0)
    starts = 1 + max((module.count(".") for module in modules), default=0)
    ways = sum(
        2 ** pattern.count("|") * math.comb(max(longest, _MAX_COUNT) + (n := _repetitions(pattern)), n)
        for pattern in patterns
    )
    if len(modules) * (_CALL_STEPS * len(patterns) + starts * ways) > _MAX_STEPS:
        raise unsupported(
            where, f"The patterns in {shown(key)} are too complicated for {counted(len(modules), 'module')}"
        )
    return compiled


def _compiled(where: str, pattern: str) -> re.Pattern[str]:
    try:
        if (
            len(pattern) <= _MAX_PATTERN
            and _repetitions(pattern) <= _MAX_REPETITIONS
            and pattern.count("|") <= _MAX_ALTERNATIVES
            and all(len(count) <= len(str(_MAX_COUNT)) for count in _COUNT.findall(pattern))
            and lint_pattern(pattern) is None
        ):
            return re.compile(rf"(.*\.)?({pattern})$")
    except (re.error, OverflowError, RecursionError):
        pass
    raise unsupported(where, f"The pattern {shown(pattern)} is too complicated")


def _repetitions(pattern: str) -> int:
    return sum(pattern.count(sign) for sign in "*+?{")


def _token_rows(where: str, config: Mapping[str, Any], module: str, tensor: TensorInfo) -> TokenRows:
    stated = config.get("trainable_token_indices")
    if isinstance(stated, dict):
        ends = [key for key in stated if module == key or module.endswith(f".{key}")]
        stated = stated[ends[0]] if ends else None
    if not isinstance(stated, list) or not all(type(one) is int and one >= 0 for one in stated):
        raise _wrong(where, "trainable_token_indices", stated)
    if len(tensor.shape) != 2 or tensor.shape[1] != len(stated) or len(set(stated)) != len(stated):
        raise InvalidModelFile(
            f"{where}: {shown(tensor.name)} contradicts {ADAPTER_CONFIG_FILE}.",
            f"It has the shape {list(tensor.shape[::-1])}; {len(set(stated))} tokens are stated.",
            FETCH_AGAIN,
        )
    return TokenRows(tensor, tuple(stated))


def _wrong(where: str, key: str, value: object) -> InvalidModelFile:
    return InvalidModelFile(
        f"{where}: {shown(key)} in {ADAPTER_CONFIG_FILE} is missing or wrong.", f"Found {value!r:.60}.", FETCH_AGAIN
    )
