"""A whole agent in this process, reached over HTTP, on a fake sandbox and simulated time."""

import contextlib
import hashlib
import io
import itertools
import json
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import aiohttp
import pytest
import pytest_asyncio

from client_agent import app
from client_agent.run.runner import EndRequests
from client_agent.settings.agent import AgentSection
from shared.ids import Start
from shared.wire import START, Limits, Order
from tests.kit.clock import SimClock
from tests.kit.fake_sandbox import FakeProcess, FakeSandbox
from tests.kit.raw_archives import FORM, file_part, form_of, unzipped, write_bundle
from tests.kit.waiting import eventually, until
from tests.kit.warm import open_files, tasks_now, until_nothing

SERVER = "server-one"
LIMITS = Limits(log=1 << 16, results=1 << 20, disk=1 << 20)
_NUMBERS = itertools.count(1)
HELLO: Mapping[str, bytes] = {"run.sh": b"echo hello\n"}


Sent: TypeAlias = tuple[dict[str, Any], bytes]
"""An order, and the bytes of its bundle."""


def in_lines(*sent: Sent, server: str = SERVER, **head: Any) -> bytes:
    """The body of ``POST /payloads``."""
    orders = [order for order, _ in sent]
    sizes = [len(data) - ((order.get("inputs") or {}).get("size") or 0) for order, data in sent]
    line = {"orders": orders, "sizes": sizes, "server": server} | head
    return json.dumps(line).encode() + b"\n" + b"".join(data for _, data in sent)


