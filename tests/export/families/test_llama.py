"""What a header may say: every refusal is typed, quick, and leaves nothing behind."""

from __future__ import annotations

import math
import struct
import time

import numpy as np
import pytest

from edge_rt.errors import InvalidModelFile, InvalidTokenizer, UnsupportedModel
from edge_rt.export import export_model
from edge_rt.export.families.header import read_header_decoder
from edge_rt.export.families.rope import Yarn, default_rope, linear_rope, yarn_rope, yarn_temperature
from edge_rt.export.sources.gguf_header import read_header
from tests.helpers.gguf_factory import write_llama_gguf
from tests.helpers.packages import listing

NAN, INF = float("nan"), float("inf")


def described(path):
    """Return the description of a file's model."""
    return read_header_decoder(read_header(path))[1]


def refused(gguf, tmp_path, error, message):
    """Assert that an export is refused soon and writes nothing."""
    out = tmp_path / "out"
    out.mkdir()
    started = time.process_time()
    with pytest.raises(error, match=message):
        export_model(gguf, out / "package")
    assert time.process_time() - started < 4
    assert listing(out) == []


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("attention.head_count", 0, InvalidModelFile),
        ("attention.head_count", 3, InvalidModelFile),
        ("attention.head_count", 1 << 20, InvalidModelFile),
        ("attention.head_count", -4, InvalidModelFile),
        ("attention.head_count", "4", InvalidModelFile),
        ("attention.head_count_kv", 0, InvalidModelFile),
        ("attention.head_count_kv", 3, InvalidModelFile),
        ("attention.head_count_kv", 8, InvalidModelFile),
        ("attention.layer_norm_rms_epsilon", 0.0, InvalidModelFile),
        ("attention.layer_norm_rms_epsilon", NAN, InvalidModelFile),
        ("attention.layer_norm_rms_epsilon", -1e-5, InvalidModelFile),
        ("attention.layer_norm_rms_epsilon", INF, InvalidModelFile),
        ("attention.key_length", 15, UnsupportedModel),
        ("attention.sliding_window", -1, InvalidModelFile),
        ("attention.sliding_window", 1 << 62, InvalidModelFile),
        ("attention.sliding_window", "16", InvalidModelFile),
        ("attention.key_length", 0, InvalidModelFile),
        ("attention.value_length", 32, UnsupportedModel),
        ("block_count", 0, InvalidModelFile),
        ("block_count", 3, InvalidModelFile),
        ("block_count", 10**9, InvalidModelFile),
        ("block_count", 1, UnsupportedModel),
        ("context_length", 0, InvalidModelFile),
        ("context_length", 1, InvalidModelFile),
        ("context_length", 1 << 62, InvalidModelFile),
        ("embedding_length", 0, InvalidModelFile),
        ("embedding_length", 96, UnsupportedModel),
        ("embedding_length", 1 << 40, InvalidModelFile),
        ("feed_forward_length", 0, InvalidModelFile),
        ("feed_forward_length", 96, InvalidModelFile),
        ("feed_forward_length", 1 << 40, InvalidModelFile),
        ("rope.dimension_count", 8, UnsupportedModel),
        ("rope.freq_base", 0.0, InvalidModelFile),
        ("rope.freq_base", 1.0, InvalidModelFile),
        ("rope.freq_base", NAN, InvalidModelFile),
        ("rope.freq_base", INF, InvalidModelFile),
        ("rope.freq_base", -10000.0, InvalidModelFile),
        ("rope.scaling.type", "longrope", UnsupportedModel),
        ("rope.scaling.factor", 0.0, InvalidModelFile),
        ("rope.scaling.factor", NAN, InvalidModelFile),
        ("rope.scaling.original_context_length", 0, InvalidModelFile),
        ("rope.scaling.attn_factor", INF, InvalidModelFile),
        ("rope.scaling.yarn_beta_fast", 0.0, InvalidModelFile),
        ("rope.scaling.yarn_beta_fast", NAN, InvalidModelFile),
        ("rope.scaling.yarn_beta_slow", -1.0, InvalidModelFile),
        ("rope.scaling.yarn_ext_factor", 2.0, InvalidModelFile),
        ("vocab_size", 418, InvalidModelFile),
        ("vocab_size", 1 << 40, InvalidModelFile),
        ("expert_count", 8, UnsupportedModel),
    ],
)
def test_hostile_numbers(tmp_path, key, value, error):
    path = tmp_path / "m.gguf"
    write_llama_gguf(path, extra_metadata={f"llama.{key}": value})
    refused(path, tmp_path, error, r"m\.gguf: ")


