"""What lies in ``weights.bin`` is what was quantised, row by row, whatever the order and the layout of a package."""

from __future__ import annotations

import numpy as np
import pytest

from edge_rt.errors import StorageError
from edge_rt.export import export_model
from edge_rt.export.checkpoint import read_checkpoint
from edge_rt.export.decoder.weights import place_weights
from edge_rt.export.op_profile import PROFILES
from edge_rt.export.opening import open_checkpoint
from edge_rt.export.quantise.decision import choose_weights
from edge_rt.export.quantise.feedback import quantise
from edge_rt.export.quantise.grids import Grid
from edge_rt.export.sources.model_file import TensorReader
from edge_rt.export.weights.codes import values
from edge_rt.export.weights.matrices import CheckpointMatrices, PackageMatrices
from edge_rt.export.weights.tile_formats import tile_format
from edge_rt.export.weights.weights_file import verify_checksums
from edge_rt.export.writing import write_weights
from tests.helpers.gguf_factory import write_llama_gguf
from tests.helpers.hf_factory import write_hf_folder
from tests.helpers.native_profile import require_native
from tests.helpers.packages import listing

SIZES = {"narrow": {}, "wide": {"hidden": 256, "ffn": 512}}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Path of a checkpoint of half floats by kind and widths, one of them with a head of its own."""
    folder, found = tmp_path_factory.mktemp("halves"), {}
    for name, sizes in SIZES.items():
        model = write_llama_gguf(
            folder / f"{name}.gguf", weight_type="F16", embedding_type="F16", output_type="F16", context=512,
            tied=name == "wide", **sizes,
        )  # fmt: skip
        found["gguf", name] = model.path
        found["folder", name] = write_hf_folder(folder / name, model, dtype="F16", files=2)
    return found


def written(path, folder, profile, options, change=lambda choice: choice):
    """Write the weights of a checkpoint; return what is known about it, their layout, and what was written."""
    source, config = open_checkpoint(path)
    chosen = PROFILES[profile]
    checkpoint = read_checkpoint(source, config, chosen, change(choose_weights(source, config, **options)))
    layout = place_weights(checkpoint.weights, config, chosen, is_calibrated=False)
    read = []
    with TensorReader(source.paths) as stream:
        found = write_weights(stream, checkpoint, layout, folder, lambda done, total: read.append((done, total)))
    assert read[0][0] == 0
    assert read[-1][0] == read[-1][1]
    assert [done for done, _ in read] == sorted(done for done, _ in read)
    return checkpoint, layout, found


OPTIONS = {name: {"wanted": name} for name in ("int4", "int8", "f16", "f32")} | {"a size": {"size": 1 << 20}}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("profile", ["native", "portable"])
@pytest.mark.parametrize(("kind", "widths"), [("gguf", "narrow"), ("folder", "narrow"), ("gguf", "wide")])
def test_stored_rows_are_the_quantised_ones(sources, tmp_path, kind, widths, profile, options):
    """Queries and keys of GGUF files are stored in another order; gate and up of native packages alternate."""
    checkpoint, layout, _ = written(sources[kind, widths], tmp_path, profile, OPTIONS[options])
    source = checkpoint.source
    weights = tmp_path / "weights.bin"
    with TensorReader(source.paths) as stream:
        plain = CheckpointMatrices(stream, source.tensors)
        package = PackageMatrices(
            plain, checkpoint.weights.linears(), checkpoint.profile.stored(weights, layout)
        )  # fmt: skip
        matrices = [tensor for tensor in source.tensors.values() if len(tensor.shape) == 2]
        assert {tensor.name for tensor in matrices} >= set(checkpoint.choice.types)
        for tensor in matrices:
            floats = np.concatenate(list(plain.pieces(tensor.name)))
            type_name = checkpoint.choice.types.get(tensor.name)
            expected = floats
            if type_name not in (None, "F16", "F32"):
                form = tile_format(type_name)
                codes, _ = quantise(floats, np.ones(tensor.shape[0], np.float32), (), Grid(form))
                expected = values(codes, form)
            # MatMulNBits' minimum is rounded once.
            off = 2.0**-20 * np.abs(expected).max() if profile == "portable" else 0
            np.testing.assert_allclose(np.concatenate(list(package.pieces(tensor.name))), expected, rtol=0, atol=off)
            some = np.random.default_rng(0).permutation(tensor.shape[1])[:37].tolist()
            np.testing.assert_allclose(package.rows(tensor.name, some), expected[some], rtol=0, atol=off)


@pytest.mark.parametrize("profile", ["native", "portable"])
def test_every_winner_lands_in_its_place(sources, tmp_path, profile):
    """Layers whose matrices have several types."""
    names = ["blk.1.attn_v.weight", "blk.0.ffn_down.weight"]
    checkpoint, layout, found = written(
        sources["gguf", "wide"], tmp_path, profile, {"wanted": "int4"}, lambda choice: choice.with_winners(names)
    )
    assert {error.name for error in found.errors if error.type_name == "Q6_K"} == set(names)
    by_layer = [
        {part.tensor.name: part.type_name for linear in layer.linears() for part in linear.parts}
        for layer in checkpoint.weights.layers
    ]
    assert (by_layer[0]["blk.0.attn_v.weight"], by_layer[1]["blk.1.attn_v.weight"]) == ("IQ4_XS", "Q6_K")
    verify_checksums(tmp_path / "weights.bin", layout, found.checksums)
    with TensorReader(checkpoint.source.paths) as stream:
        for linear in checkpoint.weights.linears():
            checkpoint.profile.verify(linear, stream, layout, tmp_path / "weights.bin")


@pytest.mark.parametrize("profile", ["native", "portable"])
def test_every_tensor_has_a_checksum_and_the_file_no_other_bytes(sources, tmp_path, profile):
    checkpoint, layout, found = written(sources["folder", "narrow"], tmp_path, profile, {"wanted": "int4"})
    assert set(found.checksums) == set(layout.slots)
    assert (tmp_path / "weights.bin").stat().st_size == layout.size
    assert {error.name for error in found.errors} == set(checkpoint.choice.types)
    assert all(0 < error.error < 0.02 for error in found.errors)
    assert found.walk is None


@pytest.mark.parametrize("profile", ["native", "portable"])
@pytest.mark.parametrize("share", [0.0, 0.4, 0.999])
def test_a_bit_that_flips_before_the_check_is_found(sources, tmp_path, profile, share):
    """On the disk, in the folder that is not published yet."""
    if profile == "native":
        require_native()
    flipped = []

    def progress(event):
        if event.stage == "check" and not flipped:
            (path,) = tmp_path.glob(".p.part-*/weights.bin")
            at = int(share * path.stat().st_size)
            with path.open("r+b") as file:
                file.seek(at)
                byte = file.read(1)[0]
                file.seek(at)
                file.write(bytes([byte ^ 4]))
            flipped.append(at)

    with pytest.raises(StorageError, match="The disk gives other weights than were written to it"):
        export_model(
            sources["folder", "narrow"], tmp_path / "p", profile=profile, calibration=None, progress=progress
        )  # fmt: skip
    assert flipped
    assert listing(tmp_path) == []
