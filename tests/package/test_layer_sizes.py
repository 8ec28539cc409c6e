"""What layers take on both sides of a division, against the files of packages."""

from __future__ import annotations

import pytest

from edge_rt.package.layer_sizes import layer_sizes, names_of_host, nodes_in_order, parts_of
from edge_rt.package.manifest import WEIGHTS_FILE
from edge_rt.package.reader import open_package


def test_layers_of_a_package(native_package):
    package = open_package(native_package)
    found = layer_sizes(package)
    tensors = {name: place.length for name, place in package.tensors["model.onnx"].items()}
    rope = tensors["rope.cos"] + tensors["rope.sin"]
    size, layers = package.manifest.files[WEIGHTS_FILE].size, package.manifest.model.num_layers
    of_layers = [sum(tensors[name] for name in tensors if name.startswith(f"layer{index}.")) for index in range(layers)]
    # The head is the embedding, which both sides read, as they do the rotations.
    assert found.before[0] == tensors["embedding.tiles"]
    assert found.before[1:] == tuple(
        tensors["embedding.tiles"] + rope + sum(of_layers[: index + 1]) + (index == layers - 1) * tensors["final_norm"]
        for index in range(layers)
    )
    assert found.behind == (
        *(tensors["embedding.tiles"] + tensors["final_norm"] + rope + sum(of_layers[i:]) for i in range(layers)),
        0,
    )
    assert found.before[-1] == found.behind[0] == sum(tensors.values()) <= size
    assert found.rotations_before == (0, *[rope] * layers)
    of_layer = sum(name.startswith("layer0.") for name in tensors)
    assert found.tensors_before[:2] == (1, 1 + 2 + of_layer)
    assert found.tensors_before[-1] == len(tensors)


def test_nodes_are_read_in_their_order(native_package):
    nodes = nodes_in_order(native_package / "model.onnx")
    assert nodes[0] == ("embedding/QuantEmbed", ["input_ids", "embedding.tiles"])
    assert nodes[-1] == ("top_ids/RowTopK", ["logits"])


def test_a_package_that_cannot_be_divided(small_package):
    assert layer_sizes(open_package(small_package)) is None


def test_layers_of_several_graphs_are_those_of_one(segmented):
    whole, cut = open_package(segmented.whole), open_package(segmented.cut)
    one, several = layer_sizes(whole), layer_sizes(cut)
    assert (one.before, one.behind) == (several.before, several.behind)
    assert several.first_layers == tuple(segment.first_layer for segment in cut.manifest.segments)
    # In the middle of a graph both sides read rotations, which are copied for it beside those of later graphs.
    rope = one.rotations_before[-1]
    last = several.first_layers[-1]
    middles = {*range(last)} - {*several.first_layers}
    assert several.copied_again == tuple(rope * (layer in middles) for layer in range(len(one.before)))


def test_the_cpu_reads_what_is_before_its_last_layer():
    nodes = [("embedding/E", ["e"]), ("layer0/D", ["a"]), ("wanted/G", ["w"]), ("layer1/D", ["b"]), ("logits/Q", ["h"])]
    assert names_of_host(nodes, 1) == {"e", "a", "w"}
    assert names_of_host(nodes, 2) == {"e", "a", "w", "b", "h"}
    # A further graph whose layers are all on the GPU, and a head alone.
    assert names_of_host([("more/E", ["e"]), ("layer2/D", ["c"])], 2) == set()
    assert names_of_host([("logits/Q", ["h"])], 2) == set()


@pytest.mark.parametrize(
    ("names", "layers", "is_divided"),
    [
        (["embedding/E", "layer0/D", "layer1.qkv/Q", "wanted/G", "layer1.down/Q", "logits/Q"], 2, True),
        (["layer0/D", "layer1/D", "layer10/D"], 3, False),
        (["layer0/D", "layer2/D"], 3, False),
        (["layer0/D"], 2, False),
        (["a/Q", "layers/D"], 1, False),
    ],
)
def test_layers_are_told_apart_by_the_names_of_nodes(names, layers, is_divided):
    parts = parts_of([(name, [name.lower()]) for name in names], layers)
    assert (parts is not None) == is_divided
    if parts is not None:
        assert parts == [{"embedding/e"}, {"layer0/d"}, {"layer1.qkv/q", "wanted/g", "layer1.down/q", "logits/q"}]
