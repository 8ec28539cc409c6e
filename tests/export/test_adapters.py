"""Packages with adapters: byte by byte those of a model whose floats were merged beforehand."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from edge_rt.errors import ConfigError, InvalidModelFile, ModelNotFound, UnsupportedModel
from edge_rt.export import export_model
from edge_rt.export.entry import plan_export
from edge_rt.export.opening import open_checkpoint
from edge_rt.export.options import ExportOptions
from edge_rt.export.preparing import decide, prepare
from edge_rt.export.sources.model_file import TensorReader
from edge_rt.export.weights.matrices import CheckpointMatrices, whole_matrix
from edge_rt.package.reader import open_package
from tests.helpers.converted_factory import write_converted_folder, write_float_folder as write_dequantised_folder
from tests.helpers.family_cases import load_case, write_folder, write_gguf
from tests.helpers.gguf_factory import write_llama_gguf
from tests.helpers.hf_factory import hf_tensors, write_hf_folder
from tests.helpers.lora_factory import (
    ALPHA,
    LINEARS,
    RANK,
    gguf_pairs,
    layer_products,
    low_rank,
    merged,
    merged_case,
    peft_tensors,
    sixteenths,
    write_gguf_adapter,
    write_peft,
)
from tests.helpers.native_profile import require_native
from tests.helpers.packed_factory import random_matrix, write_float_folder as write_unpacked_folder, write_packed_folder

FLOATS = {"weight_type": "F32", "embedding_type": "F32", "output_type": "F32"}
FAMILIES = (
    *("ernie4_5", "exaone4", "gemma2", "gemma3", "granite", "hunyuan_v1_dense", "llama", "ministral3", "olmo2"),
    *("phi3_short", "qwen2", "qwen3", "smollm3", "stablelm"),
)
EMBEDDING, HEAD = "model.embed_tokens", "lm_head"


class Base:
    """A small model as a GGUF file and as a folder."""

    def __init__(self, folder, **options):
        self.model = write_llama_gguf(folder / "base.gguf", **{**FLOATS, "layers": 1, **options})
        self.gguf, self.folder = self.model.path, write_hf_folder(folder / "base", self.model)
        self.tensors = hf_tensors(self.model)

    def written(self, folder, tensors, **config):
        """Write the model with other tensors as a folder."""
        return write_hf_folder(folder, self.model, tensors=tensors, config=config)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return Base(tmp_path_factory.mktemp("untied"), tied=False)


@pytest.fixture(scope="module")
def tied(tmp_path_factory):
    return Base(tmp_path_factory.mktemp("tied"), tied=True)


def floats(path, adapters=(), *, rounds=False):
    """Return the float32 values of a model's tensors by GGUF's names, and its description."""
    scales = adapters if isinstance(adapters, dict) else dict.fromkeys(adapters, 1.0)
    source, decoder = open_checkpoint(path, scales, rounds=rounds)
    with TensorReader(source.files) as stream:
        matrices = CheckpointMatrices(stream, source.tensors)
        return {
            name: whole_matrix(matrices, tensor) if len(tensor.shape) == 2 else next(matrices.pieces(name))[0]
            for name, tensor in source.tensors.items()
        }, decoder


def assert_same(found, expected):
    assert replace(found[1], name="") == replace(expected[1], name="")
    assert found[0].keys() == expected[0].keys()
    for name, values in expected[0].items():
        np.testing.assert_array_equal(found[0][name], values, err_msg=name)


@pytest.mark.parametrize(("profile", "weights"), [("native", None), ("portable", "f32")])
def test_a_package_is_that_of_the_merged_floats(profile, weights, base, tmp_path):
    if profile == "native":
        require_native()
    products = layer_products(base.tensors) | {
        HEAD: low_rank(np.random.default_rng(5), base.tensors[f"{HEAD}.weight"].shape)
    }
    adapter = write_peft(tmp_path / "lora", peft_tensors(products))
    (tmp_path / "other").mkdir()
    plain = base.written(tmp_path / "other" / "base", merged(base.tensors, products))
    options = {"profile": profile, "weights": weights, "calibration": None, "accept_loss": True}
    result = export_model(base.folder, tmp_path / "package", **options, adapters=[adapter])
    export_model(plain, tmp_path / "expected", **options)
    for file in ("weights.bin", "model.onnx"):
        assert (tmp_path / "package" / file).read_bytes() == (tmp_path / "expected" / file).read_bytes()
    assert result.disk_bytes <= result.predicted_disk_bytes
    manifest, without = (open_package(tmp_path / name).manifest for name in ("package", "expected"))
    (info,) = manifest.source.adapters
    assert (info.name, info.kind, info.scale) == ("lora", "peft", 1.0)
    assert without.source.adapters == ()


@pytest.mark.parametrize(
    ("config", "scale"),
    [
        ({}, ALPHA / RANK),
        ({"use_rslora": True}, ALPHA / RANK**0.5),
        ({"lora_alpha": 1, "alpha_pattern": {"self_attn.q_proj": ALPHA, "k_proj|[vo]_proj": ALPHA}}, ALPHA / RANK),
        ({"r": 16, "rank_pattern": {"^model.layers.0.self_attn.[qkvo]_proj": RANK}}, ALPHA / RANK),
        ({"fan_in_fan_out": True, "init_lora_weights": "gaussian", "modules_to_save": None}, ALPHA / RANK),
    ],
    ids=["plain", "rank-stabilised", "alpha pattern", "rank pattern", "without effect"],
)
def test_settings_of_the_scale(config, scale, base, tmp_path):
    products = layer_products(base.tensors, LINEARS)
    adapter = write_peft(tmp_path / "lora", peft_tensors(products), **config)
    assert_same(
        floats(base.folder, [adapter]), floats(base.written(tmp_path / "base", merged(base.tensors, products, scale)))
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_both_kinds_of_adapters_fit_both_kinds_of_models_of_every_family(name, tmp_path):
    """Names, matrices that are fused, and the rows of queries and keys, which converters to GGUF move."""
    case = load_case(name)
    products = layer_products(case.tensors(), ("_proj",), seed=3)
    products = {module: pair for module, pair in products.items() if "vision" not in module}
    adapters = [write_peft(tmp_path / "lora", peft_tensors(products))]
    models = [(write_folder(tmp_path / "base", case), write_folder(tmp_path / "merged", merged_case(case, products)))]
    if case.gguf is None:
        architecture, pairs = gguf_pairs(case, products)
        adapters.append(write_gguf_adapter(tmp_path / "lora.gguf", pairs, architecture=architecture))
        merged_file = write_gguf(tmp_path / "merged.gguf", merged_case(case, products))
        models.append((write_gguf(tmp_path / "base.gguf", case), merged_file))
    for model, expected in models:
        for adapter in adapters:
            assert_same(floats(model, [adapter]), floats(expected))


@pytest.mark.parametrize("stored", ["gguf", "folder"])
def test_an_embedding_is_changed_through_its_transpose(stored, base, tmp_path):
    shape = base.tensors[f"{EMBEDDING}.weight"].shape
    a, b = low_rank(np.random.default_rng(3), shape)
    # PEFT's A of an embedding is [rank, tokens], its B [inputs, rank]; a converter to GGUF turns A.
    peft = write_peft(tmp_path / "lora", peft_tensors({EMBEDDING: (a, b)}, embeddings=(EMBEDDING,)))
    gguf = write_gguf_adapter(tmp_path / "lora.gguf", {"token_embd.weight": (np.ascontiguousarray(b.T), a.T.copy())})
    expected = merged(base.tensors, {EMBEDDING: (a, b)})[f"{EMBEDDING}.weight"]
    for adapter in (peft, gguf):
        found = floats(base.gguf if stored == "gguf" else base.folder, [adapter])[0]
        np.testing.assert_array_equal(found["token_embd.weight"], expected)


@pytest.mark.parametrize(
    ("write", "write_floats", "name", "rounds"),
    [
        (write_converted_folder, write_dequantised_folder, "fp8", False),
        (write_converted_folder, write_dequantised_folder, "nf4", False),
        (write_packed_folder, write_unpacked_folder, "gptq", True),
        (write_packed_folder, write_unpacked_folder, "awq", True),
    ],
)
def test_folders_of_fewer_bits_are_merged_through_floats(write, write_floats, name, rounds, tmp_path):
    sizes = {"layers": 1, "hidden": 128, "heads": 4, "kv_heads": 2, "ffn": 256}
    model = write_llama_gguf(tmp_path / "m.gguf", **FLOATS, **sizes)
    weights = write(tmp_path / "m", model, name)
    adapter = write_peft(tmp_path / "lora", peft_tensors(layer_products(hf_tensors(model))))
    if rounds:
        with pytest.raises(ConfigError, match="quantised already"):
            open_checkpoint(tmp_path / "m", {adapter: 1.0})
    found = floats(tmp_path / "m", [adapter], rounds=rounds)
    assert_same(found, floats(write_floats(tmp_path / "f", model, weights), [adapter]))


def test_inputs_that_a_quantisation_moved_are_refused(tmp_path):
    sizes = {"layers": 1, "hidden": 128, "heads": 4, "kv_heads": 2, "ffn": 256}
    model = write_llama_gguf(tmp_path / "m.gguf", **FLOATS, **sizes)
    down, rng = "model.layers.0.mlp.down_proj", np.random.default_rng(0)
    moved = {down: random_matrix(rng, 128, 256, 128, zeros=(1, 15), order=rng.permutation(256))}
    write_packed_folder(tmp_path / "m", model, "gptq", matrices=moved)
    for module, is_moved in (
        (down, True),
        ("model.layers.0.mlp.up_proj", True),
        ("model.layers.0.self_attn.o_proj", False),
    ):
        adapter = write_peft(tmp_path / module, peft_tensors(layer_products(hf_tensors(model), (module,))))
        with pytest.raises(UnsupportedModel, match="desc_act") if is_moved else nullcontext():
            open_checkpoint(tmp_path / "m", {adapter: 1.0}, rounds=True)


@pytest.mark.parametrize(
    ("name", "vector"), [("gemma3_text", "model.layers.0.input_layernorm.weight"), ("gemma2", "model.norm.weight")]
)
def test_vectors_that_a_file_of_the_other_kind_stores_otherwise_are_refused(name, vector, tmp_path):
    case = load_case(name)
    adapter = write_peft(tmp_path / "lora", peft_tensors({}, wholes={vector: case.tensors()[vector]}))
    open_checkpoint(write_folder(tmp_path / "m", case), {adapter: 1.0})
    with pytest.raises(UnsupportedModel, match="replaces a vector that a gguf model stores in another form"):
        open_checkpoint(write_gguf(tmp_path / "m.gguf", case), {adapter: 1.0})


def test_adapters_are_merged_one_after_the_other_each_with_its_scale(base, tmp_path):
    products = [layer_products(base.tensors, LINEARS, seed=seed) for seed in (1, 2)]
    paths = [write_peft(tmp_path / f"lora{n}", peft_tensors(one)) for n, one in enumerate(products)]
    scales = (0.5, -2.0)
    tensors = base.tensors
    for one, scale in zip(products, scales, strict=True):
        tensors = merged(tensors, one, scale * ALPHA / RANK)
    found = floats(base.folder, dict(zip(paths, scales, strict=True)))
    assert_same(found, floats(base.written(tmp_path / "base", tensors)))


def test_tensors_that_were_trained_whole_replace_the_models(base, tmp_path):
    generator = np.random.default_rng(4)
    names = (f"{HEAD}.weight", "model.norm.weight", "model.layers.0.input_layernorm.weight")
    wholes = {name: sixteenths(generator, *base.tensors[name].shape) for name in names}
    adapter = write_peft(tmp_path / "lora", peft_tensors({}, wholes=wholes), modules_to_save=["lm_head"])
    assert_same(floats(base.folder, [adapter]), floats(base.written(tmp_path / "base", wholes)))


def test_trained_biases_replace_the_models(tmp_path):
    model = write_llama_gguf(tmp_path / "m.gguf", **FLOATS, layers=1)
    generator = np.random.default_rng(4)
    biases = {
        f"model.layers.0.{name}.bias": np.ones(64 if name in LINEARS[::3] else 32, np.float32) for name in LINEARS
    }
    folder = write_hf_folder(tmp_path / "m", model, tensors=biases, config={"attention_bias": True})
    q, k = (sixteenths(generator, size) for size in (64, 32))
    trained = {"model.layers.0.self_attn.q_proj.base_layer.bias": q, "model.layers.0.self_attn.k_proj.bias": k}
    products = layer_products(hf_tensors(model), ("q_proj",))
    adapter = write_peft(tmp_path / "lora", peft_tensors(products, wholes=trained), bias="all")
    tensors = merged(hf_tensors(model), products) | biases
    tensors |= {"model.layers.0.self_attn.q_proj.bias": q, "model.layers.0.self_attn.k_proj.bias": k}
    expected = write_hf_folder(tmp_path / "e", model, tensors=tensors, config={"attention_bias": True})
    found = floats(folder, [adapter])[0]
    for name, values in floats(expected)[0].items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


def test_an_adapter_of_one_end_unties_head_and_embedding(tied, tmp_path):
    """As PEFT computes with the adapter; what it makes of both when it merges them is another model."""
    product = low_rank(np.random.default_rng(3), tied.tensors[f"{EMBEDDING}.weight"].shape)
    tensors = tied.tensors | {f"{HEAD}.weight": tied.tensors[f"{EMBEDDING}.weight"]}
    for module in (EMBEDDING, HEAD):
        copy = {f"{module}.base_layer.weight": tied.tensors[f"{EMBEDDING}.weight"]}
        adapter = write_peft(
            tmp_path / f"lora {module}", peft_tensors({module: product}, embeddings=(EMBEDDING,), wholes=copy)
        )
        found = floats(tied.folder, {adapter: 1.0})
        expected = merged(tensors, {module: product})
        for name, ours in ((EMBEDDING, "token_embd.weight"), (HEAD, "output.weight")):
            np.testing.assert_array_equal(found[0][ours], expected[f"{name}.weight"])
        assert not found[1].is_tied
    assert "both are stored" in open_checkpoint(tied.folder, {adapter: 1.0})[0].remarks[-1]


def test_one_matrix_for_both_ends_stays_one(tied, tmp_path):
    """PEFT stores it twice, with ``ensure_weight_tying``."""
    ends = [sixteenths(np.random.default_rng(seed), 419, 64) for seed in (1, 1, 2)]
    for head, is_tied in ((ends[1], True), (ends[2], False)):
        wholes = {f"{EMBEDDING}.weight": ends[0], f"{HEAD}.weight": head}
        adapter = write_peft(tmp_path / f"lora{is_tied}", peft_tensors({}, wholes=wholes))
        found, decoder = floats(tied.folder, [adapter])
        assert decoder.is_tied == is_tied
        np.testing.assert_array_equal(found["token_embd.weight"], ends[0])
        if not is_tied:
            np.testing.assert_array_equal(found["output.weight"], head)


def test_new_rows_of_tokens_keep_head_and_embedding_tied(tied, tmp_path):
    rows = sixteenths(np.random.default_rng(1), 2, 64)
    wholes = {f"{EMBEDDING}.token_adapter.trainable_tokens_delta": rows}
    for number, stated in enumerate(([300, 7], {"embed_tokens": [300, 7]})):
        adapter = write_peft(tmp_path / f"{number}", peft_tensors({}, wholes=wholes), trainable_token_indices=stated)
        expected = tied.tensors[f"{EMBEDDING}.weight"].copy()
        expected[[300, 7]] = rows
        found = floats(tied.folder, [adapter])
        assert found[1].is_tied
        np.testing.assert_array_equal(found[0]["token_embd.weight"], expected)


TOKENS = "token_adapter.trainable_tokens_delta"


@pytest.mark.parametrize("stated", [{HEAD: [300, 7]}, {"embed_tokens": [300, 9], HEAD: [300, 7]}])
def test_new_rows_of_the_heads_own_untie_it(stated, tied, tmp_path):
    """As PEFT computes: the head's rows leave the embedding as it is, and the embedding's the head."""
    ends = {"embed_tokens": EMBEDDING, HEAD: HEAD}
    rows = {end: sixteenths(np.random.default_rng(len(end)), 2, 64) for end in stated}
    wholes = {f"{ends[end]}.{TOKENS}": values for end, values in rows.items()}
    adapter = write_peft(tmp_path / "lora", peft_tensors({}, wholes=wholes), trainable_token_indices=stated)
    found, decoder = floats(tied.folder, [adapter])
    assert not decoder.is_tied
    for end, ours in (("embed_tokens", "token_embd.weight"), (HEAD, "output.weight")):
        expected = tied.tensors[f"{EMBEDDING}.weight"].copy()
        if end in stated:
            expected[stated[end]] = rows[end]
        np.testing.assert_array_equal(found[ours], expected)


def test_the_same_new_rows_for_both_ends_keep_them_tied(tied, tmp_path):
    rows = sixteenths(np.random.default_rng(1), 2, 64)
    wholes = {f"{end}.{TOKENS}": rows for end in (EMBEDDING, HEAD)}
    adapter = write_peft(tmp_path / "lora", peft_tensors({}, wholes=wholes), trainable_token_indices=[300, 7])
    found, decoder = floats(tied.folder, [adapter])
    assert decoder.is_tied
    np.testing.assert_array_equal(found["token_embd.weight"][[300, 7]], rows)


def test_new_rows_of_two_adapters_are_refused_at_tied_ends(tied, tmp_path):
    rows = sixteenths(np.random.default_rng(1), 1, 64)
    adapters = [
        write_peft(tmp_path / end, peft_tensors({}, wholes={f"{end}.{TOKENS}": rows}), trainable_token_indices=[7])
        for end in (EMBEDDING, HEAD)
    ]
    with pytest.raises(UnsupportedModel, match="replaced that is changed in another way"):
        open_checkpoint(tied.folder, dict.fromkeys(adapters, 1.0))


def test_a_row_has_the_same_bits_whatever_is_read_with_it(base, tmp_path):
    generator = np.random.default_rng(0)
    products = {
        HEAD: tuple(
            generator.normal(size=one.shape).astype(np.float32)
            for one in layer_products(base.tensors, ("lm_head",), rank=9)[HEAD]
        )
    }
    adapter = write_peft(tmp_path / "lora", peft_tensors(products), r=9)
    source, _ = open_checkpoint(base.folder, {adapter: 1.0})
    with TensorReader(source.files) as stream:
        matrices = CheckpointMatrices(stream, source.tensors)
        whole = whole_matrix(matrices, source.tensors["output.weight"])
        for rows in ([3], [418, 0, 17, 16, 3, 3], range(5, 200, 7)):
            np.testing.assert_array_equal(matrices.rows("output.weight", rows), whole[list(rows)])


def test_what_adapters_hold_counts_in_the_predicted_memory(base, tmp_path):
    a, b = low_rank(np.random.default_rng(0), base.tensors[f"{HEAD}.weight"].shape, rank=4096)
    adapter = write_peft(tmp_path / "lora", peft_tensors({HEAD: (a, b)}), r=4096)

    def more(adapters):
        source, decoder = open_checkpoint(base.folder, adapters)
        decided = decide(source, decoder, ExportOptions(profile="portable", weights="f32", calibration=None))
        return prepare(source, decoder, decided).estimate.more_bytes

    assert more({adapter: 1.0}) >= more({}) + a.nbytes + b.nbytes


def test_a_quantised_model_needs_types(tmp_path):
    model = write_llama_gguf(tmp_path / "m.gguf", layers=1)
    adapter = write_peft(tmp_path / "lora", peft_tensors(layer_products(hf_tensors(model), ("down_proj",))))
    with pytest.raises(ConfigError, match=r"quantised already.*1 of the matrices .* Q4_1.*--weights int4 or int8"):
        plan_export(model.path, tmp_path / "p", adapters=[adapter])
    found = plan_export(model.path, tmp_path / "p", weights="int8", adapters=[adapter], calibration=None)
    assert any(one.startswith("1 tensor was quantised already") for one in found.warnings)
    values = floats(model.path, [adapter], rounds=True)[0]["blk.0.ffn_down.weight"]
    (pair,) = layer_products(hf_tensors(model), ("down_proj",)).values()
    expected = model.weights["blk.0.ffn_down.weight"] + np.float32(ALPHA / RANK) * (pair[1] @ pair[0])
    np.testing.assert_array_equal(values, expected)


def test_adapters_are_given_by_paths_or_with_scales(base, tmp_path):
    for adapters in ("missing", tmp_path / "missing", ["missing"], {"missing": 0.5}):
        with pytest.raises(ModelNotFound, match=r"There is no adapter .*missing"):
            plan_export(base.folder, tmp_path / "p", adapters=adapters)
    with pytest.raises(ConfigError, match="named twice"):
        plan_export(base.folder, tmp_path / "p", adapters=["a", "a"])


def test_a_scale_cannot_be_applied_to_what_is_replaced(base, tmp_path):
    wholes = {"model.norm.weight": base.tensors["model.norm.weight"]}
    adapter = write_peft(tmp_path / "lora", peft_tensors({}, wholes=wholes))
    with pytest.raises(ConfigError, match=r"no scale .* 0\.5; 'model\.norm\.weight' is stored whole"):
        open_checkpoint(base.folder, {adapter: 0.5})


def test_a_tensor_cannot_be_replaced_and_changed_by_two_adapters(base, tmp_path):
    wholes = {f"{HEAD}.weight": base.tensors[f"{HEAD}.weight"]}
    first = write_peft(tmp_path / "a", peft_tensors({}, wholes=wholes))
    second = write_peft(tmp_path / "b", peft_tensors(layer_products(base.tensors, ("lm_head",))))
    for order in ((first, second), (second, first)):
        with pytest.raises(UnsupportedModel, match=r"replaced that is changed in another way"):
            open_checkpoint(base.folder, dict.fromkeys(order, 1.0))


def _without(tensors):
    return {"model.layers.0.mlp.experts.down_proj": low_rank(np.random.default_rng(0), (64, 64))}


def _of_more_layers(tensors):
    return {"model.layers.1.self_attn.q_proj": low_rank(np.random.default_rng(0), (64, 64))}


def _of_another_size(tensors):
    return {"model.layers.0.self_attn.q_proj": low_rank(np.random.default_rng(0), (64, 80))}


@pytest.mark.parametrize(
    ("products", "why"),
    [
        (_without, r"has no 'model\.layers\.0\.mlp\.experts\.down_proj\.weight'"),
        (_of_more_layers, r"has no 'model\.layers\.1\.self_attn\.q_proj\.weight'"),
        (_of_another_size, r"q_proj\.weight' \[64, 64\], the adapter's is \[64, 80\]"),
    ],
)
def test_an_adapter_of_another_model_is_refused(products, why, base, tmp_path):
    adapter = write_peft(tmp_path / "lora", peft_tensors(products(base.tensors)))
    with pytest.raises(InvalidModelFile, match=rf"lora is not an adapter of base\. .*{why}.* trained on someone/model"):
        plan_export(base.folder, tmp_path / "p", adapters=[adapter])


def test_a_gguf_adapter_of_another_architecture_is_refused(base, tmp_path):
    adapter = write_gguf_adapter(
        tmp_path / "l.gguf", {"blk.0.attn_q.weight": low_rank(np.random.default_rng(0), (64, 64))}, architecture="qwen2"
    )
    with pytest.raises(InvalidModelFile, match=r"architecture 'qwen2'"):
        open_checkpoint(base.folder, {adapter: 1.0})


def test_a_number_that_is_not_finite_leaves_nothing_behind(base, tmp_path):
    products = layer_products(base.tensors, ("o_proj",))
    next(iter(products.values()))[0][1, 2] = np.nan
    adapter = write_peft(tmp_path / "lora", peft_tensors(products))
    with pytest.raises(InvalidModelFile, match=r"o_proj\.lora_A\.weight' holds a value that is not finite"):
        export_model(base.folder, tmp_path / "package", calibration=None, adapters=[adapter])
    assert [path.name for path in tmp_path.iterdir()] == ["lora"]


def test_a_chat_template_of_the_adapters_own_is_mentioned(base, tmp_path):
    adapter = write_peft(tmp_path / "lora", peft_tensors(layer_products(base.tensors, ("o_proj",))))
    assert open_checkpoint(base.folder, {adapter: 1.0})[0].build_tokenizer(419).warnings == ()
    (adapter / "chat_template.jinja").write_text("{{ messages }}")
    (warning,) = open_checkpoint(base.folder, {adapter: 1.0})[0].build_tokenizer(419).warnings
    assert warning.startswith("lora has a chat template of its own, which is not used")
