"""The sampling chain in plain steps: sort all tokens, then cut; what ``csrc/sampling/`` must equal to the bit.

``python -m tests.reference.sampling --rows 10000`` compares as many rows of three vocabularies with every instruction
set of the library.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from fractions import Fraction

import numpy as np

from edge_rt.ort.op_library import native_library
from edge_rt.runtime.decode.native_chain import NativeChain
from edge_rt.runtime.decode.numpy_chain import WHOLE, allowed_by, exp32, fused, whole_weights

VOCABULARIES = (1_000, 49_152, 151_936)
F = np.float32
OFF = {
    "temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "top_n_sigma": 0.0, "top_h": 0.0, "xtc_probability": 0.0,
    "xtc_threshold": 0.1, "fsd": 0.0, "repetition": 1.0, "presence": 0.0, "frequency": 0.0, "dry_multiplier": 0.0,
    "dry_base": 1.75, "dry_allowed": 2, "fsd_order": 3, "top_k": 0,
}  # fmt: skip
BLOCK, REPEAT, MOST = 256, 64, 1e4


class History:
    """Tokens before a row, and what they do to its scores."""

    def __init__(self, numbers, prompt=(), exempt=(), breakers=(), banned=(), bias=None):
        self.numbers, self.exempt, self.breakers, self.banned = numbers, set(exempt), set(breakers), list(banned)
        self.bias = bias or {}
        self.text, self.answer = list(prompt), []

    def observe(self, token):
        self.text.append(token)
        self.answer.append(token)

    def scores(self, logits, mask):
        numbers, scores = self.numbers, logits.copy()
        if mask is not None:
            scores[~allowed_by(mask, len(scores))] = -np.inf
        for token in self.banned:
            scores[token] = -np.inf
        if numbers["repetition"] != 1.0:
            penalty = F(numbers["repetition"])
            for token in set(self.text) - self.exempt:
                scores[token] = scores[token] / penalty if scores[token] > 0 else scores[token] * penalty
        if numbers["presence"] or numbers["frequency"]:
            for token in set(self.answer):
                repeated = F(numbers["frequency"]) * F(self.answer.count(token))
                scores[token] -= F(numbers["presence"]) + repeated
        for token, length in self.repeats().items():
            penalty = numbers["dry_multiplier"]
            for _ in range(length - numbers["dry_allowed"]):
                penalty = min(penalty * numbers["dry_base"], 1e9)
            scores[token] -= min(F(penalty), F(MOST))
        for token, value in self.bias.items():
            scores[token] += F(value)
        return scores

    def repeats(self):
        """Return token -> the longest repetition that it would go on with, where DRY counts it."""
        text, found = self.text, {}
        if not self.numbers["dry_multiplier"]:
            return found
        for i in range(1, len(text)):
            length = 0
            while length < min(REPEAT, i) and text[i - 1 - length] == text[-1 - length] not in self.breakers:
                length += 1
            if length >= self.numbers["dry_allowed"]:
                found[text[i]] = max(length, found.get(text[i], 0))
        return found

    def expected(self):
        """Return token -> what FSD's n-grams expect of it."""
        text, order = self.text, self.numbers["fsd_order"]
        shares, rest = [0.0] * order, 1.0
        for n in range(order - 1, 0, -1):
            shares[n] = rest * 0.9
            rest -= shares[n]
        shares[0] = rest
        tables = []
        for n in range(order):
            end = text[len(text) - n :]
            tables.append([text[i] for i in range(n, len(text)) if text[i - n : i] == end] if n < len(text) else [])
        return {
            token: _in_order(
                share * (table.count(token) / len(table)) for share, table in zip(shares, tables, strict=True)
                if token in table
            )
            for token in set(text)
        }  # fmt: skip


def _in_order(terms):
    total = 0.0
    for term in terms:
        total += term
    return total


def logarithm(x):
    mantissa, exponent = math.frexp(x)
    if mantissa < 0.7071067811865476:
        mantissa, exponent = 2.0 * mantissa, exponent - 1
    s = (mantissa - 1.0) / (mantissa + 1.0)
    series = 0.0
    for n in range(23, 0, -2):
        series = series * (s * s) + 1.0 / n
    return exponent * 0.6931471805599453 + 2.0 * s * series


def _tree(lanes):
    while lanes.shape[-1] > 1:
        half = lanes.shape[-1] // 2
        lanes = lanes[..., :half] + lanes[..., half:]
    return lanes[..., 0]


