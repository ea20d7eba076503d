"""Users of the soak, who upload, follow, cancel, retry, delete, and check what comes; and clients
that break off, trickle, hang and talk nonsense.
"""

import json
import socket
import threading
import time
import traceback
import zipfile
from contextlib import suppress
from datetime import UTC, datetime
from random import Random
from typing import Any
from urllib.parse import urlsplit

from server.domain import states
from shared.wire import JobState
from tests.kit.programs import form
from tests.kit.raw_archives import FORM
from tests.soak import kinds
from tests.soak.model import FORGOTTEN_S, Known, Model, Wrong, ask, pause
from tests.soak.system import SERVICES
from tests.soak.watching import of_jobs

_CANCELLED = 0.04
_KILLED = ("exit_code", "agent_error", "sandbox_error", "child_failed", "dependency_failed")
"""Reasons that a job may have of which the driver killed a process."""


class _Restored(Exception):
    """Which of the two servers answered is not known."""


class User(threading.Thread):
    """Has ``most`` uploads under way until it is stopped; then goes on until all have ended."""

    def __init__(self, name: str, url: str, model: Model, mark: str, seed: int, most: int) -> None:
        super().__init__(name=name, daemon=True)
        self._url, self._model, self._mark = url, model, mark
        self._random, self._most = Random(seed), most
        self._generation = model.generation
        self._last: int = 0
        self.stop = threading.Event()

    def run(self) -> None:
        while not (self.stop.is_set() and not self._open()):
            try:
                self._round()
            except _Restored:
                continue
            except Wrong as wrong:
                self._model.report(f"{self.name}: {wrong}")
                pause(1)
            except Exception:  # noqa: BLE001 - a defect of the driver: it fails the soak
                self._model.report(f"{self.name}: {traceback.format_exc()}")
                pause(5)

    def _open(self) -> list[Known]:
        return [one for one in self._model.of_user(self.name) if not one.ended]

    def _round(self) -> None:
        self._after_a_restore()
        following = self._open()
        if len(following) < self._most and not self.stop.is_set():
            self._upload()
        for known in following:
            self._follow(known)
        pause(self._random.uniform(0.1, 0.7))

    def _ask(
        self, method: str, path: str, *allowed: int, body: bytes = b"", key: str = ""
    ) -> tuple[int, bytes]:
        """Status and body; one that is not allowed is wrong, where any are named."""
        headers = {"Content-Type": FORM} if body else {}
        headers |= {"Idempotency-Key": key} if key else {}
        status, answer = ask(self._url, method, path, body, headers)
        if self._model.generation != self._generation:
            raise _Restored
        if allowed and status not in allowed:
            raise Wrong(f"{method} {path}: {status} {answer[:500]!r}")
        return status, answer

    def _job(self, job_id: int, below: str = "") -> tuple[int, Any]:
        status, answer = self._ask("GET", f"/api/v1/jobs/{job_id}{below}", 200, 404)
        return status, json.loads(answer)

    def _upload(self) -> None:
        bundle = kinds.draw(self._random)
        fields = {"user_id": self.name, "service": self._random.choice(SERVICES), **bundle.fields}
        last = self._model.jobs.get(self._last)
        chained = last is not None and last.bundle.kind == "quick" and self._random.random() < 0.3
        if chained and bundle.kind == "quick":
            bundle.files["run.sh"] += f"test -s inputs/{self._last}/out.txt\n".encode()
            fields["inputs_from"] = str(self._last)
        body, begun = form(bundle.files, **fields), time.monotonic()
        status, answer = self._ask("POST", "/upload", body=body, key=bundle.token)
        if status == 400 and "inputs_from" in fields:
            self._model.count("refused: the job that it depends on is lost or gone")
            return
        if status != 201:
            raise Wrong(f"upload: {status} {answer[:500]!r}")
        job_id, now = int(json.loads(answer)["id"]), time.monotonic()
        known = Known(job_id, bundle, self.name, begun, now, self._generation)
        known.checked, known.first = self._generation, int(fields.get("inputs_from", 0))
        if bundle.kind == "hangs" or self._random.random() < _CANCELLED:
            known.cancel_after = now + self._random.uniform(0.1, 12)
        self._model.answered(known)
        self._last = job_id
        bundle.files = {}  # they would fill the memory within hours
        if self._random.random() < 0.05:
            again, answer = self._ask("POST", "/upload", body=body, key=bundle.token)
            if again != 201 or int(json.loads(answer)["id"]) != job_id:
                raise Wrong(f"the repeat of the upload of {known.name}: {again} {answer[:300]!r}")
            self._model.count("uploads repeated under their key")

    def _follow(self, known: Known) -> None:
        status, job = self._job(known.job_id)
        if status == 404:
            known.ended = "lost"
            if known.ended_at and time.monotonic() > known.ended_at + FORGOTTEN_S - 5:
                self._model.count("forgotten before it was looked at again after a restore")
                return
            raise Wrong(f"{known.name} is lost: {job}")
        if job["status"] == "Cleaned":
            self._model.count("expired before their result was fetched")
            known.ended, known.ended_at = "Cleaned", time.monotonic()
        elif job["ended"]:
            self._check(known, job)
        elif known.cancel_after is not None and time.monotonic() > known.cancel_after:
            known.cancel = True
            status, _ = self._ask("POST", f"/terminate/{known.job_id}", 200, 202, 409)
            self._model.count(f"cancelled: answered {status}")
            known.cancel_after = time.monotonic() + 20 if status == 202 else None
            if status == 200:
                self._nothing_runs(known)
        elif job["status"] == "Running" and self._random.random() < 0.02:
            self._ask("GET", f"/download_partial/{known.job_id}", 200, 410, 404)
            self._model.count("partial results of running jobs")

    def _family(self, known: Known) -> set[int]:
        if known.bundle.kind not in ("array", "fan-out"):
            return {known.job_id}
        _, answer = self._ask("GET", f"/api/v1/jobs?parent={known.job_id}&limit=50", 200, 404)
        return {known.job_id, *(child["id"] for child in json.loads(answer).get("items", []))}

    def _nothing_runs(self, known: Known) -> None:
        ids = self._family(known)
        restored_s = time.monotonic() - self._model.restored_at
        patience = 30.0 if self._model.generation > 1 and restored_s < 60 else 0.0
        end = time.monotonic() + patience
        while living := [one for one in of_jobs(self._mark) if one.job_id in ids]:
            if time.monotonic() >= end:
                raise Wrong(f"{known.name} is cancelled, but runs: {living}")
            pause(0.5)
        self._model.count("cancelled, and no process was left")

    def _check(self, known: Known, job: dict[str, Any]) -> None:
        """An ended job: state, history and content."""
        found = (job["status"], job["reason"])
        complaint = self._complaint(known, job, found)
        known.ended, known.ended_at = job["status"], _moment(job)
        if complaint == "gone":
            self._model.count("expired before their result was fetched")
            return
        if complaint:
            raise Wrong(f"{known.name}: {complaint}; {job}; {self._job(known.job_id, '/events')}")
        self._model.count(f"ended: {found[0]}" + (f", {found[1]}" if found[1] else ""))
        self._model.count("attempts", job["attempt"])
        self._afterwards(known, job)

    def _complaint(self, known: Known, job: dict[str, Any], found: tuple[str, str | None]) -> str:
        bundle, natural = known.bundle, kinds.natural(known.bundle.kind)
        if found[0] == "Cancelled" and known.cancel:
            self._nothing_runs(known)
            return self._wrong_history(known, job)
        touched = found[0] == "Failed" and found[1] in _KILLED and self._was_touched(known)
        if found != natural and not touched:
            return f"it is {found}, expected {natural}, cancel requested: {known.cancel}"
        if wrong := self._wrong_history(known, job):
            return wrong
        path = f"/api/v1/jobs/{known.job_id}/result"
        if bundle.kind == "array":
            path += "?children=1"
        elif found[0] != "Completed":
            path = f"/download_partial/{known.job_id}"
        status, content = self._ask("GET", path)
        if status == 410:
            return "gone"
        if status != 200:
            return f"GET {path}: {status} {content[:300]!r}"
        if touched:
            return ""
        try:
            return bundle.complaint(content)
        except (KeyError, IndexError, zipfile.BadZipFile) as problem:
            return f"the result cannot be read: {problem!r}"

    def _was_touched(self, known: Known) -> bool:
        """Whether the driver killed a process of it, or another ended what it depends on."""
        if known.first and known.job_id not in self._model.touched:
            return bool(self._job(known.first)[1].get("status") != "Completed")
        return not self._model.touched.isdisjoint(self._family(known))

    def _wrong_history(self, known: Known, job: dict[str, Any]) -> str:
        status, page = self._job(known.job_id, "/events?limit=1000")
        if status == 404:
            return "gone"
        before: JobState | None = None
        ends = 0
        for event in page["items"]:
            if event["before"] is None and before is not None:
                continue
            now = JobState(event["status"])
            was = JobState(event["before"]) if event["before"] else None
            if was != before or (before is not None and now not in states.NEXT[before]):
                return "its history is no path"
            ends += now in states.ENDED and now != "Cleaned"
            before = now
        if before == JobState.CLEANED:
            return "gone"
        if before != job["status"]:
            return f"its history ends with {before}"
        if not 1 <= ends <= known.runs:
            return f"it ended {ends} times, of at most {known.runs}"
        return ""

    def _afterwards(self, known: Known, job: dict[str, Any]) -> None:
        chance = self._random.random()
        path = f"/api/v1/jobs/{known.job_id}"
        if job["status"] in ("Failed", "Cancelled") and chance < 0.2 and known.runs == 1:
            known.runs += 1
            # 409: a first try was done, but its answer was lost; or its files are gone
            self._ask("POST", f"{path}/retry", 200, 409)
            known.ended, known.cancel_after = "", time.monotonic() + 30
            self._model.count("retried by hand")
        elif chance > 0.93:
            known.deleted_at = time.monotonic()
            known.ended = "lost"  # if a restore comes now, which server deleted it is not known
            status, _ = self._ask("DELETE", path, 204, 404, 409)
            known.ended = job["status"]
            if status == 409:
                known.deleted_at = None
                return
            self._model.count("deleted")
            if self._job(known.job_id)[0] != 404:
                raise Wrong(f"{known.name} was deleted, and is there")

    def _after_a_restore(self) -> None:
        """What was there at the backup is there, what came after it is not."""
        if self._model.generation == self._generation:
            return
        self._generation = self._model.generation
        for known in self._model.of_user(self.name):
            if known.checked == self._generation or known.ended == "lost":
                continue
            expected = self._model.must_be_there(known)
            status, job = self._job(known.job_id)
            known.checked = self._generation
            if status == 200 and expected is not False:
                self._revive(known, job)
                continue
            known.ended = "lost"
            if expected is not None and expected != (status == 200):
                word = "lost" if expected else "there, though it came after the backup"
                self._model.report(f"{known.name} is {word}: {job}")
            elif expected is False:
                self._model.count("lost by a restore, as they came after the backup")

    def _revive(self, known: Known, job: dict[str, Any]) -> None:
        known.deleted_at = None
        backup = self._model.restored_from
        assert backup is not None
        before = known.ended and known.ended_at < backup.begun_at
        if before and job["ended"]:
            if job["status"] not in (known.ended, "Cleaned") and known.runs == 1:
                self._model.report(f"{known.name} was {known.ended} before the backup: {job}")
            return
        if before and known.runs == 1:
            self._model.report(f"{known.name} had ended before the backup, and is open: {job}")
        known.ended, known.ended_at = "", _moment(job) if job["ended"] else 0.0
        known.cancel_after = time.monotonic() + (8 if known.bundle.kind == "hangs" else 240)
        self._model.count("followed again after a restore")


