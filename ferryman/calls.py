"""What the parts of the client have in common."""

from __future__ import annotations

from ferryman.errors import BadArgument
from ferryman.transport import Transport


class Calls:
    """A part of :class:`ferryman.Client`."""

    _transport: Transport
    _has_token: bool
    user: str | None

    def _user_of(self, user: str | None) -> str | None:
        """Whose job it is; None: the token's user, if the server knows one.

        Raises:
            BadArgument
        """
        user = user or self.user
        if user is None and not self._has_token:
            raise BadArgument("whose job is it? give user=…, here or to the client")
        return user
