"""What quantised weights cost: perplexity of our types and llama.cpp's, made from the same floats.

The floats are a checkpoint with permuted channels (``permuted_model.py``), as a BF16 folder for edge-rt and as a BF16
GGUF file for llama.cpp, which quantises it without and with an importance matrix: the mean squares of the inputs of
every matrix, on the calibration text that edge-rt uses, too. Perplexity is that of a plain float32 forward pass over
the dequantised weights of either side, so that only weights differ; on windows of text that no side has seen. Intervals
are paired, token by token (bootstrap over blocks of 64 neighbours). Prompts: a JSON-lines file whose entries hold
``turns``, such as Spec-Bench's question.jsonl (https://github.com/hemingkx/Spec-Bench)::

    python benchmarks/weight_quality.py --gguf model.gguf --prompts question.jsonl --llama-python PYTHON --work DIR

End to end, each file is also run by its own engine, with rounded activations and a KV cache in f16. Sizes are those of
the matrices. ``--sizes`` adds packages of given sizes; those of llama.cpp's files are always made.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from kv_quality import judge
from kv_stats import perplexity, perplexity_ratio
from kv_text import Window, read_turns, text_windows
from permuted_model import PermutedModel

import edge_rt
from edge_rt.export.checkpoint import Checkpoint, calibration_text, read_checkpoint
from edge_rt.export.decoder.tensors import INPUT_OF
from edge_rt.export.decoder.weights import place_weights
from edge_rt.export.entry import export_model
from edge_rt.export.op_profile import PROFILES
from edge_rt.export.opening import open_checkpoint
from edge_rt.export.preparing import settle_types
from edge_rt.export.quantise.decision import choose_weights
from edge_rt.export.quantise.moments import CalibrationWalk
from edge_rt.export.reference.forward import DecoderForward
from edge_rt.export.sources.model_file import TensorReader
from edge_rt.export.weights.matrices import CheckpointMatrices, Matrices, PackageMatrices
from edge_rt.export.weights.weights_file import WeightsLayout
from edge_rt.text.tokenizer import Tokenizer

WORKERS = Path(__file__).parent / "workers"
WINDOW = 512
THEIRS = {"Q4_0": ("Q4_0", False), "Q4_0 imatrix": ("Q4_0", True), "Q4_K_M imatrix": ("Q4_K_M", True)}
"""Name -> llama.cpp's type, and whether an importance matrix is used."""
PROFILE = PROFILES["native"]


@dataclass(frozen=True)
class Variant:
    """Weights to be judged: bytes of their matrices, losses per window, and those of its own engine, if it has one."""

    name: str
    nbytes: int
    losses: list[np.ndarray]
    run: list[np.ndarray] | None = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--calibration", default="built-in", help="text that both sides use")
    parser.add_argument("--tokens", type=int, default=50_000, help="of text to judge by, at least")
    parser.add_argument("--weights", nargs="*", default=["int8", "int4"], help="values of edge-rt's option")
    parser.add_argument("--sizes", nargs="*", type=int, default=[], help="bytes of matrices of further packages")
    parser.add_argument("--llama-python", help="interpreter that has llama-cpp-python; left out: no files of llama.cpp")
    parser.add_argument("--work", type=Path, required=True, help="folder for checkpoints and packages")
    parser.add_argument("--json", type=Path, help="write the losses to this file")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    folder, file = arguments.work / "floats", arguments.work / "floats.gguf"
    model = PermutedModel(arguments.gguf)
    model.write_folder(folder)
    model.write_gguf(file)
    windows = make_windows(folder, arguments)
    (arguments.work / "windows.json").write_text(json.dumps([window.ids for window in windows]))
    variants: list[Variant] = []
    for variant in judged(arguments, folder, file, windows):
        variants.append(variant)
        report(variants[-1:], variants[0])
    print()
    report(variants, variants[0], is_table=True)
    if arguments.json:
        document = [
            {"name": v.name, "bytes": v.nbytes, "losses": listed(v.losses), "run": listed(v.run or [])}
            for v in variants
        ]
        arguments.json.write_text(json.dumps(document), encoding="utf-8")