@pytest.mark.parametrize(
    "key",
    ["general.architecture", "llama.attention.head_count", "llama.block_count", "llama.context_length",
     "llama.embedding_length", "llama.feed_forward_length", "llama.attention.layer_norm_rms_epsilon"],
)  # fmt: skip
def test_missing_numbers(tmp_path, key):
    path = tmp_path / "m.gguf"
    write_llama_gguf(path, drop_metadata=[key])
    refused(path, tmp_path, InvalidModelFile, key)


@pytest.mark.parametrize(("stated", "found"), [(None, 0), (0, 0), (1, 1), (255, 255), (256, 0), (4096, 0)])
def test_a_window_that_covers_the_context_is_none(tmp_path, stated, found):
    extra = {} if stated is None else {"llama.attention.sliding_window": stated}
    write_llama_gguf(tmp_path / "m.gguf", context=256, extra_metadata=extra)
    assert described(tmp_path / "m.gguf").sliding_window == found


class TestVariants:
    """A key that changes what the model computes is never ignored."""

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("attention.causal", False),
            ("attention.clamp_kqv", 8.0),
            ("attention.max_alibi_bias", 8.0),
            ("attention.output_scale", 0.5),
            ("attention.scale", 0.01),
            ("attention.sliding_window_pattern", [True, False]),
            ("attn_logit_softcapping", 50.0),
            ("embedding_scale", 12.0),
            ("expert_shared_count", 1),
            ("expert_used_count", 2),
            ("final_logit_softcapping", 30.0),
            ("leading_dense_block_count", 1),
            ("logit_scale", 0.1),
            ("logit_scale", NAN),
            ("nextn_predict_layers", 1),
            ("pooling_type", 2),
            ("residual_scale", 0.5),
            ("rope.dimension_sections", [2, 2, 4, 0]),
            ("rope.scaling.alpha", 1000.0),
            ("rope.scaling.yarn_attn_factor", 1.1),
            ("rope.scaling.yarn_ext_factor", 1.0),
            ("rope.scaling.yarn_log_multiplier", 0.1),
            ("swin_norm", True),
            ("use_parallel_residual", True),
            ("a_key_of_the_future", "x"),
        ],
    )
    def test_refused(self, tmp_path, key, value):
        write_llama_gguf(tmp_path / "m.gguf", extra_metadata={f"llama.{key}": value})
        refused(tmp_path / "m.gguf", tmp_path, UnsupportedModel, rf"m\.gguf: .*llama\.{key}")

    def test_all_are_named_at_once(self, tmp_path):
        extra = {"llama.logit_scale": 0.1, "llama.attention.scale": 0.01}
        write_llama_gguf(tmp_path / "m.gguf", extra_metadata=extra)
        refused(
            tmp_path / "m.gguf", tmp_path, UnsupportedModel, "metadata asks for.*logit_scale' is 0.1.*scale' is 0.0099"
        )

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("attention.causal", True),
            ("attention.clamp_kqv", 0.0),
            ("attention.layer_norm_epsilon", 1e-5),
            ("attention.scale", 0.0),
            ("attention.sliding_window", 0),
            ("expert_count", 0),
            ("expert_used_count", 0),
            ("logit_scale", 0.0),
            ("logit_scale", 1.0),
            ("residual_scale", 1.0),
            ("rope.scaling.finetuned", True),
            ("rope.scaling.yarn_attn_factor", 1.0),
            ("rope.scaling.yarn_ext_factor", -1.0),
            ("rope.scaling.yarn_log_multiplier", 0.0),
            ("tensor_data_layout", "Meta AI original pth"),
            ("use_parallel_residual", False),
        ],
    )
    def test_neutral(self, tmp_path, key, value):
        write_llama_gguf(tmp_path / "m.gguf")
        write_llama_gguf(tmp_path / "n.gguf", extra_metadata={f"llama.{key}": value})
        assert described(tmp_path / "n.gguf") == described(tmp_path / "m.gguf")

    def test_other_prefixes_are_ignored(self, tmp_path):
        write_llama_gguf(tmp_path / "m.gguf", extra_metadata={"mistral.logit_scale": 0.1, "quantize.imatrix.file": "x"})
        described(tmp_path / "m.gguf")


def with_one(count, value):
    """Return ones, of which number 3 is something else."""
    values = np.ones(count, np.float32)
    values[3] = value
    return values


