"""Whether a server with some settings could be used by nobody, or by everybody."""

from __future__ import annotations

from server.settings.tables import ServerTable
from shared.http.sockets import CannotListen, check_exposure
from shared.settings.base import SettingsError


def check_tokens(table: ServerTable, *, others: bool) -> None:
    """Refuse settings with which nobody could do anything, or anybody everything.

    Args:
        others: whether there are operators' tokens that were made while the server ran.

    Raises:
        CannotListen
    """
    check_exposure(table.host, table.needs_token, "server")
    if not table.needs_token or table.all_tokens() or others:
        return
    check_exposure(table.host, protected=False, what="server")
    raise CannotListen(
        'refusing to start with auth = "token" and without a token: nobody could use it. '
        "Set server.tokens, and with one of them make others: "
        "ferryman token create"
    )


def check_start(table: ServerTable) -> None:
    """Refuse the same before a start; whether there are other tokens, the database knows. Raises
    SettingsError.
    """
    try:
        check_tokens(table, others=True)
    except CannotListen as problem:
        raise SettingsError(str(problem)) from None


def check_change(old: ServerTable, new: ServerTable, *, others: bool) -> None:
    """Refuse the same for a server that runs, and what would open it to everybody. Raises
    ValueError.
    """
    if old.needs_token and not new.needs_token:
        raise ValueError(
            "server.tokens: without the last token nobody would need one: "
            "give one, or restart the server if that is meant"
        )
    try:
        check_tokens(new, others=others)
    except CannotListen as problem:
        raise ValueError(str(problem)) from None
