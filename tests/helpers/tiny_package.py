"""A package of a few bytes that is written without an export."""

from __future__ import annotations

from edge_rt.package.manifest import Manifest, ModelConfig, Segment, SourceInfo, TokenizerInfo
from edge_rt.package.writer import PackageWriter

GRAPH, FIRST, NEW = b"\x12\x05graph", b"\x12\x05first", b"\x12\x03new"
FILES = {
    "chat_template.jinja": b"{{ messages }}",
    "model.onnx": GRAPH,
    "tokenizer.json": b"{}",
    "weights.bin": bytes(range(256)),
}
MANIFEST = Manifest(
    format_version=1,
    graph_version=1,
    producer="edge-rt 0.1.0",
    model=ModelConfig(
        name="Tiny ünï",
        architecture="llama",
        hidden_size=64,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        intermediate_size=128,
        vocab_size=419,
        context_length=512,
        rms_norm_eps=1e-05,
        rope_theta=10000.0,
        rope_scaling="none",
        tied_embedding=True,
        num_parameters=100864,
    ),
    op_profile="portable",
    activations="int8",
    quantisation={"embedding": "Q8_0", "attention": "Q4_1"},
    kv_formats=("f32",),
    segments=(Segment("model", "model.onnx", 0, 2),),
    drafters=(),
    tokenizer=TokenizerInfo("tokenizer.json", None, (2, 0), False),
    chat_template="chat_template.jinja",
    source=SourceInfo("gguf", "tiny.gguf", "0" * 64, 86336),
    license=None,
    files={},
)


def write(destination, files=None, *, force=False, manifest=MANIFEST):
    with PackageWriter(destination, force=force) as writer:
        for name, data in (files or FILES).items():
            (writer.folder / name).write_bytes(data)
        return writer.publish(manifest)