class Stream:
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._content, self._seen = response.content, 0

    async def next(self) -> dict[str, Any]:
        event: dict[str, Any] = json.loads(await self._content.readline())
        assert event["seq"] >= self._seen, "numbers go up"
        self._seen = event["seq"]
        event["result"] = await self._content.readexactly(event["result_bytes"])
        return event

    async def until(self, key: str | int, *states: str) -> dict[str, Any]:
        """The first line about this payload that names one of the states; none: that says that it
        has ended.
        """
        while True:
            event = await self.next()
            payload = event["payload"]
            if not payload or key not in (payload["key"], payload["id"]):
                continue
            if payload["status"] in states if states else payload["ended_at"]:
                return event

    async def ends(self, count: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while len(found) < count:
            event = await self.next()
            if event["payload"] and event["payload"]["ended_at"]:
                found.append(event)
        return found


def digest(result: bytes) -> dict[str, Any]:
    return {"size": len(result), "sha256": hashlib.sha256(result).hexdigest()}


class AgentClient:
    """Speaks to one agent, for one server and its ``start``; ``data`` is the agent's folder."""

    def __init__(
        self,
        url: str,
        http: aiohttp.ClientSession,
        sandbox: FakeSandbox,
        clock: SimClock,
        tmp: Path,
        server: str = SERVER,
        database: sqlite3.Connection | None = None,
    ) -> None:
        self.url, self.server, self.data = url, server, tmp / "agent"
        self.port = int(url.rpartition(":")[2])
        self.http, self.sandbox, self.clock, self._tmp = http, sandbox, clock, tmp
        self.database = database
        self._kept = set[str]()
        self.start: Start | None = None

    def bundle(self, files: Mapping[str, bytes] = HELLO) -> tuple[bytes, str]:
        return bundle_of(self._tmp, files)

    def order(self, key: str, data: bytes, digest: str, **changed: Any) -> Order:
        return order_of(key, data, digest, **{"server": self.server} | changed)

    async def submit(
        self, key: str = "1.1", files: Mapping[str, bytes] = HELLO, **changed: Any
    ) -> tuple[int, dict[str, Any]]:
        return await self.post_order(*self.sent(key, files, **changed))

    async def post_order(self, order: dict[str, Any], data: bytes) -> tuple[int, dict[str, Any]]:
        """Status, and the payload, or why it is refused."""
        body = io.BytesIO(in_lines((order, data), server=order["server"] or ""))
        status, answer = await self.call("POST", "/payloads", data=body)
        if status != 200:
            return status, answer
        (one,) = answer["answers"]
        return (200, one["payload"]) if one["payload"] else (one["status"], one)

    def sent(self, key: str, files: Mapping[str, bytes] = HELLO, **changed: Any) -> Sent:
        data, digest = self.bundle(files)
        return self.order(key, data, digest, **changed).model_dump(mode="json"), data

    async def post(self, *sent: Sent, **head: Any) -> dict[str, Any]:
        body = in_lines(*sent, server=self.server, **head)
        status, answer = await self.call("POST", "/payloads", data=body)
        assert status == 200, answer
        return dict(answer)

    async def started(
        self, key: str = "1.1", files: Mapping[str, bytes] = HELLO, **changed: Any
    ) -> tuple[int, FakeProcess]:
        status, payload = await self.submit(key, files, **changed)
        assert status == 200, payload
        return payload["id"], await self.sandbox.process(key)

    async def settle(self, key: str = "1.1", **query: str) -> tuple[int, Any]:
        return await self.call("POST", f"/keys/{self.server}/{key}/settle", params=query)

    async def doc(self, payload_id: int) -> dict[str, Any]:
        """The document of one that has not completed."""
        return dict((await self.call("GET", f"/retrieve/{payload_id}"))[1])

    async def forget(self, payload_id: int) -> None:
        assert (await self.post(acknowledge=[{"id": payload_id}]))["refused"] == {}

    def names(self, *folders: str) -> list[str]:
        """Of the files in these folders of the agent, without bundles of former tests. A result
        that is a row has the name that its file would have.
        """
        found = [path.name for one in folders for path in (self.data / one).iterdir()]
        if "results" in folders and self.database is not None:
            rows = self.database.execute("SELECT payload_id FROM results").fetchall()
            found += [f"{payload_id}.zip" for (payload_id,) in rows]
        return sorted(name for name in found if name not in self._kept)

    async def fresh_server(self) -> None:
        """End and acknowledge all that the agent holds, and go on as another server."""
        violations = self.sandbox.violations
        self.sandbox.reset()
        after: int | None = 0
        while after is not None:
            _, listed = await self.call("GET", f"/payloads?after={after}")
            for one in listed["payloads"]:
                self.start = Start(1 << 40, "a") if one["server"] else None  # above every test's
                await self.call("POST", f"/kill/{one['id']}")
                self.server = one["server"] or self.server
                await self.forget(one["id"])
            after = listed["next"]
        self.server, self.start = f"server-{next(_NUMBERS)}", None
        assert violations == []
        # Those that were sent to be kept are, for a while.
        self._kept |= set(self.names("bundles"))

    async def until_holds(self, *folders: str, names: Sequence[str] = ()) -> None:
        """Wait until these folders hold these and nothing else: what is needed no more is removed
        in a thread, after the end was reported, and a probe writes a file there now and then.
        """
        await until(
            lambda: self.names(*folders) == sorted(names), said=lambda: self.names(*folders)
        )

    @contextlib.asynccontextmanager
    async def stream(self, **query: Any) -> AsyncIterator[Stream]:
        async with self.http.get("/events", params=query) as response:
            assert response.status == 200
            yield Stream(response)

    async def submit_plain(self, files: Mapping[str, bytes]) -> tuple[int, dict[str, Any]]:
        """As a job-orchestrator server does: the part's name is the path."""
        parts = (file_part(path.rpartition("/")[2], data, path) for path, data in files.items())
        body, headers = io.BytesIO(form_of(*parts)), {"Content-Type": FORM}
        return await self.call("POST", "/submit", data=body, headers=headers)

    async def call(self, method: str, path: str, **more: Any) -> tuple[int, Any]:
        if self.start is not None:
            more["headers"] = {START: str(self.start)} | more.get("headers", {})
        async with self.http.request(method, path, **more) as response:
            text = await response.text()
            return response.status, json.loads(text) if text else None

    async def zip(self, path: str) -> dict[str, bytes]:
        async with self.http.get(path) as response:
            assert response.status == 200, await response.text()
            assert response.content_type == "application/zip", await response.text()
            return unzipped(await response.read())

    async def ended(self, payload_id: int) -> dict[str, Any]:
        async with self.stream() as stream:
            return dict((await stream.until(payload_id))["payload"])

    async def completed(self, key: str = "1.1", files: Mapping[str, bytes] = HELLO) -> int:
        payload_id, process = await self.started(key, files)
        process.finish()
        await self.ended(payload_id)
        return payload_id


@contextlib.asynccontextmanager
async def calling(
    home: Path, clock: SimClock | None = None, asked: EndRequests | None = None, **settings: Any
) -> AsyncIterator[AgentClient]:
    """A started agent, which is ended as ``asked`` says, and a caller of it."""
    clock = clock or SimClock()
    data_dir = home / "agent"
    sandbox = FakeSandbox(clock, data_dir)
    given: dict[str, Any] = {"data_dir": data_dir, "port": 0, "name": "node-1", "slots": 2}
    section = AgentSection.model_validate(given | {"min_free": 0, "grace": 5.0} | settings)
    tokens = section.all_tokens()
    headers = {"Authorization": f"Bearer {tokens[0]}"} if tokens else {}
    async with app.running(section, clock, sandbox, asked) as agent:
        base = f"http://127.0.0.1:{agent.port}"
        # One connection: SQLite keeps the descriptor of a second one in the same process open.
        with contextlib.closing(sqlite3.connect(data_dir / "agent.sqlite")) as database:
            database.execute("SELECT 1 FROM results").fetchall()  # opens its files
            async with aiohttp.ClientSession(base, headers=headers) as http:
                yield AgentClient(base, http, sandbox, clock, home, database=database)


def held(agent: AgentClient) -> Counter[str]:
    counts = {name: len(list((agent.data / name).iterdir())) for name in ("staging", "results")}
    return Counter(counts | {"files": open_files(), "running": len(agent.sandbox.live)})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def warm_agent(
    request: pytest.FixtureRequest, module_folder: Path
) -> AsyncIterator[AgentClient]:
    """The module's agent, after a first payload: what is opened at first use is open. A module may
    hold ``AGENT``, its settings.
    """
    settings: dict[str, Any] = getattr(request.module, "AGENT", {})
    async with calling(module_folder, **settings) as found:
        await found.forget(await found.completed())
        tasks = tasks_now()
        yield found

        async def left() -> int:
            await found.clock.advance(2)  # a stream notices at its next line that nobody reads it
            return tasks_now() - tasks

        await eventually(left, lambda count: count <= 0)


@pytest_asyncio.fixture(loop_scope="module")
async def agent(warm_agent: AgentClient) -> AsyncIterator[AgentClient]:
    """The module's agent, with a server of this test. Afterwards what it left is killed and
    acknowledged; then no half upload, open file, running attempt or result may be there more.
    """
    await warm_agent.fresh_server()
    before = held(warm_agent)
    yield warm_agent
    await warm_agent.fresh_server()
    await until_nothing(lambda: held(warm_agent) - before)


def numbered(prefix: str = "f") -> Callable[[], str]:
    """File names for ``Folders``, the same in every run."""
    numbers = itertools.count(1)
    return lambda: f"{prefix}{next(numbers)}"


def bundle_of(folder: Path, files: Mapping[str, bytes]) -> tuple[bytes, str]:
    path = folder / "bundle"
    sealed = write_bundle(path, files)
    data = path.read_bytes()
    path.unlink()
    return data, sealed.digest


def order_of(key: str, data: bytes, digest: str, **changed: Any) -> Order:
    given: dict[str, Any] = {
        "server": SERVER,
        "key": key,
        "service": "example",
        "user_id": "ann",
        "timeout_s": 60.0,
        "limits": LIMITS,
        "bundle_digest": digest,
        "bundle_size": len(data),
    }
    return Order(**(given | changed))
