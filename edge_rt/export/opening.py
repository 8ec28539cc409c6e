"""Opens a checkpoint for an export: a GGUF file in one or several parts, or a folder of transformers.

Headers are judged here before numpy is imported, so that a refusal takes no time and no memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edge_rt.export.families.llama import read_config
from edge_rt.export.sources.gguf_split import read_gguf
from edge_rt.ops import library_path

if TYPE_CHECKING:
    from edge_rt.export.families.llama_config import LlamaConfig
    from edge_rt.export.families.llama_graph import LlamaWeights
    from edge_rt.export.op_profile import OpProfile
    from edge_rt.export.quantise.decision import WeightChoice
    from edge_rt.export.sources.source import Source
    from edge_rt.export.weights.weights_file import WeightsLayout


def open_checkpoint(path: Path) -> tuple[Source, LlamaConfig]:
    """Read and check the headers of a checkpoint; numpy is not loaded for one that is refused.

    Raises:
        InputError: it is malformed or not supported.
        StorageError: it cannot be read.
    """
    if path.is_dir():
        from edge_rt.export.families.llama_folder import read_folder_config
        from edge_rt.export.sources.hf_folder import hf_source, read_hf_folder

        # A model that cannot be run is refused for that, whatever else is wrong with its files.
        check_folder_config(path, path.resolve().name)
        folder = read_hf_folder(path)
        config, tensors, remarks = read_folder_config(folder)
        return hf_source(folder, tensors, remarks), config
    header = read_gguf(path)
    config = read_config(header)
    from edge_rt.export.sources.gguf_source import gguf_source

    return gguf_source(header), config


def check_folder_config(folder: Path, name: str) -> None:
    """Refuse a folder of a model that edge-rt cannot run by its ``config.json`` alone, before its weights are fetched.

    Args:
        folder: holds ``config.json``.
        name: of the model, for messages.

    Raises:
        UnsupportedModel: another architecture, or a variant that edge-rt cannot run.
        InvalidModelFile, ModelNotFound: ``config.json`` is malformed or missing.
        StorageError: it cannot be read.
    """
    from edge_rt.export.families.llama_folder import check_architecture
    from edge_rt.export.sources.hf_folder import HFFolder, read_hf_config
    from edge_rt.export.sources.safetensors_folder import SafetensorsFolder

    check_architecture(HFFolder(Path(name), read_hf_config(folder), SafetensorsFolder((), {})))


@dataclass(frozen=True)
class PlacedCheckpoint:
    """A checkpoint, and where an export would put its tensors.

    Attributes:
        source: its tensors, tokenizer and origin.
        config: its dimensions.
        profile: op profile of the package.
        choice: types of its matrices.
        weights: its matrices and vectors.
        layout: their places in ``weights.bin``.
    """

    source: Source
    config: LlamaConfig
    profile: OpProfile
    choice: WeightChoice
    weights: LlamaWeights
    layout: WeightsLayout


def place_checkpoint(
    path: Path, *, profile: str | None = None, activations: str = "int8", weights: str | None = None
) -> PlacedCheckpoint:
    """Open a checkpoint and decide how its weights are stored: the one place where that is decided from a path.

    Args:
        path: a GGUF file, any part of a split one, or a folder.
        profile: ``"native"``, ``"portable"``, or None: native if this machine can run it.
        activations: ``"int8"`` or ``"float"``.
        weights: types of the matrices, as in ``edge_rt.export.export_model``.

    Raises:
        InputError: it is malformed or not supported.
        StorageError: it cannot be read.
        ConfigError: ``profile`` or ``activations`` are unknown, or do not go together.
        RuntimeUnavailable: the native profile was asked for, and this machine cannot run it.
    """
    source, config = open_checkpoint(path)
    from edge_rt.export.families.llama_graph import collect_weights, place_weights
    from edge_rt.export.op_profile import choose_profile
    from edge_rt.export.quantise.decision import choose_weights

    chosen = choose_profile(profile, activations, library_path(), config)
    choice = choose_weights(source, config, weights, has_tables=chosen.has_tables)
    linears = collect_weights(source, config, chosen, choice.types)
    layout = place_weights(linears, config, chosen, is_calibrated=chosen.has_4_bit_keys)
    return PlacedCheckpoint(source, config, chosen, choice, linears, layout)
