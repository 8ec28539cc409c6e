"""StableLM's variants: what tells them apart in folders and in GGUF files; those that are refused are named."""

from __future__ import annotations

import dataclasses

import pytest

from edge_rt.errors import InvalidModelFile, UnsupportedModel
from edge_rt.export.opening import open_checkpoint
from tests.helpers.family_cases import load_case, write_folder, write_gguf

CASE, PARALLEL = load_case("stablelm"), load_case("stablelm_parallel")
PARALLEL_KEY, NORMS_KEY = "use_parallel_residual", "qk_layernorm"


def with_shapes(case, has_norm, has_head_norms):
    """Return a case whose layers have a norm before the feed-forward, or norms of heads, or not."""
    shapes = {name: shape for name, shape in case.shapes.items() if has_head_norms or "_layernorm.norms." not in name}
    if has_norm:
        for layer in range(4):
            name = f"model.layers.{layer}.post_attention_layernorm"
            shapes |= {f"{name}.weight": (128,), f"{name}.bias": (128,)}
    return dataclasses.replace(case, shapes=shapes)


@pytest.mark.parametrize(("key", "other"), [(PARALLEL_KEY, NORMS_KEY), (NORMS_KEY, PARALLEL_KEY)])
def test_a_folder_with_one_of_both_names_it_alone(key, other, tmp_path):
    with pytest.raises(UnsupportedModel, match=key) as caught:
        open_checkpoint(write_folder(tmp_path / "m", CASE, config={key: True}))
    assert other not in str(caught.value)


@pytest.mark.parametrize(
    ("has_norm", "has_head_norms", "key", "other"),
    [(False, False, PARALLEL_KEY, NORMS_KEY), (True, True, NORMS_KEY, PARALLEL_KEY)],
)
def test_a_file_with_one_of_both_names_it_alone(has_norm, has_head_norms, key, other, tmp_path):
    write_gguf(tmp_path / "m.gguf", with_shapes(PARALLEL, has_norm, has_head_norms))
    with pytest.raises(UnsupportedModel, match=key) as caught:
        open_checkpoint(tmp_path / "m.gguf")
    assert other not in str(caught.value)


@pytest.mark.parametrize("stated", [True, False, None])
def test_tensors_tell_whether_a_file_is_parallel(stated, tmp_path):
    """Converters write true where a configuration does not have the key, and readers go by the tensors."""
    key = f"stablelm.{PARALLEL_KEY}"
    options = {"drop_metadata": (key,)} if stated is None else {"extra_metadata": {key: stated}}
    write_gguf(tmp_path / "m.gguf", CASE, **options)
    folder = write_folder(tmp_path / "folder", CASE)
    found, expected = open_checkpoint(tmp_path / "m.gguf")[1], open_checkpoint(folder)[1]
    assert dataclasses.replace(found, name=expected.name, norm_epsilon=expected.norm_epsilon) == expected
    assert found.norm_epsilon == pytest.approx(expected.norm_epsilon, rel=1e-6)


def test_a_file_needs_the_epsilon_of_layer_norm(tmp_path):
    write_gguf(
        tmp_path / "m.gguf", CASE, drop_metadata=("stablelm.attention.layer_norm_epsilon",),
        extra_metadata={"stablelm.attention.layer_norm_rms_epsilon": 1e-5},
    )  # fmt: skip
    with pytest.raises(InvalidModelFile, match=r"stablelm\.attention\.layer_norm_epsilon"):
        open_checkpoint(tmp_path / "m.gguf")


@pytest.mark.parametrize(("rope", "rotated"), [({}, 8), ({"partial_rotary_factor": 0.5}, 16)])
def test_a_quarter_of_a_head_is_rotated_unless_the_folder_says_otherwise(rope, rotated, tmp_path):
    parameters = {"rope_type": "default", "rope_theta": 10000.0} | rope
    _, decoder = open_checkpoint(write_folder(tmp_path / "m", CASE, config={"rope_parameters": parameters}))
    assert decoder.ropes[0].dimensions == rotated


def test_heads_without_biases(tmp_path):
    """As in StableLM 3B: the tensors decide in a file, a key in a folder."""
    shapes = {name: shape for name, shape in CASE.shapes.items() if "_proj.bias" not in name}
    case = dataclasses.replace(CASE, shapes=shapes)
    write_gguf(tmp_path / "m.gguf", case)
    folder = write_folder(tmp_path / "folder", case, config={"use_qkv_bias": None})
    for path in (tmp_path / "m.gguf", folder):
        assert not open_checkpoint(path)[1].layers[0].attention.has_qkv_bias
    with pytest.raises(InvalidModelFile, match="12 tensors are missing"):
        open_checkpoint(write_folder(tmp_path / "other", case))
