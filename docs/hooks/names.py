"""Short names and commands in the text are not broken at a hyphen or a space; longer ones break behind a sign."""

from __future__ import annotations

import html
import re
from typing import Any

SHORT = 32  # signs: they fit into a line of a phone
BLOCK = re.compile(r"(<pre\b.*?</pre>)", re.DOTALL)
CODE = re.compile(r"<code>([^<]*)</code>")
SIGN = re.compile(r"(?<=\w)([.(=/,])(?=\w)")


def on_page_content(html: str, **_: Any) -> str:
    """Mark short code outside blocks, which the style sheet keeps whole, and say where long code may break."""
    pieces = BLOCK.split(html)
    return "".join(piece if piece.startswith("<pre") else CODE.sub(_marked, piece) for piece in pieces)


def _marked(match: re.Match[str]) -> str:
    text = html.unescape(match[1])
    if len(text) <= SHORT and re.search(r"[\s\-]", text):
        return f'<code class="whole">{match[1]}</code>'
    if len(text) > SHORT or text.startswith("equipoise."):  # a heading of the reference is large
        broken = SIGN.sub(r"\1<wbr>", match[1])
        return f"<code>{broken}</code>"
    return match[0]