def listed(windows: list[np.ndarray]) -> list[list[float]]:
    return [window.tolist() for window in windows]


def make_windows(folder: Path, arguments: argparse.Namespace) -> list[Window]:
    turns = read_turns(arguments.prompts)
    text = "\n\n".join(message for messages in turns for message in messages)
    tokenizer = Tokenizer.from_text((folder / "tokenizer.json").read_text(encoding="utf-8"))
    return text_windows(tokenizer.encode_text(text), WINDOW, arguments.tokens)


def judged(arguments: argparse.Namespace, folder: Path, file: Path, windows: list[Window]) -> Iterator[Variant]:
    """Yield the floats, llama.cpp's files, and packages; each is made and judged before the next."""
    source, _ = open_checkpoint(folder)
    with TensorReader(source.files) as stream:
        floats = CheckpointMatrices(stream, source.tensors)
        matrices = sum(tensor.nbytes for tensor in source.tensors.values() if len(tensor.shape) == 2)
        yield Variant("floats", matrices, losses(floats, folder, windows))
        moments = arguments.work / "moments.npz"
        write_moments(moments, folder, floats, arguments.calibration)
        sizes = {}
        for name, (kind, with_imatrix) in THEIRS.items() if arguments.llama_python else ():
            target = arguments.work / f"{name.replace(' ', '-')}.gguf"
            command = [arguments.llama_python, str(WORKERS / "llama_cpp_quantise.py"), str(file), str(target), kind]
            subprocess.run([*command, *([str(moments)] if with_imatrix else [])], check=True, stderr=subprocess.DEVNULL)
            theirs, _ = open_checkpoint(target)
            sizes[name] = sum(tensor.nbytes for tensor in theirs.tensors.values() if len(tensor.shape) == 2)
            with TensorReader(theirs.files) as reader:
                rows = CheckpointMatrices(reader, theirs.tensors)
                run = run_by_llama_cpp(arguments, target)
                yield Variant(f"llama.cpp {name}", sizes[name], losses(rows, target, windows), run)
        wanted = [(weights, 0) for weights in arguments.weights]
        wanted += [(None, size) for size in (*dict.fromkeys(sizes.values()), *arguments.sizes)]
        for weights, size in wanted:
            yield package(arguments, folder, floats, weights, size, windows)


def write_moments(path: Path, folder: Path, floats: Matrices, calibration: str) -> None:
    """Write the mean squares of the inputs of every matrix on the calibration text."""
    checkpoint = read(folder, calibration, "keep", 0)
    walk = CalibrationWalk(floats, checkpoint.source, checkpoint.decoder, checkpoint.calibration.token_ids)
    found = {}
    for layer in range(checkpoint.decoder.num_layers):
        moments = walk.layer(layer)
        for kind, name in INPUT_OF.items():
            both = moments[name].fitted, moments[name].held_out
            tokens = sum(part.tokens for part in both)
            found[f"blk.{layer}.{kind}.weight"] = sum(part.diagonal * (part.tokens / tokens) for part in both)
    np.savez(path, **found)


def read(folder: Path, calibration: str, weights: str | None, size: int) -> Checkpoint:
    source, decoder = open_checkpoint(folder)
    choice = choose_weights(source, decoder, weights, size)
    return read_checkpoint(source, decoder, PROFILE, choice, calibration_text(calibration, PROFILE, choice))


def layout_of(checkpoint: Checkpoint) -> WeightsLayout:
    return place_weights(checkpoint.weights, checkpoint.decoder, PROFILE, is_calibrated=True)


