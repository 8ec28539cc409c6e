"""How text is cut before merging, by the names that GGUF files give it (``tokenizer.ggml.pre``).

A name is chosen by a converter from the ids of a test text, so one cut has several names. The regular expressions are
those of the models' own ``tokenizer.json``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from edge_rt.errors import UnsupportedModel
from edge_rt.text.piece_encoder import NEWLINES

_LLAMA3: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Like Llama 3's, with single digits.
_QWEN2: Final = _LLAMA3.replace("{1,3}", "")
# Like Qwen 2's, with marks as parts of words.
_QWEN35: Final = _QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]+", r"[^\s\p{L}\p{M}\p{N}]+")
# Words end where an upper-case letter follows a lower-case one; a slash is punctuation.
_UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED: Final = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s"
_CASED_REST: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN: Final = _CASED.replace("%s", "") + r"|\p{N}" + _CASED_REST
_GPT4O: Final = _CASED.replace("%s", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?") + r"|\p{N}{1,3}" + _CASED_REST
_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# A sign and the Latin word behind it are one part; Chinese and Japanese are cut out first.
_DEEPSEEK3: Final = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
_CJK: Final = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"


@dataclass(frozen=True)
class Scheme:
    """How text is cut before merging.

    Attributes:
        splits: regular expressions, applied one after the other to what the ones before left; none: GPT-2's, which
            ByteLevel has built in.
        single_digits: every digit is a piece of its own (applied before GPT-2's rule).
        ignore_merges: a piece that is a token as a whole is taken without merging.
        add_bos: whether prompts start with the BOS token when the file does not say.
    """

    splits: tuple[str, ...] = ()
    single_digits: bool = False
    nfc: bool = False
    ignore_merges: bool = False
    add_bos: bool = False

    def pre_tokenizer(self) -> dict[str, object]:
        """Return the pre-tokenizer as ``tokenizer.json`` has it."""
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": not self.splits}
        steps: list[dict[str, object]] = []
        if self.single_digits:
            steps.append({"type": "Digits", "individual_digits": True})
        steps += [split_step(pattern) for pattern in self.splits]
        return {"type": "Sequence", "pretokenizers": [*steps, level]} if steps else level


def split_step(pattern: str) -> dict[str, object]:
    """Return the step that makes every match of a regular expression a piece, and what is between them."""
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


_BY_GPT2: Final = Scheme()
_BY_DIGITS: Final = Scheme(single_digits=True)
_BY_LLAMA3: Final = Scheme((_LLAMA3,))
_BY_QWEN2: Final = Scheme((_QWEN2,))
_BY_GPT4O: Final = Scheme((_GPT4O,))
_BY_DEEPSEEK3: Final = Scheme((r"\p{N}{1,3}", _CJK, _DEEPSEEK3))
# llama.cpp's rule for files that name none: punctuation first, then GPT-2's, then digits by threes.
_BY_DEFAULT: Final = Scheme((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))

_NAMES: Final[tuple[tuple[Scheme, str], ...]] = (
    (_BY_DEFAULT, "default"),
    (
        _BY_GPT2,
        "gpt-2 phi-2 mpt olmo exaone4 jais trillion mellum modern-bert gigachat granite-docling a.x-4.0",
    ),
    (_BY_DIGITS, "smollm starcoder refact codeshell exaone minerva-7b mellum2"),
    (replace(_BY_DIGITS, nfc=True), "command-r"),
    (
        replace(_BY_LLAMA3, ignore_merges=True, add_bos=True),
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral lfm2 midm-2.0 jina-v5-nano",
    ),
    (_BY_LLAMA3, "smaug-bpe dbrx chatglm-bpe"),
    (replace(_BY_LLAMA3, ignore_merges=True), "glm4 glm5"),
    (replace(_BY_QWEN2, nfc=True), "qwen2 f2llmv2"),
    (_BY_QWEN2, "deepseek-r1-qwen megrez kormo stablelm2 hunyuan solar-open"),
    (Scheme((_QWEN35,), nfc=True), "qwen35"),
    (_BY_GPT4O, "gpt-4o llama4 kanana2 talkie minimax-m2"),
    (Scheme((_TEKKEN,), ignore_merges=True, add_bos=True), "tekken"),
    (_BY_DEEPSEEK3, "deepseek-v3 hunyuan-dense joyai-llm hy_v4"),
    (Scheme((r"\p{N}{1,3}", _QWEN2.replace(r"\p{N}|", r"\p{N}+|")), ignore_merges=True), "minicpm5"),
)
SCHEMES: Final[Mapping[str, Scheme]] = {name: scheme for scheme, names in _NAMES for name in names.split()}
"""Name -> how text is cut."""

LINES: Final = split_step(NEWLINES)
"""How vocabularies with byte fallback and merges are cut (``gemma4``)."""


def scheme_of(name: str | None) -> Scheme:
    """Return how text is cut by a name; without one, as by ``default``."""
    scheme = SCHEMES.get("default" if name is None else name)
    if scheme is None:
        raise UnsupportedModel(
            f"The tokenizer asks for the pre-tokenizer {str(name)[:40]!r}, which is not supported.",
            f"Key 'tokenizer.ggml.pre'; supported: {', '.join(sorted(SCHEMES))}.",
            "Use another model, or convert this one again with a newer converter.",
        )
    return scheme