def _moment(job: dict[str, Any]) -> float:
    """Its end, by this process's clock: both run on one machine."""
    ago = datetime.now(UTC) - datetime.fromisoformat(job["ended_at"])
    return time.monotonic() - max(0.0, ago.total_seconds())


_LISTEN = b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
_HEAD = (
    b"POST /upload?user_id=nuisance&service=example HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 500000\r\n\r\n"
    b'--b\r\nContent-Disposition: form-data; name="f"; filename="run.sh"\r\n\r\n'
)


class Nuisance(threading.Thread):
    """One of them, again and again; nothing of it is a job, and nothing may be left of it."""

    def __init__(self, url: str, model: Model, seed: int) -> None:
        super().__init__(daemon=True)
        parts = urlsplit(url)
        self._address = parts.hostname, parts.port
        self._model, self._random = model, Random(seed)
        self.stop = threading.Event()

    def run(self) -> None:
        while not self.stop.wait(self._random.uniform(0.2, 2)):
            kind, said, drip, times = self._random.choice(self._kinds())
            with suppress(OSError), socket.create_connection(self._address, 30) as line:
                self._speak(line, said, drip, times)
            self._model.count(f"client that {kind}")

    def _kinds(self) -> list[tuple[str, bytes, bytes, int]]:
        """What it is called, what it says, what it adds each second, and how often."""
        number, ids = self._random.randrange, list(self._model.jobs)
        job_id = self._random.choice(ids[-50:]) if ids else 1
        return [
            ("breaks off", _HEAD + b"x" * number(100_000), b"", 0),
            ("trickles", _HEAD, b"x" * 10, 40),  # longer than a server is patient with
            ("reads little", b"GET /download/%d HTTP/1.1\r\nHost: l\r\n\r\n" % job_id, b"", 1),
            ("listens", _LISTEN, b"", number(1, 20)),
            ("babbles", self._random.randbytes(300), b"", 1),
        ]

    def _speak(self, line: socket.socket, said: bytes, drip: bytes, times: int) -> None:
        line.sendall(said)
        line.settimeout(1)
        for _ in range(times):
            if self.stop.is_set():
                return
            line.sendall(drip)
            with suppress(TimeoutError):
                if not line.recv(100) or drip:
                    return
