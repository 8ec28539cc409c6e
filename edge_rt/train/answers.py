"""Writes the answers that a drafter learns from into a folder."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch

from edge_rt.errors import InputError
from edge_rt.package.reader import Package
from edge_rt.runtime.prompts import PromptEncoder
from edge_rt.system.progress import ProgressCallback, no_progress
from edge_rt.train import options as stages
from edge_rt.train.batch import BatchRunner
from edge_rt.train.dialogues.markers import find_markers
from edge_rt.train.dialogues.writer import ROOM, DialogueWriter
from edge_rt.train.options import WRITING_SHARE, TrainOptions
from edge_rt.train.shards import SHARD_TOKENS, shard_paths, written

_SEQUENCES: Final = 32
_CONTEXT: Final = 1152
_PREFILL_ROWS: Final = 128


def write_answers(
    package: Package, folder: Path, options: TrainOptions, progress: ProgressCallback = no_progress
) -> int:
    """Write answers into a folder until there are enough, or the time for them is over.

    Returns:
        Prompts of ``options`` that are too long to be answered, and were left out.

    Raises:
        InputError: all prompts are too long.
        StorageError: the disk is full; complete files stay, and are continued.
        UnsupportedModel, InvalidTemplate: the model cannot write dialogues by itself.
    """
    begun = time.monotonic()
    files = len(shard_paths(folder))
    total = files * SHARD_TOKENS
    limit = WRITING_SHARE * options.seconds

    def is_enough() -> bool:
        spent, message = time.monotonic() - begun, f"{total:,} answer tokens"
        if options.tokens is not None:
            progress(stages.event("answers", total, options.tokens, "tokens", message))
            return total >= options.tokens
        # The last file is finished behind the time.
        progress(stages.event("answers", min(int(spent), int(limit)), int(limit), "seconds", message))
        return spent >= limit and total > 0

    if is_enough():
        return 0
    config = package.manifest.model
    capacity = min(_CONTEXT, config.context_length)
    texts = PromptEncoder(package, config.context_length)
    prompts = None if options.prompts is None else _fitting(texts, options.prompts, capacity - 2 * ROOM)
    with BatchRunner(
        package,
        sequences=_SEQUENCES,
        capacity=capacity,
        kv_format=options.kv_format,
        threads=options.threads or torch.get_num_threads(),
        most_rows=_SEQUENCES + _PREFILL_ROWS,
    ) as runner:
        # Another seed behind the answers of an earlier run, which would be written again otherwise.
        seed = options.seed + 1000 * files
        exits = [package.manifest.exits.index(layer) for layer in options.exits]
        writer = DialogueWriter(runner, texts.tokenizer, find_markers(texts), seed, prompts, exits)
        for shard in written(folder, writer.answers()):
            total += shard.num_tokens
            if is_enough():
                break
    return 0 if prompts is None else len(options.prompts or ()) - len(prompts)


def _fitting(texts: PromptEncoder, prompts: Sequence[str], most: int) -> list[str]:
    """Return the prompts of at most ``most`` tokens."""
    sizes = [len(texts.tokenizer.encode_text(prompt)) for prompt in prompts]
    fitting = [prompt for prompt, size in zip(prompts, sizes, strict=True) if size <= most]
    if not fitting:
        raise InputError(
            "No prompt is short enough to be answered.",
            f"The shortest of {len(prompts)} has {min(sizes, default=0)} tokens; {most} are possible.",
            "Give shorter prompts, or train on --data self.",
        )
    return fitting
