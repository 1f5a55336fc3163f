"""What models and users wrote, made visible and safe to put on a page."""

from __future__ import annotations

import html
import json
import re
from typing import Any

_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_MARKUP = re.compile("[<>&\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff]")


def visible(text: str) -> str:
    """The text with a mark for what would not be seen: controls, lone surrogates, changes of direction.

    Line breaks, tabs and joiners within words and emoji stay as they are.
    """
    return _UNSEEN.sub(_mark, text)


def visible_token(token: str) -> str:
    """As `visible`, and a mark for white space too; a line break keeps its effect after its mark."""
    if not token:
        return "∅"
    token = visible(token).replace("\n", "↵\n").replace("\t", "⇥\t")
    if not token.strip():
        return "␣" * len(token)
    if all(character in " \u200c\u200d\ufe0e\ufe0f" for character in token):
        return "".join("␣" if character == " " else f"⟨U+{ord(character):04X}⟩" for character in token)
    return token


def escaped(text: object) -> str:
    """The text as content or attribute of an HTML element, with `visible`'s marks."""
    return html.escape(visible(str(text)))


def embedded(value: Any) -> str:
    """The value as JSON that is inert inside any HTML element, a script included."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return _MARKUP.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _mark(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else f"⟨U+{code:04X}⟩"
