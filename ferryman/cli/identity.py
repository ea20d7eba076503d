"""Who uses the command line."""

from __future__ import annotations

import re
from typing import Final

USER: Final = re.compile(r"[A-Za-z0-9._@-]{1,64}")


def login_name() -> str | None:
    """Who is logged in, if that can be a user's name on a server."""
    import getpass

    try:
        name = getpass.getuser()
    except (OSError, KeyError, ImportError):  # a uid without an account; Windows without USERNAME
        return None
    return name if USER.fullmatch(name) else None
