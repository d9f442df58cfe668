"""How names and formulas are set: short code is not broken, longer code breaks behind a sign, indices are small."""

from __future__ import annotations

import html
import re
from typing import Any

SHORT = 32  # signs: they fit into a line of a phone
BLOCK = re.compile(r"(<pre\b.*?</pre>)", re.DOTALL)
CODE = re.compile(r"<code>([^<]*)</code>")
PIECE = re.compile(r"(<code\b.*?</code>|<[^>]*>)", re.DOTALL)  # what is no text
INDEX = re.compile(
    r"((?<![\w_])[A-Za-z]|\))_([A-Za-z0-9]{1,3})(?![\w_])"  # g_i, P_jk, (G w)_i
    r"|(?<![\w_])(sum|mean|max|min|grad|sigma|tau|beta)_([A-Za-z0-9])(?![\w_])"
)
POWER = re.compile(r"(?<=[\w)|>])\^(-?[\w/]+|\([^()]*\))")  # c^2, w^(-1 / alpha)
SIGN = re.compile(r"(?<=\w)([.(=/,])(?=\w)")


def on_page_content(html: str, **_: Any) -> str:
    """Mark short code outside blocks, which the style sheet keeps whole; say where long code may break; formulas."""
    pieces = BLOCK.split(html)
    return "".join(piece if piece.startswith("<pre") else CODE.sub(_marked, _raised(piece)) for piece in pieces)


def _raised(text: str) -> str:
    pieces = PIECE.split(text)
    return "".join(piece if piece.startswith("<") else POWER.sub(_power, INDEX.sub(_index, piece)) for piece in pieces)


def _index(match: re.Match[str]) -> str:
    return f"{match[1] or match[3]}<sub>{match[2] or match[4]}</sub>"


def _power(match: re.Match[str]) -> str:
    return f"<sup>{match[1].strip('()')}</sup>"


def _marked(match: re.Match[str]) -> str:
    text = html.unescape(match[1])
    if len(text) <= SHORT and re.search(r"[\s\-]", text):
        return f'<code class="whole">{match[1]}</code>'
    if len(text) > SHORT or text.startswith("equipoise."):  # a heading of the reference is large
        broken = SIGN.sub(r"\1<wbr>", match[1])
        return f"<code>{broken}</code>"
    return match[0]
