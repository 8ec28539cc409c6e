"""Reads stored rows that were changed at random: nothing but whole, unchanged blocks gets into a cache.

Five thousand changes unless told otherwise, each of a folder of blocks and of a file of them. Not part of CI, where
``tests/runtime/test_stored_prompts.py`` makes fewer::

    python -m tests.fuzz_rows [--runs N] [--seed N]
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

from edge_rt.errors import InvalidPromptCache, StorageError
from edge_rt.package.kv_formats import BLOCK_TOKENS
from edge_rt.runtime.cache.block_folder import BlockFolder
from edge_rt.runtime.cache.kv_cache import KVCache
from edge_rt.runtime.cache.prompt_cache import PromptCache
from edge_rt.runtime.cache.row_blocks import RowBlocks, block_names
from edge_rt.runtime.cache.rows_file import RowsFile, key_of

KEY = bytes(range(32))
PROMPT = [(5 + 41 * index) % 419 for index in range(257)]
BLOCKS = 4
HEADER = 384


def changed(data: bytes, others: list[bytes], draw: random.Random) -> bytes:
    """Return a block that is not as it was written, or now and then as it was."""
    new, kind = bytearray(data), draw.randrange(7)
    begin, count = draw.randrange(len(data)), draw.randrange(1, 64)
    if kind == 0:
        new[begin] ^= 1 << draw.randrange(8)
    elif kind == 1:
        begin, count = begin % HEADER, draw.choice((1, 4, 8))
        new[begin : begin + count] = draw.choice((bytes(count), b"\xff" * count, draw.randbytes(count)))
    elif kind == 2:
        del new[begin:]
    elif kind == 3:
        new += draw.randbytes(count)
    elif kind == 4:
        new[begin : begin + count] = draw.randbytes(len(new[begin : begin + count]))
    elif kind == 5:
        new = bytearray(draw.randbytes(len(data)))
    else:
        new = bytearray(draw.choice(others))
    return bytes(new)


def run(folder: Path, runs: int, draw: random.Random) -> Counter[str]:
    """Change one block after another, and check what is read; return how often what came of it."""
    memory = np.random.default_rng(0).integers(0, 256, (2, 256, 6)).astype(np.uint8)
    rows, blocks = memory.copy(), RowBlocks(KEY, lambda: [memory])
    names, whole = [KEY, *block_names(KEY, PROMPT)], []
    for index in range(BLOCKS):
        block, begin = blocks.buffer(), BLOCK_TOKENS * index
        end = begin + BLOCK_TOKENS
        blocks.pack(names[index], PROMPT[begin:end], np.arange(begin, end), block)
        whole.append(block.tobytes())
    stored = BlockFolder(folder / "blocks", KEY, {}, size=blocks.size, limit=1 << 30)
    stored.make_room(0)
    seen: Counter[str] = Counter()
    for _ in range(runs):
        which = draw.randrange(BLOCKS)
        new = changed(whole[which], whole, draw)
        mixed = [new if index == which else data for index, data in enumerate(whole)]
        for name, data in zip(names[1:], mixed, strict=True):
            stored.write(name, np.frombuffer(bytearray(data), np.uint8))
        memory[:] = 0
        prompts, cache = PromptCache(blocks, stored), KVCache(256)
        held = prompts.restore(cache, PROMPT)
        assert held == (256 if new == whole[which] else BLOCK_TOKENS * which), (held, which)
        assert np.array_equal(memory[:, :held], rows[:, :held])
        assert not memory[:, held:].any()
        seen["whole" if held == 256 else "damaged" if prompts.take_warnings() else "of another size"] += 1
        path = folder / "one.rows"
        path.write_bytes(new if draw.random() < 0.3 else b"".join(mixed))
        key_of(path)
        try:
            RowsFile(path, blocks).verify()
        except (InvalidPromptCache, StorageError):
            seen["file refused"] += 1
        else:
            seen["file read"] += 1
            assert path.read_bytes() in [b"".join(whole[:count]) for count in range(1, BLOCKS + 1)]
    return seen


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(dict(run(Path(folder), asked.runs, random.Random(asked.seed))))


if __name__ == "__main__":
    main()
