"""What the driver of the soak knows, and what must therefore be true; and how it asks: each request
until there is an answer.
"""

import http.client
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

from tests.kit.programs import call
from tests.soak.kinds import Bundle

EXPIRES_S, FORGOTTEN_S = 90.0, 120.0
"""`expires_after` and `forget_after` of both services, both since a job's end."""
PATIENCE_S = 180.0
_never = threading.Event()


@dataclass
class Known:
    """One upload that was answered with 201.

    Attributes:
        sent_at, answered_at: of the upload; between them it was stored.
        generation: of the server that answered; a restore begins the next one.
        ended: state that was seen and checked.
        ended_at: when that was, by the job's document; the driver may see it much later.
        cancel: somebody asked for it, in this or an earlier generation.
        runs: how often it may have ended: once, and once for each retry by hand.
    """

    job_id: int
    bundle: Bundle
    user: str
    sent_at: float
    answered_at: float
    generation: int
    first: int = 0
    ended: str = ""
    ended_at: float = 0.0
    cancel: bool = False
    cancel_after: float | None = None
    deleted_at: float | None = None
    runs: int = 1
    checked: int = 0
    """Generation in which it was last looked for after a restore."""

    @property
    def name(self) -> str:
        return f"job {self.job_id} ({self.bundle.kind}, {self.bundle.token})"


@dataclass
class Backup:
    """One that was made while the server ran, between two moments."""

    path: str
    begun_at: float
    ended_at: float
    generation: int


@dataclass
class Model:
    generation: int = 1
    restored_at: float = 0.0
    restored_from: Backup | None = None
    jobs: dict[int, Known] = field(default_factory=dict)
    touched: set[int] = field(default_factory=set)
    """Jobs, children too, of which the driver killed a process."""
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def report(self, what: str) -> None:
        with self.lock:
            self.wrong.append(what)
        print(f"WRONG: {what}", flush=True)

    def count(self, what: str, number: int = 1) -> None:
        with self.lock:
            self.counts[what] += number

    def answered(self, known: Known) -> None:
        with self.lock:
            other = self.jobs.get(known.job_id)
            self.jobs[known.job_id] = known
            self.counts[f"uploaded: {known.bundle.kind}"] += 1
        if other is not None:
            self.report(f"the number of {other.name} was given again, to {known.name}")

    def of_user(self, user: str) -> list[Known]:
        with self.lock:
            return [known for known in self.jobs.values() if known.user == user]

    def restore(self, backup: Backup) -> None:
        """The server is stopped, and the next one will be that of the backup."""
        with self.lock:
            self.generation += 1
            self.restored_from, self.restored_at = backup, time.monotonic()

    def must_be_there(self, known: Known) -> bool | None:
        """After a restore: whether the job must be known; None: it may or may not."""
        backup = self.restored_from
        assert backup is not None
        if known.deleted_at is not None and known.deleted_at < backup.ended_at:
            return None if known.deleted_at > backup.begun_at else False
        if known.sent_at > backup.ended_at:
            return False
        gone_at = known.ended_at + FORGOTTEN_S
        if known.answered_at > backup.begun_at or (known.ended and time.monotonic() > gone_at - 5):
            return None
        return True


class Wrong(Exception):
    """What must be true is not."""


def pause(seconds: float) -> None:
    _never.wait(seconds)


def ask(
    url: str, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
) -> tuple[int, bytes]:
    """Status and body. Asks again while nothing listens, or an answer breaks off or says so."""
    end = time.monotonic() + PATIENCE_S
    last: object = None
    while time.monotonic() < end:
        try:
            status, answer = call(url, method, path, body, headers)
        except AssertionError as wrong:
            raise Wrong(f"{method} {path}: the digest is not that of the body") from wrong
        except (OSError, http.client.HTTPException) as problem:
            last = problem
            pause(0.1)
            continue
        if status not in (429, 503, 507):
            return status, answer
        last = answer[:300]
        pause(0.3)
    raise Wrong(f"{method} {path}: no answer in {PATIENCE_S:.0f} s ({last!r})")
