"""A job-orchestrator client: plain parts, polling, no keys."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import io
import json
import secrets
import zipfile
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Final

import aiohttp
import structlog

from server.agents import answers
from server.agents.agent import Agent, Body, Inputs
from server.agents.answers import MAX_RESULT
from server.domain import outcome
from server.domain.agents import AgentError, NoSuchPayload, RefusedByAgent, Unreachable
from server.domain.jobs import FileKind, Job
from server.domain.service import Service
from server.storage.scratch import ScratchFile
from shared.files.bundles.reader import BundleReader
from shared.files.opened import to_end
from shared.wire import PayloadDoc, PayloadState, ResultInfo

log = structlog.get_logger()
_CHUNK: Final = 1 << 20
_FIELDS: Final = frozenset({"id", "status", "loc", "pid", "killed", "input"})
_NO_PAYLOAD_STATES: Final = frozenset({"Queued", "Processing", "Submitted", "Locked", "Unknown"})
"""States in its answers that say nothing about the payload."""
_ERRORS_OF_PROXIES: Final = frozenset(
    {HTTPStatus.BAD_GATEWAY, HTTPStatus.GATEWAY_TIMEOUT, HTTPStatus.REQUEST_TIMEOUT}
)


class OrchestratorClient(Agent):
    """A job-orchestrator client, at the addresses that its variables give. ``/{id}`` is appended
    to download and terminate.
    """

    supports_events = False

    def __init__(
        self, name: str, upload: str, download: str, terminate: str, *args: Any, **more: Any
    ) -> None:
        super().__init__(name, upload.rstrip("/").rsplit("/", 1)[0], *args, **more)
        self._upload = upload
        self._retrieve, self._terminate = download.rstrip("/"), terminate.rstrip("/")
        self._partial = f"{self._retrieve.rsplit('/', 1)[0]}/retrieve_partial"

    async def submit(self, job: Job, service: Service, inputs: Inputs | None = None) -> PayloadDoc:
        assert inputs is None, "it takes none"
        assert job.bundle is not None, "only Cleaned jobs have none"
        contents = self._sessions.contents
        async with contents.local_copy(FileKind.BUNDLE, job.bundle) as bundle:
            form = await to_end(functools.partial(_form, bundle, secrets.token_hex(16)))
            body = await self._post(self._upload, form)
        try:
            payload = _payload(body)
        except ValueError as problem:
            raise Unreachable(self._say(problem), sent=True) from problem
        if payload is None:
            raise Unreachable(self._say("a payload without a known state"), sent=True)
        return payload

    async def poll(self, payload_id: int) -> tuple[PayloadDoc | None, bytes | None]:
        """The payload (None: in no state that says anything), and its result if that is small.
        Raises AgentError.
        """
        url = f"{self._retrieve}/{payload_id}"
        async with self._call("GET", url, transfer=True) as answer:
            if answer.content_type == "application/zip":
                completed = PayloadDoc(id=payload_id, status=PayloadState.COMPLETED)
                return await self._announced(completed, answer)
            payload = _payload(await answers.read(answer), payload_id)
        if payload is None or payload.status not in outcome.ENDED:
            return payload, None
        return await self.left(payload)

    async def left(self, payload: PayloadDoc) -> tuple[PayloadDoc, bytes | None]:
        """The payload, which has ended, with what it left."""
        try:
            url = f"{self._partial}/{payload.id}"
            async with self._call("GET", url, transfer=True) as answer:
                return await self._announced(payload, answer)
        except AgentError as problem:
            log.info("payload.left_nothing", agent=self.name, error=str(problem))
            return payload, None

    async def _announced(
        self, payload: PayloadDoc, answer: aiohttp.ClientResponse
    ) -> tuple[PayloadDoc, bytes | None]:
        """The payload with its result, which is in the answer; it comes along if it is small."""
        size, sha256, content = answer.content_length or 0, "", None
        if size <= MAX_RESULT:
            with suppress(ValueError):  # it is longer, and has to be fetched
                content = await answers.read(answer, MAX_RESULT)
        if content is not None:
            size, sha256 = len(content), hashlib.sha256(content).hexdigest()
            with self._counted("result") as moved:
                self._check_whole(io.BytesIO(content), size)
                moved(size)
        return payload.model_copy(update={"result": ResultInfo(size=size, sha256=sha256)}), content

    async def fetch(self, payload_id: int, to: ScratchFile, most: int | None = None) -> ResultInfo:
        url = f"{self._retrieve}/{payload_id}"
        async with self._call("GET", url, transfer=True) as answer:
            if answer.content_type == "application/zip":
                with self._counted("result") as moved:
                    fetched = await answers.store(answer, to, self._clock)
                    moved(fetched.size)
            else:  # it has not completed: what it left is packed again, maybe to another size
                fetched = await self._download(f"{self._partial}/{payload_id}", to)
        await asyncio.to_thread(self._check_whole, to.path, fetched.size)
        return fetched

    def _check_whole(self, file: Path | BinaryIO, size: int) -> None:
        """It says no digest: a result that was cut off on the way, or never packed, is none."""
        if not zipfile.is_zipfile(file):
            why = f"{size} bytes that are not a whole ZIP"
            raise Unreachable(self._say(why), sent=True)

    async def partial(self, job: Job, to: ScratchFile) -> ResultInfo:
        assert job.payload_id is not None, "set by the move to Submitted"
        most = outcome.most_result(job.limits)
        return await self._download(f"{self._partial}/{job.payload_id}", to, most)

    async def kill(self, payload_id: int, key: str | None = None) -> PayloadDoc | None:
        try:
            async with self._call("POST", f"{self._terminate}/{payload_id}") as answer:
                body = await answers.read(answer)
                return _payload(body, payload_id) if body else None
        except RefusedByAgent as refusal:
            if refusal.code != "404":
                raise
        # A 404 without a body is also what a proxy says: the payload's own address knows better.
        async with self._call("GET", f"{self._retrieve}/{payload_id}"):
            raise RefusedByAgent("404", "it knows the payload and cannot stop it", final=False)

    async def acknowledge(self, payload_id: int, key: str | None = None) -> None:
        """It knows no acknowledgement: it deletes by age."""

    async def _refusal(self, answer: aiohttp.ClientResponse) -> AgentError:
        if answer.status < HTTPStatus.BAD_REQUEST:
            raise ValueError(f"a redirect ({answer.status})")
        body = await answers.read(answer, 64 << 10)
        if answer.status == HTTPStatus.NOT_FOUND and _is_empty(body):
            return NoSuchPayload(f"agent {self.name} does not know it")
        if answer.status in _ERRORS_OF_PROXIES:
            raise ValueError(f"an answer of a proxy ({answer.status})")
        text = body.decode(errors="replace").strip()[:200]
        message = f"HTTP {answer.status}" + (f": {text}" if text and "<" not in text else "")
        wait_s = answers.retry_after(answer)
        full = (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.INSUFFICIENT_STORAGE)
        if wait_s is None and (
            answer.status < HTTPStatus.INTERNAL_SERVER_ERROR or answer.status in full
        ):
            wait_s = 30.0  # else it went wrong there, and may have begun
        final = answer.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        return RefusedByAgent(str(answer.status), message, final=final, retry_after_s=wait_s)


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except ValueError as problem:
        raise ValueError("an answer that is not a job-orchestrator client's") from problem
    if not isinstance(document, dict) or not document.keys() >= _FIELDS:
        raise ValueError("an answer that is not a job-orchestrator client's")
    return document


def _payload(body: bytes, payload_id: int | None = None) -> PayloadDoc | None:
    """The payload; None: its state says nothing about it. Raises ValueError: not a payload, or
    another one.
    """
    document = _document(body)
    if payload_id is not None and document["id"] != payload_id:
        raise ValueError(f"payload {str(document['id'])[:20]} in place of {payload_id}")
    if document["status"] in _NO_PAYLOAD_STATES:
        return None
    return PayloadDoc.model_validate({name: document[name] for name in _FIELDS})


def _is_empty(body: bytes) -> bool:
    """Whether this is how a job-orchestrator client says that it knows no such payload."""
    try:
        document = _document(body)
    except ValueError:
        return False
    return bool(document["id"] == 0 and document["status"] == "Unknown")


def _form(bundle: Path, boundary: str) -> Body:
    """A part for each file, its relative path as the part's name. Blocks: for a thread."""
    with BundleReader(bundle) as reader:
        heads = [
            (entry, _head(boundary, entry.path, PurePosixPath(entry.path).name))
            for entry in reader.entries
        ]
    tail = f"--{boundary}--\r\n".encode()
    size = sum(len(head) + entry.size + 2 for entry, head in heads) + len(tail)

    def source() -> Iterator[bytes]:
        with BundleReader(bundle) as reader:
            for entry, head in heads:
                yield head
                yield from reader.content(entry.path, _CHUNK)
                yield b"\r\n"
        yield tail

    return Body(f"multipart/form-data; boundary={boundary}", size, _from_thread(source()))


async def _from_thread(source: Iterator[bytes]) -> AsyncIterator[bytes]:
    while (chunk := await to_end(functools.partial(next, source, None))) is not None:
        yield chunk


def _head(boundary: str, name: str, filename: str) -> bytes:
    named = f'name="{_quoted(name)}"; filename="{_quoted(filename)}"'
    kind = "Content-Type: application/octet-stream"
    head = f"--{boundary}\r\nContent-Disposition: form-data; {named}\r\n{kind}\r\n\r\n"
    return head.encode()


def _quoted(text: str) -> str:
    """As browsers do it."""
    return text.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
