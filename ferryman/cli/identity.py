"""Who uses the command line."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ferryman.client import Client

USER: Final = re.compile(r"[A-Za-z0-9._@-]{1,64}")


def login_name() -> str | None:
    """Who is logged in, if that can be a user's name on a server."""
    import getpass

    try:
        name = getpass.getuser()
    except (OSError, KeyError, ImportError):  # a uid without an account; Windows without USERNAME
        return None
    return name if USER.fullmatch(name) else None


async def usual_user(client: Client, *, has_token: bool) -> str | None:
    """Whose jobs are meant where nobody says it: those of FERRYMAN_USER, or else of the user that
    the token is for, or else of the login name."""
    named = os.environ.get("FERRYMAN_USER")
    if named or not has_token:
        return named or login_name()
    return (await client.whoami()).user_id or login_name()
