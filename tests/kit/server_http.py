"""The real server in this process, with a job-orchestrator client for its jobs."""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import aiohttp

from server.app import Server, compose
from server.settings import load
from server.settings.tables import ServerSettings
from server.store.data_folder import lock_folder
from shared.clock import Clock
from shared.http.connections import connection_limits
from shared.http.listener import Listener
from shared.http.protocol import Deadlines
from shared.http.sockets import listen, url_of
from shared.principals import Principal
from tests.kit.described import Described
from tests.kit.fake_orchestrator import FakeOrchestrator

RUN = b"echo hello\n"


class ServerClient:
    def __init__(self, url: str, session: aiohttp.ClientSession, server: Server) -> None:
        self.url, self.session, self.server = url, session, server

    async def upload(
        self, files: dict[str, bytes] | None = None, service: str = "my_service", **fields: str
    ) -> int:
        status, said = await self.posted(files, None, "/upload", service=service, **fields)
        assert status == 201, said
        return int(said["id"])

    async def posted(
        self,
        files: dict[str, bytes] | None = None,
        headers: dict[str, str] | None = None,
        path: str = "/upload",
        **fields: str,
    ) -> tuple[int, Any]:
        """Status and answer of an upload, which may be refused."""
        form = aiohttp.FormData(quote_fields=False)
        for name, text in ({"user_id": "7"} | fields).items():
            form.add_field(name, text)
        for name, content in (files or {"run.sh": RUN}).items():
            form.add_field("file", content, filename=name)
        return await self.ask("POST", path, data=form, headers=headers)

    async def job(self, job_id: int, *, until: str = "") -> dict[str, Any]:
        """The document, once the job has ended (or is in the state ``until``)."""
        found: dict[str, Any]
        seen = ""
        while True:
            query = {"wait": "20", "seen": seen} if seen else {}
            _, found = await self.ask("GET", f"/api/v1/jobs/{job_id}", params=query)
            if found["ended"] or found["status"] == until:
                return found
            seen = found["status"]

    async def states(self, job_id: int) -> list[str]:
        """Each state that the job has been in, once there is one."""
        events: list[dict[str, Any]] = []
        after = 0
        while not events:
            page = await self.api("GET", f"/jobs/{job_id}/events", after=str(after), wait="20")
            found = page["items"]
            events += [one for one in found if one["before"] or one["event"] == "job.queued"]
            after = found[-1]["seq"] if found else after
        return [event["status"] for event in events]

    async def ask(self, method: str, path: str, **more: Any) -> tuple[int, Any]:
        """Status, and the JSON or the text of the answer."""
        async with self.session.request(method, f"{self.url}{path}", **more) as answer:
            content = await answer.text()
            return answer.status, json.loads(content) if "json" in answer.content_type else content

    async def api(self, method: str, path: str, json: Any = None, **query: str) -> Any:
        """The document of a route below ``/api/v1``, which must say yes."""
        status, found = await self.ask(method, f"/api/v1{path}", json=json, params=query)
        assert status < 300, (status, found)
        return found

    async def terminate(self, job_id: int) -> tuple[int, Any]:
        return await self.ask("POST", f"/terminate/{job_id}")

    async def get(self, path: str) -> tuple[int, str, bytes]:
        async with self.session.get(f"{self.url}{path}") as answer:
            return answer.status, answer.content_type, await answer.read()


@asynccontextmanager
async def driving(
    folder: Path, client: FakeOrchestrator, *, extra: str = "", gone: bool = False, **how: Any
) -> AsyncIterator[ServerClient]:
    """A Ferryman server, which knows the client by job-orchestrator's own variables; ``extra`` is
    TOML of its settings, and ``gone``: the client does not listen any more.
    """
    async with AsyncExitStack() as stack:
        if gone:
            async with client.listening() as url:
                pass
        else:
            url = await stack.enter_async_context(client.listening())
        environ = {
            "SERVICE_MY_SERVICE_UPLOAD_URL": f"{url}/submit",
            "SERVICE_MY_SERVICE_DOWNLOAD_URL": f"{url}/retrieve",
            "SERVICE_MY_SERVICE_TERMINATE_URL": f"{url}/kill",
            "SERVICE_MY_SERVICE_RUNS_PER_USER": "2",
            "SERVICE_MY_SERVICE_MAX_RUNS": "3",
        }
        yield await served_by(stack, folder, extra, environ, **how)


async def served_by(
    stack: AsyncExitStack,
    folder: Path,
    toml: str,
    environ: Mapping[str, str] | None = None,
    *,
    machine: Clock | None = None,
    principals: Mapping[str, Principal] | None = None,
    read: Callable[[], ServerSettings] | None = None,
    new_database: bool = False,
    **server: Any,
) -> ServerClient:
    """The server of a folder with these settings, until the stack closes.

    Args:
        principals: token -> whose it is, instead of the settings' tokens.
        read: reads the settings again at a reload; None: they stay.
        server: its own settings.
    """
    file = folder / "ferryman.toml" if toml else None
    if file is not None:
        file.write_text(toml)
    flags = {"server": {"data_dir": folder / "data", "getter_interval": 0.02} | server}
    found = load.read(file, flags, environ or {})
    return await hosted(found, stack, machine, principals, read, new_database=new_database)


async def hosted(
    found: ServerSettings,
    stack: AsyncExitStack,
    machine: Clock | None = None,
    principals: Mapping[str, Principal] | None = None,
    read: Callable[[], ServerSettings] | None = None,
    *,
    new_database: bool = False,
) -> ServerClient:
    fits = connection_limits(1024)
    lock_folder(found.server, stack)
    composed = await compose(
        found, read or (lambda: found), stack, fits, machine, new_database=new_database
    )
    if principals is not None:
        known = composed.context.access.known
        known.use(principals)
        stack.enter_context(mock.patch.object(known, "use_settings"))  # of a reload
    stack.callback(Described(composed.application).check)
    sock = listen("127.0.0.1", 0)
    tls = found.server.tls()
    listener = Listener(composed.application, sock, fits, Deadlines(), 1, tls)
    await listener.start()
    stack.push_async_callback(composed.stop)
    stack.push_async_callback(listener.close)
    stack.callback(composed.context.core.wakeups.close)
    composed.start()
    connector = aiohttp.TCPConnector(ssl=tls is None)
    session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
    url = url_of("127.0.0.1", sock.getsockname()[1], tls=tls is not None)
    return ServerClient(url, session, composed)