def package(
    arguments: argparse.Namespace, folder: Path, floats: Matrices, weights: str | None, size: int, windows: list
) -> Variant:
    """Export a package and judge it; ``size`` is that of its matrices."""
    total = 0
    if size:
        # weights.bin holds more than matrices: tables, norms, and constants of 4-bit keys.
        plain = read(folder, arguments.calibration, None, 1 << 40)
        total = size + layout_of(plain).size - matrix_bytes(plain, layout_of(plain))
    name = weights or f"size {size / 1e6:.2f} MB"
    out = arguments.work / f"package-{weights or size}"
    report = export_model(
        folder, out, profile="native", weights=weights, size=total, calibration=arguments.calibration, force=True
    )
    checkpoint = read(folder, arguments.calibration, weights, total)
    checkpoint = settle_types(checkpoint, layout_of(checkpoint), lambda *_: None)
    layout = layout_of(checkpoint)
    stored = PROFILE.stored(out / "weights.bin", layout)
    rows = PackageMatrices(floats, checkpoint.weights.linears(), stored)
    print(f"{name}: exported in {report.seconds:.1f} s", file=sys.stderr)
    with edge_rt.load(out, threads=2, kv="f16", ctx=WINDOW, spec="off") as model:
        run = [judge(model, window)[0] for window in windows]
    return Variant(f"edge-rt {name}", matrix_bytes(checkpoint, layout), losses(rows, folder, windows), run)


def run_by_llama_cpp(arguments: argparse.Namespace, file: Path) -> list[np.ndarray]:
    """Return the losses of a file as llama.cpp runs it."""
    out = arguments.work / "losses.npz"
    command = [arguments.llama_python, str(WORKERS / "llama_cpp_losses.py"), str(file)]
    command += [str(arguments.work / "windows.json"), str(out)]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    found = np.load(out)
    return [found[str(number)] for number in range(len(found.files))]


def matrix_bytes(checkpoint: Checkpoint, layout: WeightsLayout) -> int:
    return sum(layout.slots[f"{linear.name}.tiles"].nbytes for linear in checkpoint.weights.linears())


class Kept(Matrices):
    """Matrices that are read once."""

    def __init__(self, matrices: Matrices, names: Iterator[str]) -> None:
        self._values = {name: np.concatenate(list(matrices.pieces(name))) for name in names}

    def pieces(self, name: str) -> Iterator[np.ndarray]:
        """Yield a matrix whole."""
        yield self._values[name]

    def rows(self, name: str, numbers: list[int]) -> np.ndarray:
        """Return some rows."""
        return self._values[name][list(numbers)]


def losses(matrices: Matrices, path: Path, windows: list[Window]) -> list[np.ndarray]:
    """Return the negative log-likelihood of every token behind the first, per window, with float activations."""
    source, decoder = open_checkpoint(path)
    kept = Kept(matrices, iter(source.tensors))
    forward = DecoderForward(
        kept,
        source,
        decoder,
        product=lambda x, name: (x.reshape(-1, x.shape[-1]) @ next(kept.pieces(name)).T).reshape(*x.shape[:-1], -1),
    )
    head = next(kept.pieces("token_embd.weight" if decoder.is_tied else "output.weight"))
    tables, found = forward.rope(WINDOW), []
    for ids in (window.ids for window in windows):
        x = forward.embed(ids)[None]
        for layer in range(decoder.num_layers):
            x = forward.layer(x, layer, tables)
        logits = forward.logits_of(forward.norm(x, "output_norm.weight")[0, :-1] @ head.T)
        peak = logits.max(axis=1)
        total = peak + np.log(np.exp(logits - peak[:, None]).sum(axis=1, dtype=np.float64))
        found.append(total - logits[np.arange(len(logits)), ids[1:]])
    return found


def report(variants: list[Variant], floats: Variant, *, is_table: bool = False) -> None:
    if is_table:
        print("| weights | matrices | perplexity | over floats (95 %) | end to end, over floats (95 %) |")
        print("|---|---|---|---|---|")
    for variant in variants:
        cells = [variant.name, f"{variant.nbytes / 1e6:.2f} MB", f"{perplexity(variant.losses):.3f}"]
        for found in (variant.losses, variant.run):
            is_none = variant is floats or found is None
            cells.append("-" if is_none else perplexity_ratio(found, floats.losses).percent_change())
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
