"""Short names and commands in the text are not broken at a hyphen or a space; longer ones still wrap."""

from __future__ import annotations

import html
import re
from typing import Any

SHORT = 32  # signs: they fit into a line of a phone
BLOCK = re.compile(r"(<pre\b.*?</pre>)", re.DOTALL)
CODE = re.compile(r"<code>([^<]*)</code>")


def on_page_content(html: str, **_: Any) -> str:
    """Mark short code outside blocks, so that the style sheet can keep it whole."""
    pieces = BLOCK.split(html)
    return "".join(piece if piece.startswith("<pre") else CODE.sub(_marked, piece) for piece in pieces)


def _marked(match: re.Match[str]) -> str:
    text = html.unescape(match[1])
    broken = len(text) <= SHORT and re.search(r"[\s\-]", text)
    return f'<code class="whole">{match[1]}</code>' if broken else match[0]
