"""Opens an address in the browser of whoever sits at this computer."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Mapping


def has_browser(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether there is a screen for one; a browser in the terminal would take that over."""
    if sys.platform in ("darwin", "win32"):
        return True
    return bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"))


def open_page(url: str) -> bool:
    """Returns whether it is open. Blocking."""
    try:
        return has_browser() and webbrowser.open(url)
    except (webbrowser.Error, OSError):
        return False
