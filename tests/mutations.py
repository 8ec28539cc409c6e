"""Breaks the product on purpose, in a copy of the tree, and expects tests to fail, where not all cases are run.

Where cases are chosen (``all_pairs``, one format for all, one signal for a stage) there are changes here that the
chosen ones have to find. Not part of CI: it compiles ``csrc/``, and again for every change in there::

    python -m tests.mutations [--only PATTERN] [--keep FOLDER]

Needs the environment that the tests need. Exits with 1 if a change was not noticed.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]


class Mutation(NamedTuple):
    """A change, and where tests must fail."""

    file: str
    old: str
    new: str
    tests: tuple[str, ...]


HANGS_AFTER = 600
"""Seconds; tests of one change take a minute."""

CONSTANTS = ("tests/ops/test_spec_attention.py::test_passes_of_every_kind_match_the_reference", "-k", "constants")
TREES = ("tests/ops/test_spec_attention.py::test_bits_of_a_tree_are_those_of_its_branches",)
LAYER = ("tests/ops/test_decoder_layer.py::test_bits_are_those_of_five_operators",)
BOMBS = ("tests/text/test_template_guard.py", "-k", "without_end")
CUTS = ("tests/text/test_template_text.py",)
WINDOW = ("tests/runtime/test_window_model.py::test_rolled_back_to_every_position_and_computed_again",)
CACHE = ("tests/runtime/forward/test_io_binding.py", "-k", "released or forgotten or written")
SIGNALS = ("tests/cli/commands/test_export.py::test_a_signal_leaves_nothing_behind",)
LADDER = ("tests/memory/test_plan.py::TestLadder",)
PREDICTIONS = "tests/export/test_estimate.py::test_predictions_hold"

ATTENTION = "csrc/ops/spec_attention/"
DECODER_LAYER = "csrc/ops/decoder_layer/decoder_layer.cc"
GUARD = "edge_rt/text/template_budget.py"
ORIGINS = "edge_rt/text/template_text.py"
FALLBACKS = "edge_rt/memory/fallbacks.py"
FORWARD = "edge_rt/runtime/forward/"
CACHE_ROOM = "edge_rt/runtime/cache/"

AHEAD = ("tests/runtime/speculation/test_ahead.py::test_the_first_steps_are_those_of_the_reference",)
RATIO = "edge_rt/runtime/decode/accept_ratio.py"
FEW_TOKENS = ("tests/runtime/decode/test_accept_exact.py::TestDrawnDrafts", "-k", "few_tokens")
MATCHED = ("tests/runtime/decode/test_accept_exact.py::TestSampleAndMatch", "-k", "plain_decodings")
SAME_TEXT = ("tests/runtime/speculation/test_adaptive.py::TestSameText", "-k", "every_source")
AHEAD_MODEL = "edge_rt/runtime/speculation/ahead_model.py"
MERGED = "edge_rt/export/weights/merged.py"
ADAPTERS = ("tests/export/test_adapters.py",)

MUTATIONS = [
    Mutation(RATIO, "if token in end_ids:", "if False:", FEW_TOKENS),
    Mutation(RATIO, "- q[shared] * total", "- q[shared]", FEW_TOKENS),
    Mutation(RATIO, "        sampler.observe(token)\n", "", FEW_TOKENS),
    Mutation("edge_rt/runtime/decode/accept.py", "None if token in end_ids else children", "children", MATCHED),
    Mutation("edge_rt/runtime/decode/accept.py", "choose(node + 1)", "choose(max(node, 0))", MATCHED),
    Mutation("edge_rt/runtime/decode/accept.py", "choose(node + 1)", "choose(max(node, 0))", SAME_TEXT),
    Mutation(MERGED, "found *= self._scale", "found *= 1", ADAPTERS),
    Mutation(MERGED, "if self._order is None else self._order[rows]", "if True else self._order[rows]", ADAPTERS),
    Mutation(MERGED, "np.unique(rows // BLOCK_ROWS, return_inverse=True)", "(rows, np.arange(len(rows)))", ADAPTERS),
    Mutation(
        "edge_rt/export/families/adapted.py", "order if source.has_halves else np.argsort(order)", "order", ADAPTERS
    ),
    Mutation("edge_rt/export/estimate.py", " + max(_held_bytes(linear) for linear in linears)", "", ADAPTERS),
    Mutation(
        GUARD, "for value, times in ((left, right), (right, left)):", "for value, times in ((left, right),):", BOMBS
    ),
    Mutation(GUARD, "self.memory -= size", "self.memory -= 0", BOMBS),
    Mutation("edge_rt/text/template_guard.py", 'operator == "**" and not', 'operator == "**>" and not', BOMBS),
    Mutation(ORIGINS, "kept += (begin, end)", "kept += (0, len(part))", CUTS),
    Mutation(ORIGINS, "own[-1] = start + end", "own[-1] = start + end + 1", CUTS),
    Mutation(ORIGINS, "if own and len(changed) == len(text)", "if own", CUTS),
    Mutation(
        "edge_rt/text/template_functions.py",
        "return texts.replace(text, old, new, times)",
        "return own_text(texts.replace(text, old, new, times))",
        ("tests/text/test_template_families.py", "-k", "whatever"),
    ),
    Mutation("edge_rt/text/thoughts.py", "overlap(self._held, end)]", "0]", ("tests/text/test_thoughts.py",)),
    Mutation(
        "edge_rt/cli/chat/repl.py",
        "del buffer._undo_stack[:-MOST_EDITS]",
        "pass",
        ("tests/cli/chat/test_repl.py::test_edits_that_can_be_undone_take_little_memory",),
    ),
    Mutation(
        f"{CACHE_ROOM}sliding_window.py", "max(length + 1 - self.window, 0) >=", "length + 2 - self.window >=", WINDOW
    ),
    Mutation(
        f"{CACHE_ROOM}sliding_window.py", "max(length + 1 - self.window, 0) >=", "length - self.window >=", WINDOW
    ),
    Mutation(f"{CACHE_ROOM}kv_cache.py", "self._window.reset()\n        del", "pass\n        del", WINDOW),
    Mutation(
        f"{FORWARD}io_binding_native.py", "super().release()\n        self.buffers = []", "super().release()", CACHE
    ),
    Mutation(f"{FORWARD}io_binding_portable.py", "self.keys, self.values = [], []", "self.keys = []", CACHE),
    Mutation(f"{FORWARD}outputs.py", '"MADV_REMOVE"', '"MADV_DONTNEED"', CACHE),
    Mutation(f"{FORWARD}io_binding_base.py", "self._host_buffers()[:1]", "self._host_buffers()[:0]", CACHE),
    Mutation(
        "edge_rt/cli/interrupt.py",
        'return 128 + (signals["SIGTERM"] if',
        'return 130 + 0 * (signals["SIGTERM"] if',
        SIGNALS,
    ),
    Mutation(
        "edge_rt/cli/interrupt.py", '("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")', '("SIGINT", "SIGHUP")', SIGNALS
    ),
    Mutation(
        "edge_rt/package/writer.py",
        "shutil.rmtree(self.folder, ignore_errors=True)\n        self._remove_new_parents()",
        "self._remove_new_parents()",
        SIGNALS,
    ),
    Mutation(FALLBACKS, "_TREES: Final = (16, 12, 8, 6, 4)", "_TREES: Final = ()", LADDER),
    Mutation(FALLBACKS, '("f32", "f16", "int8", "k8v4", "int4")', '("f32", "f16", "k8v4", "int4")', LADDER),
    Mutation(FALLBACKS, "((4096, LEAST_TABLE), (LEAST_TABLE, LEAST_TABLE))", "()", LADDER),
    Mutation(
        "edge_rt/export/estimate.py",
        "disk_bytes=size + GRAPH_AND_TEXT_BYTES",
        "disk_bytes=size",
        (f"{PREDICTIONS}_for_a_real_model",),
    ),
    Mutation(
        DECODER_LAYER, "is_first ? kAttentionNorm : kMlpNorm)", "is_first ? kAttentionNorm : kAttentionNorm)", LAYER
    ),
    Mutation(DECODER_LAYER, "{nullptr, pass.x, nullptr, pass.sum}", "{nullptr, pass.x, nullptr, pass.x}", LAYER),
    # Only where matrices have several formats.
    Mutation(
        DECODER_LAYER,
        "const PackedParts& weight = pass.weights[which];\n  RoundRows job",
        "const PackedParts& weight = pass.weights[kQkv];\n  RoundRows job",
        LAYER,
    ),
    # Only with a balance, and only what queries see of it.
    Mutation(
        f"{ATTENTION}spec_attention_prepare.inl",
        "pass.key_balance + int64_t{kv} * pass.head_dim;",
        "pass.key_balance;",
        CONSTANTS,
    ),
    # Likewise, and only in heads that are no whole number of vectors.
    Mutation(
        f"{ATTENTION}spec_attention_prepare.inl",
        "vf_store(x + d, vf_mul(vf_load(x",
        "if (n == 16) vf_store(x + d, vf_mul(vf_load(x",
        CONSTANTS,
    ),
    Mutation(
        f"{ATTENTION}spec_attention_cpu.inl", "> view.start + j - pass.past)", ">= view.start + j - pass.past)", TREES
    ),
    # What a block that predicts ahead reads: what is first, by which norm, at which positions.
    Mutation(
        "edge_rt/export/graph/ahead.py",
        '"Concat", parts, ["ahead.both"]',
        '"Concat", parts[::-1], ["ahead.both"]',
        AHEAD,
    ),
    Mutation(
        AHEAD_MODEL, "self._guessed[None], self._norms.own_norm", "self._guessed[None], self._norms.model_norm", AHEAD
    ),
    Mutation(AHEAD_MODEL, "stream[certain - 1].copy()", "stream[certain - 2].copy()", AHEAD),
]


class Copy:
    """A copy of the tree, installed into an environment of its own that shares the libraries of this one."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        names = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        ).stdout.splitlines()  # fmt: skip
        for name in names:
            target = self.root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
        venv.create(folder / "venv", with_pip=True)
        self.python = folder / "venv" / "bin" / "python"
        self._run("-m", "pip", "install", "--quiet", "scikit-build-core", "cmake", "ninja")
        paths = sysconfig.get_paths(vars={"base": str(folder / "venv"), "platbase": str(folder / "venv")})
        # Last, and not as a site folder: the product that is installed there is not found.
        Path(paths["purelib"], "zz_libraries.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
        self.install()

    def _run(self, *arguments: str) -> None:
        subprocess.run([self.python, *arguments], cwd=self.root, check=True)

    def install(self) -> None:
        """Build what has changed."""
        self._run("-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "-e", ".")

    def test(self, tests: tuple[str, ...]) -> int:
        """Return pytest's exit code; 1 as well if it takes ten times as long as usual: a kernel never returns."""
        command = [self.python, "-m", "pytest", "-q", "-n", "0", "-x", "-p", "no:cacheprovider", *tests]
        try:
            return subprocess.run(
                command, cwd=self.root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=HANGS_AFTER
            ).returncode
        except subprocess.TimeoutExpired:
            return 1

    def fails_with(self, mutation: Mutation) -> bool:
        """Tell whether tests fail once something is broken; it is whole again afterwards."""
        path = self.root / mutation.file
        whole = path.read_text(encoding="utf-8")
        if whole.count(mutation.old) != 1:
            raise SystemExit(f"{mutation.file} has {whole.count(mutation.old)} times: {mutation.old}")
        try:
            path.write_text(whole.replace(mutation.old, mutation.new), encoding="utf-8")
            if mutation.file.startswith("csrc/"):
                self.install()
            return self.test(mutation.tests) == 1
        finally:
            path.write_text(whole, encoding="utf-8")


def main() -> int:
    """Try all changes; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="of changes whose file, text or tests match a regular expression")
    parser.add_argument("--keep", type=Path, help="where to copy the tree to; it stays")
    arguments = parser.parse_args()
    chosen = [m for m in MUTATIONS if re.search(arguments.only, f"{m.file} {m.old} {m.new} {m.tests}")]
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(arguments.keep or Path(folder))
        for tests in dict.fromkeys(m.tests for m in chosen):
            if copy.test(tests) != 0:
                raise SystemExit(f"These fail without any change: {' '.join(tests)}")
        for mutation in chosen:
            started = time.monotonic()
            is_found = copy.fails_with(mutation)
            missed += not is_found
            text = " ".join(mutation.new.split())
            print(
                f"{'found' if is_found else 'MISSED':7}{time.monotonic() - started:6.0f} s  {mutation.file}: {text}",
                flush=True,
            )
        if any(mutation.file.startswith("csrc/") for mutation in chosen) and arguments.keep:
            copy.install()
    print(f"{len(chosen) - missed} of {len(chosen)} changes found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