def moments(scores, temperature):
    """Return sums over blocks, in their order: weight times logarithm, and count, sum and squares below the peak."""
    scale = F(1.0 / max(temperature, 1e-30))
    vectors = -(-len(scores) // 16)
    padded = np.full(-(-len(scores) // BLOCK) * BLOCK, -np.inf, np.float32)
    padded[: len(scores)] = scores
    lanes = padded.reshape(-1, BLOCK // 16, 16)
    sums = [np.zeros((len(lanes), 16), np.float32) for _ in range(4)]
    for i in range(BLOCK // 16):
        # Of the last block only what holds scores.
        has = slice(0, len(lanes) if (len(lanes) - 1) * (BLOCK // 16) + i < vectors else len(lanes) - 1)
        below = lanes[has, i] - scores.max()
        with np.errstate(over="ignore"):
            logs = np.maximum(F(-87.3), below * scale)
        finite = np.isfinite(below)
        difference = np.where(finite, below, F(0))
        sums[0][has] = fused(exp32(logs), logs, sums[0][has])
        sums[1][has] += finite.astype(np.float32)
        sums[2][has] += difference
        sums[3][has] = fused(difference, difference, sums[3][has])
    return [_in_order(_tree(one).astype(np.float64).tolist()) for one in sums]


def law(numbers, history, logits, mask=None, *, excludes=False):
    """Return the tokens that may be drawn, by id, and their weights."""
    scores, greedy = history.scores(logits, mask), numbers["temperature"] == 0.0
    if greedy and not numbers["fsd"]:
        return [int(scores.argmax())], [WHOLE]
    temperature = 1.0 if greedy else numbers["temperature"]
    weights = whole_weights(scores, temperature)
    order = np.argsort(-weights, kind="stable")
    order = order[: int((weights > 0).sum())]
    entropy = None
    if numbers["top_n_sigma"] or numbers["top_h"]:
        information, count, total, squares = moments(scores, temperature)
        mean = total / count
        sigma = math.sqrt(max(0.0, squares / count - mean * mean))
        whole = int(weights.sum()) / WHOLE
        entropy = numbers["top_h"] * (logarithm(whole) - information / whole)
        if numbers["top_n_sigma"]:
            scale = F(1.0 / max(temperature, 1e-30))
            bound = F(-numbers["top_n_sigma"] * sigma) * scale
            least = int(np.rint(exp32(np.asarray([bound])) * F(WHOLE))[0])
            order = order[weights[order] >= least]
    if numbers["top_k"]:
        order = order[: numbers["top_k"]]
    if numbers["top_p"] < 1.0:
        wanted = math.ceil(numbers["top_p"] * float(weights[order].sum()))
        order = order[: int(np.searchsorted(np.cumsum(weights[order]), wanted)) + 1]
    order = order[weights[order] >= math.ceil(numbers["min_p"] * WHOLE)]
    if numbers["top_h"]:
        whole, information, kept = 0, 0.0, 0
        for weight in weights[order].tolist():
            whole += weight
            information += weight / WHOLE * logarithm(weight / WHOLE)
            if kept and logarithm(whole / WHOLE) - information / (whole / WHOLE) > entropy:
                break
            kept += 1
        order = order[:kept]
    pairs = sorted((int(token), int(weights[token])) for token in order)
    if numbers["fsd"]:
        expected, total = history.expected(), float(sum(weight for _, weight in pairs))
        ratio = numbers["fsd"] / (1.0 - numbers["fsd"])
        rest = [(token, weight - ratio * expected.get(token, 0.0) * total) for token, weight in pairs]
        pairs = [(token, int(left)) for token, left in rest if left >= 1.0]
        pairs = pairs or [(max(rest, key=lambda pair: (pair[1], -pair[0]))[0], 1)]
    if greedy:
        pairs = [max(pairs, key=lambda pair: (pair[1], -pair[0]))]
    elif excludes:
        bound = math.ceil(numbers["xtc_threshold"] * float(sum(weight for _, weight in pairs)))
        top = [(weight, -token) for token, weight in pairs if weight >= bound]
        pairs = [(token, weight) for token, weight in pairs if weight < bound or (weight, -token) == min(top)]
    return [token for token, _ in pairs], [weight for _, weight in pairs]


def draw(numbers, history, logits, mask, number):
    """Return the token that a random number draws."""
    share = 0.0 if numbers["temperature"] == 0.0 else numbers["xtc_probability"]
    excludes = number < share
    if share:
        number = min(number / share if excludes else (number - share) / (1.0 - share), 1.0 - 2.0**-53)
    ids, weights = law(numbers, history, logits, mask, excludes=excludes)
    place = int(number * 2**53) * sum(weights) >> 53
    for token, weight in zip(ids, weights, strict=True):
        if place < weight:
            return token
        place -= weight
    raise AssertionError("the place is behind all weights")


def rounded_once(a, b, c):
    """Return a * b + c of float32 by fractions, for a test of ``fused``."""
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    near = F(float(exact))
    nearby = [near, np.nextafter(near, F(np.inf)), np.nextafter(near, F(-np.inf))]
    best = min(abs(Fraction(float(one)) - exact) for one in nearby)
    ties = [one for one in nearby if abs(Fraction(float(one)) - exact) == best]
    return min(ties, key=lambda one: int(np.asarray(one).view(np.int32)) & 1)


class Case:
    """A row, settings and a history that a seed draws."""

    def __init__(self, seed, size):
        pick = random.Random(seed)
        rng = np.random.default_rng(seed)
        often = pick.choice
        self.size = size
        self.logits = (rng.standard_normal(size) * often([0.0, 0.3, 2.0, 3.0, 8.0])).astype(np.float32)
        if pick.random() < 0.3:
            # Ties.
            self.logits = np.round(self.logits * 2) / F(2)
        self.numbers = {
            **OFF,
            "temperature": often([0.0, 0.3, 0.7, 0.7, 1.0, 1.7]),
            "top_k": often([0, 0, 1, 5, 40, 700]),
            "top_p": often([1.0, 0.95, 0.95, 0.5, 0.01]),
            "min_p": often([0.0, 0.05, 0.05, 0.3]),
            "vocabulary": size,
        }
        rare = lambda *values: often([None, None, None, None, *values])  # noqa: E731
        for name, value in {
            "top_n_sigma": rare(0.5, 1.5), "top_h": rare(0.1, 0.4), "xtc_probability": rare(0.5, 1.0),
            "xtc_threshold": rare(0.02, 0.3), "fsd": rare(0.3, 0.7), "fsd_order": rare(1, 2, 5),
            "repetition": rare(1.1, 0.8), "presence": rare(0.5), "frequency": rare(0.2, -0.1),
            "dry_multiplier": rare(0.8, 2.0), "dry_base": rare(1.2), "dry_allowed": rare(1, 3),
        }.items():  # fmt: skip
            if value is not None:
                self.numbers[name] = value
        few = min(size, often([3, 30, size]))
        tokens = [pick.randrange(few) for _ in range(pick.randrange(60))]
        self.prompt = tokens[: len(tokens) // 2] * pick.choice([1, 2])
        self.answer = tokens[len(tokens) // 2 :]
        self.lists = {
            "prompt": self.prompt,
            "exempt": [0, 1],
            "breakers": [2] if pick.random() < 0.3 else [],
            "banned": [3, size - 1] if pick.random() < 0.2 else [],
            "biased": [4, 5] if pick.random() < 0.2 else [],
        }
        self.bias = [1.5, -2.0][: len(self.lists["biased"])]
        self.mask = None
        if pick.random() < 0.2:
            bits = rng.random(32 * -(-size // 32)) < often([0.5, 5 / size])
            bits[7] = True
            self.mask = np.packbits(bits, bitorder="little").view("<u4")
        self.random = pick.random()

    def history(self):
        bias = dict(zip(self.lists["biased"], self.bias, strict=True))
        lists = {name: self.lists[name] for name in ("prompt", "exempt", "breakers", "banned")}
        history = History(self.numbers, **lists, bias=bias)
        for token in self.answer:
            history.observe(token)
        return history

    def chain(self, isa=None):
        chain = NativeChain(self.numbers, self.lists, self.bias, isa)
        for token in self.answer:
            chain.observe(token, is_breaker=False)
        return chain

    def check(self, isas):
        """Compare every instruction set with the reference: law and draw."""
        history, laws = self.history(), []
        for excludes in (False, True)[: 1 + bool(self.numbers["xtc_probability"])]:
            ids, weights = law(self.numbers, history, self.logits, self.mask, excludes=excludes)
            laws.append((excludes, ids, weights))
        token = draw(self.numbers, history, self.logits, self.mask, self.random)
        for isa in isas:
            chain = self.chain(isa)
            for excludes, ids, weights in laws:
                found = chain.law(self.logits, self.mask, excludes=excludes)
                assert [one.tolist() for one in found] == [ids, weights], (isa, self.numbers)
            assert chain.draw(self.logits, self.mask, self.random) == token, (isa, self.numbers)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    library = native_library()
    library.use_threads(arguments.threads)
    for row in range(arguments.first, arguments.first + arguments.rows):
        Case(row, VOCABULARIES[row % 3]).check(library.isa_names)
    print(f"{arguments.rows} rows of {len(VOCABULARIES)} vocabularies: equal on {', '.join(library.isa_names)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
