"""Lines of text made up at random, and small vocabularies whose merges come from such lines."""

from __future__ import annotations

import functools
import random

SCRIPTS = {
    "latin": "Größe naïve café déjà vu Łódź \u017ftraße Ǆ ﬁn",
    "cyrillic": "быстрая лиса прыгает ЖУК ёлка",
    "greek": "καλημέρα κόσμε ΑΘΗΝΑ ὕδωρ",
    "arabic": "مرحبا بالعالم ١٢٣ السلام",
    "hebrew": "שלום עולם בְּרֵאשִׁית",
    "devanagari": "नमस्ते दुनिया क्षत्रिय १२३",
    "thai": "สวัสดีชาวโลก กำลัง",
    "han": "你好世界天地玄黄宇宙洪荒",
    "kana": "こんにちは世界カタカナ。、「」",
    "hangul": "안녕하세요 세계 한글 가",
}
EMOJI = ("😀", "👩‍👩‍👧", "🏳️‍🌈", "🇩🇪", "👍🏽", "e\u0301", "a\u0300\u0323", "❤️", "\u200d", "\ufe0f")
BLANKS = (" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", " \n", "\n ", "\t\t", "\u00a0", "\u3000", "    ", "\x0b")
WORDS = ("the", "quick", "Fox", "don't", "I'LL", "HTTPServer", "snake_case", "camelCase", "we're", "x", "tok")
CODE = (
    "def f(x):",
    "return x**2;",
    "a[i]+=1",
    "://",
    "<div>",
    "!!",
    "...",
    "{}",
    "->",
    "//",
    "==",
    '"q"',
    "'s",
    "$1",
    "`",
)


def line(rng: random.Random) -> str:
    """Return a line of code, prose in several scripts, emoji, white space and digits."""
    parts = []
    for _ in range(rng.randint(1, 14)):
        kind = rng.randrange(8)
        if kind == 0:
            script = rng.choice(list(SCRIPTS.values()))
            start = rng.randrange(len(script))
            parts.append(script[start : start + rng.randint(1, 12)])
        elif kind == 1:
            parts.append(rng.choice(EMOJI))
        elif kind == 2:
            parts.append(str(rng.randrange(10 ** rng.randint(1, 12))))
        elif kind == 3:
            parts.append(rng.choice(CODE))
        elif kind == 4:
            parts.append(chr(rng.choice([rng.randrange(0x20, 0x250), rng.randrange(0x370, 0xD800)])))
        elif kind == 5:
            parts.append(rng.choice(BLANKS))
        else:
            parts.append(rng.choice(WORDS) + rng.choice(["", " ", " ", "  ", ","]))
    return "".join(parts)


def lines(count: int, seed: int = 1) -> list[str]:
    """Return that many lines, the same for the same seed."""
    rng = random.Random(seed)
    return [line(rng) for _ in range(count)]


def merges_of(symbols: list[list[str]], count: int, rng: random.Random, refused: str = "") -> list[tuple[str, str]]:
    """Merge neighbours chosen at random, again and again; a merge may span words, but no character of ``refused``."""
    merges: list[tuple[str, str]] = []
    for _ in range(count * 4):
        if len(merges) == count:
            break
        row = rng.choice(symbols)
        if len(row) < 2:
            continue
        at = rng.randrange(len(row) - 1)
        left, right = row[at], row[at + 1]
        if (left, right) in merges or any(character in left + right for character in refused) or len(left + right) > 12:
            continue
        merges.append((left, right))
        for index, other in enumerate(symbols):
            if left in other and right in other:
                symbols[index] = _merged(other, left, right)
    return merges


def _merged(row: list[str], left: str, right: str) -> list[str]:
    result: list[str] = []
    for symbol in row:
        if result and result[-1] == left and symbol == right:
            result[-1] = left + right
        else:
            result.append(symbol)
    return result


def byte_alphabet() -> list[str]:
    """Return GPT-2's spelling of the 256 bytes, by byte."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(256 + others.index(byte)) for byte in range(256)]


@functools.cache
def byte_vocabulary(count: int = 400, seed: int = 5) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Return the tokens and merges of a byte-level vocabulary."""
    alphabet = byte_alphabet()
    symbols = [[alphabet[byte] for byte in text.encode()] for text in lines(300, seed)]
    merges = merges_of(symbols, count, random.Random(seed))
    return tuple(dict.fromkeys([*alphabet, *(left + right for left, right in merges)])), tuple(merges)


@functools.cache
def text_vocabulary(count: int = 400, seed: int = 6) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Return the tokens and merges of a vocabulary with byte fallback, without its 256 byte tokens."""
    texts = [text.replace(" ", "\u2581") for text in lines(300, seed)]
    # Some characters are left to the bytes.
    known = sorted({character for text in texts[:60] for character in text if character not in "\n\t"})
    symbols = [[character for character in text if character in known] for text in texts]
    merges = merges_of(symbols, count, random.Random(seed))
    return tuple(dict.fromkeys([*known, *(left + right for left, right in merges)])), tuple(merges)
