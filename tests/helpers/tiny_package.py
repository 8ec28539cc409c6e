"""A package of a few bytes that is written without an export."""

from __future__ import annotations

from edge_rt.export.families.rope import default_rope
from edge_rt.package.decoder import Dimensions
from edge_rt.package.layers import Layer
from edge_rt.package.manifest import FORMAT_VERSION, Manifest, Segment, SourceInfo, TokenizerInfo
from edge_rt.package.writer import PackageWriter

GRAPH, FIRST, NEW = b"\x12\x05graph", b"\x12\x05first", b"\x12\x03new"
FILES = {
    "chat_template.jinja": b"{{ messages }}",
    "model.onnx": GRAPH,
    "tokenizer.json": b"{}",
    "weights.bin": bytes(range(256)),
}
DIMENSIONS = Dimensions(
    name="Tiny ünï",
    family="llama",
    hidden_size=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    intermediate_size=128,
    vocab_size=419,
    context_length=512,
    is_tied=True,
)
LAYER = Layer(DIMENSIONS.attention(), DIMENSIONS.feed_forward())
MANIFEST = Manifest(
    format_version=FORMAT_VERSION,
    producer="edge-rt 0.1.0",
    num_parameters=100864,
    op_profile="portable",
    activations="int8",
    quantisation={"embedding": "Q8_0", "attention": "Q4_1"},
    kv_formats=("f32",),
    segments=(Segment("model", "model.onnx", 0, 2),),
    tokenizer=TokenizerInfo("tokenizer.json", None, (2, 0), False),
    chat_template="chat_template.jinja",
    source=SourceInfo("gguf", "tiny.gguf", "0" * 64, 86336),
    license=None,
    decoder=DIMENSIONS.decoder("llama", LAYER, default_rope(10000.0, 16)),
    files={},
)


def write(destination, files=None, *, force=False, manifest=MANIFEST):
    with PackageWriter(destination, force=force) as writer:
        for name, data in (files or FILES).items():
            (writer.folder / name).write_bytes(data)
        return writer.publish(manifest)
