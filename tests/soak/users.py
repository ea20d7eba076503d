"""A user of the soak: uploads, follows, cancels, retries, deletes, and checks what comes."""

from __future__ import annotations

import json
import threading
import time
import traceback
import zipfile
from datetime import UTC, datetime
from random import Random
from typing import Any

from server.domain import states
from shared.wire import JobState
from tests.soak import kinds
from tests.soak.asking import Wrong, ask, document, pause
from tests.soak.model import Known, Model
from tests.soak.processes import of_jobs

SERVICES = ("example", "second")
_CANCELLED = 0.04
_KILLED = ("exit_code", "agent_error", "sandbox_error", "child_failed", "dependency_failed")
"""Reasons that a job may have of which the driver killed a process."""


class User(threading.Thread):
    """One after the other, until it is stopped; then until everything has ended.

    Args:
        most: uploads that it has under way at once.
    """

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
            if self._model.generation == self._generation:
                self._follow(known)
        pause(self._random.uniform(0.1, 0.7))

    def _upload(self) -> None:
        bundle = kinds.draw(self._random)
        fields = {"user_id": self.name, "service": self._random.choice(SERVICES), **bundle.fields}
        last = self._model.jobs.get(self._last)
        chained = last is not None and last.bundle.kind == "quick" and self._random.random() < 0.3
        if chained and bundle.kind == "quick":
            assert last is not None
            bundle.files["run.sh"] += f"test -s inputs/{last.job_id}/out.txt\n".encode()
            fields["inputs_from"] = str(last.job_id)
        body, key = _form(fields, bundle.files), f"{bundle.token}"
        headers = {
            "Content-Type": "multipart/form-data; boundary=b-o-u-n-d",
            "Idempotency-Key": key,
        }
        begun, generation = time.monotonic(), self._model.generation
        status, answer = ask(self._url, "POST", "/upload", body, headers)
        if generation != self._model.generation:
            # Whichever of the two servers answered: the new one is asked again.
            begun, generation = time.monotonic(), self._model.generation
            status, answer = ask(self._url, "POST", "/upload", body, headers)
            if generation != self._model.generation:
                return
        if status == 400 and "inputs_from" in fields:
            self._model.count("refused: the job that it depends on is lost or gone")
            return
        if status != 201:
            raise Wrong(f"upload: {status} {answer[:500]!r}")
        job_id = int(json.loads(answer)["id"])
        now = time.monotonic()
        known = Known(job_id, bundle, self.name, begun, now, generation, checked=generation)
        if "inputs_from" in fields:
            known.first = int(fields["inputs_from"])
        if bundle.kind == "hangs" or self._random.random() < _CANCELLED:
            known.cancel_after = now + self._random.uniform(0.1, 12)
        self._model.answered(known)
        self._last = job_id
        if self._random.random() < 0.05:
            again, answer = ask(self._url, "POST", "/upload", body, headers)
            same = again == 201 and int(json.loads(answer)["id"]) == job_id
            if not same and generation == self._model.generation:
                raise Wrong(f"the repeat of the upload of {known.name}: {again} {answer[:300]!r}")
            self._model.count("uploads repeated under their key")
        bundle.files.clear()  # they would fill the memory within hours

    def _follow(self, known: Known) -> None:
        generation = self._model.generation
        status, job = document(self._url, f"/api/v1/jobs/{known.job_id}", 404)
        if generation != self._model.generation:
            return
        if status == 404:
            known.ended = "lost"
            raise Wrong(f"{known.name} is lost: {job}")
        if job["status"] == "Cleaned":
            self._model.count("expired before their result was fetched")
            known.ended, known.ended_at = "Cleaned", time.monotonic()
        elif job["ended"]:
            self._check(known, job, generation)
        elif known.cancel_after is not None and time.monotonic() > known.cancel_after:
            self._cancel(known)
        elif job["status"] == "Running" and self._random.random() < 0.02:
            partial, _ = ask(self._url, "GET", f"/download_partial/{known.job_id}")
            if partial not in (200, 410, 404):
                raise Wrong(f"{known.name}, running: download_partial answers {partial}")
            self._model.count("partial results of running jobs")

    def _cancel(self, known: Known) -> None:
        known.cancel = True
        generation = self._model.generation
        status, answer = ask(self._url, "POST", f"/terminate/{known.job_id}")
        if generation != self._model.generation:
            return
        if status not in (200, 202, 409):
            raise Wrong(f"cancel of {known.name}: {status} {answer[:300]!r}")
        self._model.count(f"cancelled: answered {status}")
        known.cancel_after = time.monotonic() + 20 if status == 202 else None
        if status == 200:
            self._nothing_runs(known)

    def _nothing_runs(self, known: Known) -> None:
        ids = {known.job_id}
        if known.bundle.kind in ("array", "fan-out"):
            _, page = document(self._url, f"/api/v1/jobs?parent={known.job_id}&limit=50", 404)
            ids |= {child["id"] for child in page.get("items", [])}
        restored_s = time.monotonic() - self._model.restored_at
        patience = 30.0 if self._model.generation > 1 and restored_s < 60 else 0.0
        end = time.monotonic() + patience
        while living := [one for one in of_jobs(self._mark) if one.job_id in ids]:
            if time.monotonic() >= end:
                raise Wrong(f"{known.name} is cancelled, but runs: {living}")
            pause(0.5)
        self._model.count("cancelled, and no process was left")

    def _check(self, known: Known, job: dict[str, Any], generation: int) -> None:
        """An ended job: state, history and content."""
        found = (job["status"], job["reason"])
        complaint = self._complaint(known, job, found)
        if generation != self._model.generation:
            return
        known.ended, known.ended_at = job["status"], _moment(job["ended_at"])
        if complaint == "gone":
            self._model.count("expired before their result was fetched")
            return
        if complaint:
            history = document(self._url, f"/api/v1/jobs/{known.job_id}/events", 404)[1]
            raise Wrong(f"{known.name}: {complaint}; {job}; {history}")
        self._model.count(f"ended: {found[0]}" + (f", {found[1]}" if found[1] else ""))
        self._model.count("attempts", job["attempt"])
        self._afterwards(known, job)

    def _complaint(self, known: Known, job: dict[str, Any], found: tuple[str, str | None]) -> str:
        kind = known.bundle.kind
        allowed = [kinds.natural(kind)]
        if found[0] == "Cancelled" and known.cancel:
            self._nothing_runs(known)
            return self._wrong_history(known, job)
        touched = found[0] == "Failed" and found[1] in _KILLED and self._was_touched(known)
        if found not in allowed and not touched:
            return f"it is {found}, expected {allowed}, cancel requested: {known.cancel}"
        if wrong := self._wrong_history(known, job):
            return wrong
        path = f"/download_partial/{known.job_id}"
        if found[0] == "Completed":
            path = f"/api/v1/jobs/{known.job_id}/result"
        if kind == "array":
            path = f"/api/v1/jobs/{known.job_id}/result?children=1"
        status, content = ask(self._url, "GET", path)
        if status == 410:
            return "gone"
        if status != 200:
            return f"GET {path}: {status} {content[:300]!r}"
        if touched:
            return ""
        bundle = known.bundle
        try:
            return kinds.complaint(kind, bundle.token, bundle.data, content)
        except (KeyError, IndexError, zipfile.BadZipFile) as problem:
            return f"the result cannot be read: {problem!r}"

    def _was_touched(self, known: Known) -> bool:
        """Whether the driver killed a process of it, or another ended what it depends on."""
        if known.job_id in self._model.touched:
            return True
        if known.first:
            path = f"/api/v1/jobs/{known.first}"
            return bool(document(self._url, path, 404)[1].get("status") != "Completed")
        if known.bundle.kind not in ("array", "fan-out"):
            return False
        _, page = document(self._url, f"/api/v1/jobs?parent={known.job_id}&limit=50", 404)
        return any(child["id"] in self._model.touched for child in page.get("items", []))

    def _wrong_history(self, known: Known, job: dict[str, Any]) -> str:
        path = f"/api/v1/jobs/{known.job_id}/events?limit=1000"
        status, page = document(self._url, path, 404)
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
        generation = self._model.generation
        path = f"/api/v1/jobs/{known.job_id}"
        if job["status"] in ("Failed", "Cancelled") and chance < 0.2 and known.runs == 1:
            known.runs += 1
            status, answer = ask(self._url, "POST", f"{path}/retry")
            if generation == self._model.generation and status in (200, 409):
                # 409: a first try was done, but its answer was lost; or its files are gone
                known.ended, known.cancel_after = "", time.monotonic() + 30
                self._model.count("retried by hand")
            elif generation == self._model.generation:
                raise Wrong(f"retry of {known.name}: {status} {answer[:300]!r}")
        elif chance > 0.93:
            known.deleted_at = time.monotonic()
            status, answer = ask(self._url, "DELETE", path)
            if generation != self._model.generation:
                known.ended = "lost"  # which of the two servers deleted it is not known
                return
            if status not in (204, 404, 409):
                raise Wrong(f"delete of {known.name}: {status} {answer[:300]!r}")
            if status == 409:
                known.deleted_at = None
                return
            self._model.count("deleted")
            if document(self._url, path, 404)[0] != 404:
                raise Wrong(f"{known.name} was deleted, and is there")

    def _after_a_restore(self) -> None:
        """What was there at the backup is there, what came after it is not."""
        if self._model.generation == self._generation:
            return
        self._generation = generation = self._model.generation
        for known in self._model.of_user(self.name):
            if known.checked == generation or known.ended == "lost":
                continue
            expected = self._model.must_be_there(known)
            status, job = document(self._url, f"/api/v1/jobs/{known.job_id}", 404)
            if generation != self._model.generation:
                return
            known.checked = generation
            if expected is not None and expected != (status == 200):
                word = "lost" if expected else "there, though it came after the backup"
                known.ended = "lost"
                self._model.report(f"{known.name} is {word}: {job}")
            elif status == 404:
                if expected is False:
                    self._model.count("lost by a restore, as they came after the backup")
                known.ended = "lost"
            else:
                self._revive(known, job)

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
        known.ended = ""
        known.cancel_after = time.monotonic() + (8 if known.bundle.kind == "hangs" else 240)
        self._model.count("followed again after a restore")


def _moment(text: str) -> float:
    """A time of a document, by this process's clock: both run on one machine."""
    ago = datetime.now(UTC) - datetime.fromisoformat(text)
    return time.monotonic() - max(0.0, ago.total_seconds())


def _form(fields: dict[str, str], files: kinds.Files) -> bytes:
    body = b"".join(
        f'--b-o-u-n-d\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields.items()
    )
    for name, content in files.items():
        head = f'Content-Disposition: form-data; name="f"; filename="{name}"'
        body += f"--b-o-u-n-d\r\n{head}\r\n\r\n".encode() + content + b"\r\n"
    return body + b"--b-o-u-n-d--\r\n"
