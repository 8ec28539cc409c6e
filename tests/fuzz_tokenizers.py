"""Compares tokenizers built from GGUF metadata with other implementations, on lines of text made up at random.

Without files: for every cut, a small vocabulary, and the ``tokenizers`` library with the cut of the models' own
``tokenizer.json``. With GGUF files (vocabularies are enough): llama.cpp, through a Python that has llama-cpp-python.
Ten thousand lines each unless told otherwise. Not part of CI, where ``tests/export/sources/test_gguf_cuts.py`` runs
fewer::

    python -m tests.fuzz_tokenizers [--lines N] [--seed N]
    python -m tests.fuzz_tokenizers --llama-python PYTHON FILE.gguf...
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import unicodedata
from pathlib import Path

from edge_rt.errors import EdgeRTError
from edge_rt.export.sources.gguf_header import read_header
from edge_rt.export.sources.gguf_tokenizer import build_tokenizer
from edge_rt.text.tokenizer import Tokenizer
from tests.helpers.tokenizer_cuts import CUTS, built, library
from tests.helpers.tokenizer_texts import lines

LLAMA = """
import json, sys, llama_cpp
llama = llama_cpp.Llama(sys.argv[1], vocab_only=True, verbose=False)
lines = json.load(open(sys.argv[2]))
ids = [[llama.tokenize(line.encode(), False, index == 1) for line in part] for index, part in enumerate(lines)]
ends = [token for token in range(llama.n_vocab()) if llama_cpp.llama_vocab_is_eog(llama._model.vocab, token)]
bos = llama_cpp.llama_vocab_get_add_bos(llama._model.vocab)
json.dump({"ids": ids, "ends": ends, "bos": bos}, open(sys.argv[3], "w"))
"""


def compare(name: str, texts: list[str], found: list[list[int]], expected: list[list[int]], show: int) -> int:
    wrong = [index for index, (one, other) in enumerate(zip(found, expected, strict=True)) if one != other]
    print(f"{name}: {len(texts) - len(wrong)} of {len(texts)} lines equal")
    for index in wrong[:show]:
        print(f"  {texts[index]!r}\n    {found[index]}\n    {expected[index]}")
    return len(wrong)


def against_library(texts: list[str], show: int) -> int:
    wrong = 0
    for name in CUTS:
        tokenizer, other = built(name), library(name)
        expected = [other.encode(text, add_special_tokens=False).ids for text in texts]
        wrong += compare(name, texts, [tokenizer.encode_text(text) for text in texts], expected, show)
    return wrong


def against_llama(path: Path, python: str, texts: list[str], show: int) -> int:
    metadata = read_header(path).metadata
    tokens = metadata["tokenizer.ggml.tokens"]
    try:
        build = build_tokenizer(metadata, len(tokens))
    except EdgeRTError as error:
        print(f"{path.name}: refused: {error}")
        return 0
    tokenizer = Tokenizer.from_text(build.json_text, info=build)
    if json.loads(build.json_text)["normalizer"] == {"type": "NFC"}:
        # llama.cpp does not compose characters.
        texts = [unicodedata.normalize("NFC", text) for text in texts]
    marked = with_marks(texts, [entry["content"] for entry in json.loads(build.json_text)["added_tokens"]])
    with tempfile.TemporaryDirectory() as folder:
        given, result = Path(folder, "lines.json"), Path(folder, "ids.json")
        given.write_text(json.dumps([texts, marked]))
        subprocess.run([python, "-c", LLAMA, str(path), str(given), str(result)], check=True)
        answer = json.loads(result.read_text())
    if set(answer["ends"]) != set(build.eos_token_ids) or answer["bos"] != build.add_bos:
        print(f"{path.name}: end tokens {build.eos_token_ids}, llama.cpp {answer['ends']};", end=" ")
        print(f"BOS {build.add_bos}, llama.cpp {answer['bos']}")
    wrong = compare(f"{path.name} as text", texts, [*map(tokenizer.encode_text, texts)], answer["ids"][0], show)
    print(f"  {len(tokenizer.special_tokens)} special tokens, {len(build.warnings)} warnings")
    found = [tokenizer.encode_spans([(text, True)]) for text in marked]
    return wrong + compare(f"{path.name} with marks", marked, found, answer["ids"][1], show)


def with_marks(texts: list[str], marks: list[str]) -> list[str]:
    """Put an added token before, into and behind every text, with white space around it or without."""
    result = []
    for index, text in enumerate(texts):
        first, second, third = (marks[(index * step) % len(marks)] for step in (1, 7, 13))
        half = len(text) // 2
        result.append(f"{first}{text[:half]}{second}{text[half:]} {third}\n ")
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=3)
    parser.add_argument("--llama-python", default=sys.executable)
    options = parser.parse_args()
    texts = lines(options.lines, options.seed)
    if not options.files:
        return min(against_library(texts, options.show), 1)
    return min(sum(against_llama(path, options.llama_python, texts, options.show) for path in options.files), 1)


if __name__ == "__main__":
    raise SystemExit(main())
