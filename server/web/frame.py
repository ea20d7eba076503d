"""What all pages have in common. No scripts; nothing is loaded from anywhere."""

from __future__ import annotations

import base64
import hashlib
from html import escape
from typing import Final

_STYLE: Final = """
body{font:1rem/1.5 system-ui,sans-serif;max-width:44rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.4rem}dl{display:grid;grid-template-columns:max-content 1fr;gap:.3rem 1.5rem}
dt{color:#555}dd{margin:0;overflow-wrap:anywhere}progress{width:100%}
pre{background:#f4f4f4;padding:1rem;overflow:auto}
"""
_DIGEST: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
HEADERS: Final = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_DIGEST}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    # Its address may hold a link that is good by itself.
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def page(title: str, body: str, refresh_s: int | None = None) -> str:
    """A whole page.

    Args:
        body: HTML, in which everything from outside is escaped.
        refresh_s: seconds until the browser loads it again; None: it does not.
    """
    again = f'<meta http-equiv="refresh" content="{refresh_s}">' if refresh_s else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"{again}<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body><h1>{escape(title)}</h1>\n{body}\n</body></html>\n"
    )
