"""Mistakes that an exporter could make, as changes for ``Built``."""

from __future__ import annotations

import dataclasses

from edge_rt.export.families.rope import default_rope
from edge_rt.export.weights.linear import Linear


def change_layer(change):
    """Return a change of the weights that replaces a matrix of the first layer."""

    def apply(weights):
        return dataclasses.replace(weights, layers=(change(weights.layers[0]), *weights.layers[1:]))

    return apply


def parts_of(linears, name, order):
    parts = [part for linear in linears for part in linear.parts]
    return (Linear(name, tuple(parts[i] for i in order), interleaved=linears[0].interleaved),)


def q_as_in_the_file(layer):
    parts = list(layer.mixer_in[0].parts)
    parts[0] = dataclasses.replace(parts[0], row_order=None)
    return dataclasses.replace(layer, mixer_in=(Linear("layer0.qkv", tuple(parts)),))


def v_rotated(layer):
    parts = list(layer.mixer_in[0].parts)
    parts[2] = dataclasses.replace(parts[2], row_order=parts[1].row_order)
    return dataclasses.replace(layer, mixer_in=(Linear("layer0.qkv", tuple(parts)),))


def k_and_v_swapped(layer):
    return dataclasses.replace(layer, mixer_in=parts_of(layer.mixer_in, "layer0.qkv", (0, 2, 1)))


def gate_and_up_swapped(layer):
    return dataclasses.replace(layer, gate_up=parts_of(layer.gate_up, "layer0.gate_up", (1, 0)))


def norms_swapped(weights):
    vectors = weights.vectors
    return dataclasses.replace(weights, vectors=vectors | {"layer0.mlp_norm": vectors["layer1.attention_norm"]})


def norms_of_a_layer_swapped(weights):
    vectors = weights.vectors
    attention, mlp = "layer1.attention_norm", "layer1.mlp_norm"
    return dataclasses.replace(weights, vectors=vectors | {attention: vectors[mlp], mlp: vectors[attention]})


def final_norm_of_a_layer(weights):
    vectors = weights.vectors
    return dataclasses.replace(weights, vectors=vectors | {"final_norm": vectors["layer1.mlp_norm"]})


def rope_base_a_tenth_off(decoder):
    return with_base(decoder, 1.1 * decoder.ropes[0].base)


def epsilon_of_another_model(decoder):
    return dataclasses.replace(decoder, norm_epsilon=10 * decoder.norm_epsilon)


def other_rope_base(decoder):
    return with_base(decoder, 5000.0)


def with_base(decoder, base):
    return dataclasses.replace(decoder, ropes=(default_rope(base, decoder.head_dim),))


def other_epsilon(decoder):
    return dataclasses.replace(decoder, norm_epsilon=0.01)
