"""Making text from a model or a file safe to print on a terminal."""

from __future__ import annotations

from typing import Final


def _visible(code: int) -> str:
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    return f"<U+{code:04X}>"


_CONTROLS: Final = [*range(0x20), *range(0x7F, 0xA0)]
_BIDI: Final = [*range(0x202A, 0x202F), *range(0x2066, 0x206A)]
_TABLE: Final = {
    **{code: _visible(code) for code in (*_CONTROLS, *_BIDI) if chr(code) not in "\n\t\r"},
    ord("\r"): "",
    **dict.fromkeys(range(0xD800, 0xE000), "\ufffd"),
}


def harmless(text: str) -> str:
    """Return the text with every control character replaced by a visible one.

    Control characters (C0 except newline and tab, DEL, C1) and characters that change the writing direction become
    visible symbols; carriage returns are removed; lone surrogates become U+FFFD. Each character is replaced
    independently, so an escape sequence that arrives in pieces is as harmless as a whole one.
    """
    return text.translate(_TABLE)
