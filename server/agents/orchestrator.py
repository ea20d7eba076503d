"""A job-orchestrator client: plain parts, polling, no keys."""

from __future__ import annotations

import asyncio
import functools
import json
import secrets
import zipfile
from collections.abc import AsyncIterator, Iterator
from http import HTTPStatus
from pathlib import Path, PurePosixPath
from typing import Any, Final

import aiohttp

from server.agents import answers
from server.agents.agent import Agent, Body, Inputs
from server.agents.answers import Fetched
from server.domain import outcome
from server.domain.agents import AgentError, NoSuchPayload, RefusedByAgent, Unreachable
from server.domain.jobs import FileKind, Job
from server.domain.service import Service
from server.storage.scratch import ScratchFile
from shared.files.bundles.reader import BundleReader
from shared.files.opened import to_end
from shared.wire import PayloadDoc, PayloadState

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

    async def poll(
        self, payload_id: int, to: ScratchFile
    ) -> tuple[PayloadDoc | None, Fetched | None]:
        url = f"{self._retrieve}/{payload_id}"
        async with self._call("GET", url, transfer=True) as answer:
            if answer.content_type == "application/zip":
                fetched = await answers.store(answer, to, self._clock)
                # It says no digest: a result that was cut off on the way, or never packed, is none.
                if not await asyncio.to_thread(zipfile.is_zipfile, to.path):
                    self.count("result", "failed", fetched.size)
                    raise ValueError(f"{fetched.size} bytes that are not a whole ZIP")
                self.count("result", "ok", fetched.size)
                return PayloadDoc(id=payload_id, status=PayloadState.COMPLETED), fetched
            payload = _payload(await answers.read(answer), payload_id)
            return payload, None

    async def fetch(self, payload_id: int, to: ScratchFile, most: int | None = None) -> Fetched:
        return await self._download(f"{self._partial}/{payload_id}", to, most)

    async def partial(self, job: Job, to: ScratchFile) -> Fetched:
        assert job.payload_id is not None, "set by the move to Submitted"
        return await self.fetch(job.payload_id, to, outcome.most_result(job.limits))

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
