import numpy as np
import pytest
from kv_codecs import asymmetric, half
from kv_mix import mixed, rank_layers, swapped, with_formats
from kv_scheme import Scheme, Side, calibrated, centred, kivi, recent, schemes

from edge_rt.export.calibration.key_constants import KeyConstants, key_constants, key_statistics
from edge_rt.package.kv_formats import KV_FORMAT

HEADS, DIM = 3, 64


def keys(tokens):
    return np.random.default_rng(0).standard_normal((HEADS, tokens, DIM)).astype(np.float32)


@pytest.mark.parametrize(
    ("scheme", "name"),
    [
        ("f16", "f16"),
        ("int8", "int8"),
        ("k8v4", "k8v4"),
        ("int4, both rotated", "int4"),
        ("int4x2, both planes", "int4x2"),
    ],
)
def test_schemes_that_exist_take_the_bytes_of_their_formats(scheme, name):
    assert schemes()[scheme].bytes(512, HEADS, DIM) == pytest.approx(KV_FORMAT[name].token_bytes(HEADS, DIM))


def test_formats_quantise_each_token_as_it_comes():
    side = schemes()["int4, not rotated"].keys
    assert side.quantised(7) == 7
    whole, part = (side.read(keys(64)[:, :tokens], values=False) for tokens in (64, 7))
    assert np.array_equal(whole[:, :7], part)


def test_rotation_changes_what_is_lost_and_not_the_frame():
    x = keys(40)
    plain, turned = (Side("token", 4, rotated=rotated).read(x, values=False) for rotated in (False, True))
    assert not np.array_equal(plain, turned)
    assert np.abs(turned - x).mean() < 0.2


def test_published_kivi_flushes_keys_at_128_and_keeps_the_last_128_values():
    scheme = kivi(4)
    assert [scheme.keys.quantised(tokens) for tokens in (1, 128, 129, 256, 257)] == [0, 0, 128, 128, 256]
    assert [scheme.values.quantised(tokens) for tokens in (1, 129, 130, 300)] == [0, 0, 1, 171]


def test_kivi_in_blocks_keeps_a_tail_that_a_draft_can_be_taken_back_from():
    side = kivi(4, tail=32).keys
    tails = [tokens - 1 - int(side.quantised(tokens)) for tokens in range(40, 400)]
    assert min(tails) == 32
    assert max(tails) == 63


def test_recent_tokens_are_read_in_float16_by_distance_alone():
    side = recent(schemes()["int4, both rotated"], 16).keys
    assert [tokens - int(side.quantised(tokens)) for tokens in (1, 15, 16, 17, 300)] == [1, 15, 16, 16, 16]


def test_channel_groups_are_read_where_whole_and_float16_elsewhere():
    x = keys(70)
    read = kivi(4, tail=32).keys.read(x, values=False)
    assert np.array_equal(read[:, :64], asymmetric(x[:, :64], 4, axis=-2))
    assert np.array_equal(read[:, 64:], half(x[:, 64:]))


def test_bytes_count_the_float_tail():
    scheme = kivi(4, tail=32)
    element, tail = 0.5 + 4 / 32, 2
    stored = int(scheme.keys.quantised(512))
    wanted = 2 * HEADS * DIM * (stored * element + (512 - stored) * tail)
    assert scheme.keys.bytes(512, HEADS, DIM, values=False) * 2 == pytest.approx(wanted)
    assert scheme.bytes(512, HEADS, DIM) > scheme.bytes(2048, HEADS, DIM) > 2 * HEADS * DIM * element


def test_bytes_count_factors_and_outliers():
    plain, gear = kivi(4, rank=2).keys, kivi(4, rank=4, outliers=1).keys
    chunk = plain.bytes(257, 1, DIM, values=False) - plain.bytes(129, 1, DIM, values=False)
    assert chunk == pytest.approx(128 * DIM * (0.5 + 4 / 32) + 2 * 2 * (128 + DIM))
    chunk = gear.bytes(257, 1, DIM, values=False) - gear.bytes(129, 1, DIM, values=False)
    assert chunk == pytest.approx(128 * DIM * (0.5 + 4 / 32) + 2 * 4 * (128 + DIM) + 2 * DIM * 3)


