"""The page of a request that is refused."""

from __future__ import annotations

from html import escape

from server.web.frame import page


def refusal_page(
    title: str, message: str, code: str, request_id: str, back: str | None = None
) -> str:
    """What is wrong, in words, and what to name when asking for help.

    Args:
        back: address to go back to; None: there is none.
    """
    body = (
        f"<p>{escape(message[:1].upper() + message[1:])}.</p>\n"
        f"<p><small>{escape(code)}, request {escape(request_id)}</small></p>"
    )
    if back is not None:
        body += f'\n<p><a href="{escape(back)}">Go back</a></p>'
    return page(title, body)