MISSING = ["blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.1.ffn_up.weight"]
MORE_ROWS = {"weights": {"token_embd.weight": np.zeros((420, 64), np.float32)}, "drop_metadata": ["llama.vocab_size"]}
# Half a head of 64 dimensions is one block.
QUANTISED_FACTORS = {"heads": 1, "kv_heads": 1, "rope_freqs": True, "types": {"rope_freqs.weight": "Q8_0"}}
FACTORS = "rope_freqs.weight"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"architecture": "mamba"}, UnsupportedModel, "'mamba' is not supported. Supported: llama"),
        *(
            ({"drop_tensor": name}, InvalidModelFile, name)
            for name in ["token_embd.weight", "output_norm.weight", *MISSING[:1], "blk.1.ffn_down.weight"]
        ),
        ({"drop_tensor": "blk.1.ffn_norm.weight"}, InvalidModelFile, "blk.1.ffn_norm.weight"),
        ({"drop_tensor": MISSING}, InvalidModelFile, "3 tensors are missing.*" + ".*".join(MISSING)),
        *(
            ({"extra_tensors": {name: np.zeros(64, np.float32)}}, UnsupportedModel, name)
            for name in ["blk.1.attn_q.bias", "blk.0.attn_q_norm.weight", "rope_factors.weight"]
        ),
        *(
            ({"weights": {name: np.zeros(shape, np.float32)}}, InvalidModelFile, f"1 tensor has a wrong shape. {name}")
            for name, shape in [
                ("blk.0.attn_q.weight", (32, 64)),
                ("blk.0.attn_k.weight", (64, 64)),
                ("blk.1.ffn_down.weight", (128, 64)),
                ("output_norm.weight", (32,)),
                ("blk.0.attn_norm.weight", (1, 64)),
                ("token_embd.weight", (419, 96)),
            ]
        ),
        (MORE_ROWS, InvalidTokenizer, "419 tokens, 420 embedding rows"),
        ({"extra_tensors": {FACTORS: np.ones(16, np.float32)}}, InvalidModelFile, FACTORS),
        *(({"extra_tensors": {FACTORS: with_one(8, bad)}}, InvalidModelFile, FACTORS) for bad in (0.0, -2.0, NAN)),
        (QUANTISED_FACTORS, UnsupportedModel, FACTORS),
        *(
            (
                {"hidden": 256, "types": {MISSING[0]: name}},
                UnsupportedModel,
                f"attn_q.weight is {name}; supported: Q4_0",
            )
            for name in ["TQ1_0", "TQ2_0"]
        ),
        ({"types": {"blk.0.attn_norm.weight": "Q8_0"}}, UnsupportedModel, "attn_norm.weight"),
        ({"weights": {"output_norm.weight": with_one(64, NAN)}}, InvalidModelFile, "output_norm.weight.*not finite"),
    ],
)
def test_tensors_that_do_not_fit(tmp_path, options, error, message):
    write_llama_gguf(tmp_path / "m.gguf", **options)
    refused(tmp_path / "m.gguf", tmp_path, error, message)


@pytest.mark.parametrize("bits", [0x7E00, 0x7C00], ids=["nan", "inf"])
@pytest.mark.parametrize("name", ["token_embd.weight", "blk.1.attn_q.weight", "blk.1.ffn_down.weight"])
def test_scales_that_are_no_numbers(tmp_path, name, bits):
    path = tmp_path / "m.gguf"
    write_llama_gguf(path)
    with path.open("r+b") as file:
        file.seek(read_header(path).tensors[name].offset)
        file.write(struct.pack("<H", bits))
    refused(path, tmp_path, InvalidModelFile, f"'{name}' holds a scale that is not finite")


