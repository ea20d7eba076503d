"""What the agent answers instead of doing what it was asked; ``api`` turns each into a reply."""

from __future__ import annotations

import errno
from typing import Final

from shared.ids import AttemptKey
from shared.wire import PayloadState

SHORTAGE: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Numbers of errors that say nothing about the file at hand: the agent is short of descriptors or
memory, and tries again."""


class NotNow(Exception):
    """An attempt could not be started for a shortage: it stays Prepared, and is tried again."""


class Refused(Exception):
    """A request that is not carried out, and what to tell whoever asked.

    Attributes:
        status: of HTTP.
        code: for programs.
        message: a sentence for people.
    """

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


class NoSuchPayload(Exception):
    def __init__(self, payload_id: int) -> None:
        super().__init__(f"payload {payload_id} is not known here")
        self.payload_id = payload_id


class NotEnded(Exception):
    def __init__(self, payload_id: int, state: PayloadState) -> None:
        super().__init__(f"payload {payload_id} is {state}: it has not ended, so it must be kept")
        self.payload_id, self.state = payload_id, state


class StaleAttempt(Exception):
    """A later attempt of the same job is known already."""

    def __init__(self, key: AttemptKey, latest: int) -> None:
        super().__init__(f"attempt {key} is stale: attempt {latest} of the same job is known here")
        self.key, self.latest = key, latest


class KeyRefused(Exception):
    """This key was promised never to be taken."""

    def __init__(self, key: AttemptKey) -> None:
        super().__init__(f"attempt {key} was settled as never to run here")
        self.key = key


class DigestMismatch(Exception):
    """This key is known with another bundle: whoever uses it again lost its history."""

    def __init__(self, key: AttemptKey, digest: str) -> None:
        super().__init__(f"attempt {key} is known here with another bundle, of digest {digest}")
        self.key, self.digest = key, digest


class SubmitInProgress(Exception):
    """Whether the order under this key is taken is not decided yet."""

    def __init__(self, key: AttemptKey) -> None:
        super().__init__(f"the order of attempt {key} has come, and is being stored: ask again")
        self.key = key