def test_centring_takes_a_common_offset_away():
    offset = np.random.default_rng(1).standard_normal((HEADS, 1, DIM)).astype(np.float32) * 20
    x = keys(64) + offset
    plain = schemes()["int4, both rotated"]
    errors = [float(np.square(s.keys.read(x, values=False) - x).mean()) for s in (plain, centred(plain, offset, 0))]
    assert errors[1] < 0.1 * errors[0]


def test_first_tokens_stay_as_they_are_and_are_counted():
    plain = schemes()["int4, both rotated"]
    kept = centred(plain, np.zeros((HEADS, 1, DIM), np.float32), 4)
    x = keys(40)
    assert np.array_equal(kept.values.read(x, values=True)[:, :4], half(x[:, :4]))
    assert np.array_equal(kept.values.read(x, values=True)[:, 4:], plain.values.read(x, values=True)[:, 4:])
    more = kept.keys.bytes(40, HEADS, DIM, values=False) - plain.keys.bytes(40, HEADS, DIM, values=False)
    assert more == pytest.approx(4 * HEADS * DIM * (2 - 0.5 - 4 / 32))
    assert kept.keys.bytes(2, HEADS, DIM, values=False) == 2 * HEADS * DIM * 2


@pytest.mark.parametrize("values", [False, True])
def test_each_part_of_gear_lowers_the_error(values):
    x = keys(256)
    x[:, ::19, ::7] *= 12
    kind = "token" if values else "channel"
    sides = [Side(kind, 2, block=128), Side(kind, 2, rank=4, block=128), Side(kind, 2, rank=4, outliers=2, block=128)]
    errors = [float(np.square(side.read(x, values=values) - x).mean()) for side in sides]
    assert errors == sorted(errors, reverse=True)
    assert errors[2] < 0.7 * errors[0]


def test_outliers_come_back_as_they_are():
    x = keys(128)
    x[1, 5, 9] = 99
    x[2, 100, 3] = -77
    for values, kind in ((False, "channel"), (True, "token")):
        read = Side(kind, 2, outliers=1, block=128).read(x, values=values)
        assert (read[1, 5, 9], read[2, 100, 3]) == (99, -77)


def test_layers_are_ranked_by_what_they_lose():
    assert rank_layers([0.1, 0.5, 0.2, 0.5]) == [1, 3, 2, 0]
    assert swapped("aaa", 1, "b") == ["a", "b", "a"]
    assert mixed([2, 0], 4, "x", "y") == ["x", "y", "x", "y"]


def test_half_int8_half_int4_takes_exactly_the_bytes_of_k8v4():
    mixes = with_formats(list(range(30)), schemes())
    layers = mixes["int8 in the most sensitive half, int4"]
    wanted = 30 * schemes()["k8v4"].bytes(512, HEADS, DIM)
    assert sum(layer.bytes(512, HEADS, DIM) for layer in layers) == pytest.approx(wanted)
    assert all(isinstance(layer, Scheme) for layer in layers)


def test_neutral_constants_leave_int4_as_it_is():
    int4, x = schemes()["int4, both rotated"], keys(40)
    scheme = calibrated(int4, KeyConstants.neutral(HEADS, DIM))
    assert np.allclose(scheme.keys.read(x, values=False), int4.keys.read(x, values=False), atol=1e-3)
    assert scheme.bytes(512, HEADS, DIM) == int4.bytes(512, HEADS, DIM)


def test_calibrated_keys_have_scores_with_smaller_errors_and_feedback_helps():
    rng = np.random.default_rng(1)
    spread = np.geomspace(0.1, 3, DIM).astype(np.float32)
    x = keys(200) * spread + 4 * spread
    queries = (rng.standard_normal((HEADS, 200, DIM)) * spread[::-1]).astype(np.float32)
    places = np.arange(200)
    heads = [
        key_constants(key_statistics(one, rows[:, None], places, scale=0.125))
        for one, rows in zip(x, queries, strict=True)
    ]
    int4, constants = schemes()["int4, both rotated"], KeyConstants.joined(heads)

    def error(scheme):
        lost = scheme.keys.read(x, values=False) - x
        scores = queries @ lost.swapaxes(1, 2)
        return (scores - scores.mean(axis=2, keepdims=True)).std()

    alone = error(calibrated(int4, constants, has_feedback=False))
    assert error(calibrated(int4, constants)) < 0.95 * alone < 0.95 * 0.9 * error(int4)