class TestDescription:
    def test_the_numbers_of_a_file(self, tmp_path):
        write_llama_gguf(
            tmp_path / "m.gguf", heads=4, kv_heads=1, head_dim=32, tied=False, rope_theta=5e5,
            rope_scaling={"type": "yarn", "factor": 4.0, "original_context_length": 64},
        )  # fmt: skip
        decoder = described(tmp_path / "m.gguf")
        assert (decoder.num_heads, decoder.num_kv_heads, decoder.head_dim, decoder.is_tied) == (4, 1, 32, False)
        assert decoder.ropes == (yarn_rope(5e5, 32, Yarn(4.0, 64, yarn_temperature(4.0))),)

    def test_defaults(self, tmp_path):
        drop = ["llama.attention.head_count_kv", "llama.rope.freq_base", "llama.rope.dimension_count",
                "llama.vocab_size", "general.name"]  # fmt: skip
        write_llama_gguf(tmp_path / "m.gguf", kv_heads=4, drop_metadata=drop)
        decoder = described(tmp_path / "m.gguf")
        assert (decoder.name, decoder.num_kv_heads, decoder.vocab_size) == ("m", 4, 419)
        assert decoder.ropes == (default_rope(10_000.0, 16),)

    @pytest.mark.parametrize(
        "options", [{"extra_metadata": {"llama.rope.scale_linear": 2.0}}, {"rope_scaling": {"factor": 2.0}}]
    )
    def test_a_factor_without_a_kind_is_linear(self, tmp_path, options):
        write_llama_gguf(tmp_path / "m.gguf", **options)
        assert described(tmp_path / "m.gguf").ropes == (linear_rope(10_000.0, 16, 2.0),)

    def test_every_key_of_yarn(self, tmp_path):
        stated = {"type": "yarn", "factor": 4.0, "original_context_length": 64, "attn_factor": 1.5,
                  "yarn_beta_fast": 8.0, "yarn_beta_slow": 2.0, "yarn_ext_factor": 0.5}  # fmt: skip
        write_llama_gguf(tmp_path / "m.gguf", rope_scaling=stated)
        yarn = Yarn(4.0, 64, 1.5 * yarn_temperature(4.0), 8.0, 2.0, 0.5)
        assert described(tmp_path / "m.gguf").ropes == (yarn_rope(10_000.0, 16, yarn),)

    def test_no_extrapolation_is_linear(self, tmp_path):
        stated = {"type": "yarn", "factor": 4.0, "attn_factor": 1.5, "yarn_ext_factor": 0.0}
        write_llama_gguf(tmp_path / "m.gguf", rope_scaling=stated)
        (rope,) = described(tmp_path / "m.gguf").ropes
        assert (rope.kind, rope.magnitude) == ("yarn", 1.5)
        assert rope.frequencies == linear_rope(10_000.0, 16, 4.0).frequencies

    def test_a_negative_ext_factor_stands_for_the_default(self, tmp_path):
        for name, stated in (("m", {}), ("n", {"yarn_ext_factor": -1.0})):
            write_llama_gguf(tmp_path / f"{name}.gguf", rope_scaling={"type": "yarn", "factor": 4.0, **stated})
        assert described(tmp_path / "n.gguf").ropes == described(tmp_path / "m.gguf").ropes

    @pytest.mark.parametrize("kind", ["none", "linear"])
    def test_the_attention_factor_holds_for_every_kind(self, tmp_path, kind):
        scaling = {"type": kind, "factor": 4.0, "attn_factor": 1.5}
        write_llama_gguf(tmp_path / "m.gguf", rope_scaling=scaling)
        assert described(tmp_path / "m.gguf").ropes[0].magnitude == 1.5


def yarn_by_the_paper(dim, base, factor, original, *, fast=32.0, slow=1.0, ext=1.0):
    """Return the inverse frequencies of YaRN as its authors' code computes them."""

    def correction_dim(rotations):
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(math.floor(correction_dim(fast)), 0), min(math.ceil(correction_dim(slow)), dim - 1)
    extrapolation = 1.0 / base ** (np.arange(0, dim, 2) / dim)
    mask = ext * (1 - np.clip((np.arange(dim // 2) - low) / ((high - low) or 0.001), 0, 1))
    return extrapolation / factor * (1 - mask) + extrapolation * mask


class TestFrequencies:
    @pytest.mark.parametrize(
        ("dim", "base", "factor", "original"),
        [
            (64, 1e4, 4.0, 2048),
            (128, 1e6, 32.0, 4096),
            (16, 1e4, 2.0, 64),
            (128, 1e4, 16.0, 4096),
            (32, 500.0, 8.0, 32),
        ],
    )
    def test_yarn(self, dim, base, factor, original):
        found = yarn_rope(base, dim, Yarn(factor, original, 1.0)).frequencies
        np.testing.assert_allclose(found, yarn_by_the_paper(dim, base, factor, original), rtol=1e-12)

    @pytest.mark.parametrize(("fast", "slow"), [(32.0, 1.0), (8.0, 1.0), (32.0, 4.0), (16.0, 2.0)])
    @pytest.mark.parametrize("ext", [1.0, 0.25])
    def test_the_keys_of_yarn(self, fast, slow, ext):
        found = yarn_rope(1e4, 64, Yarn(4.0, 2048, 1.0, fast, slow, ext)).frequencies
        expected = yarn_by_the_paper(64, 1e4, 4.0, 2048, fast=fast, slow=slow, ext=ext)
        np.testing.assert_allclose(found, expected, rtol=1e-12)

    def test_plain_and_linear(self):
        np.testing.assert_allclose(default_rope(1e4, 8).frequencies, [1, 0.1, 0.01, 0.001], rtol=1e-12)
        expected = [0.25, 0.025, 0.0025, 0.00025]
        np.testing.assert_allclose(linear_rope(1e4, 8, 4.0).frequencies, expected, rtol=1e-12)
