"""A server and an agent that all tests of a module share, joined by real HTTP.

Starting a server costs fifty times a request. Each test gets a :class:`Place`: a user and a service
of its own, so that no test sees another's jobs. After each test its jobs that have not ended
are cancelled, and then no half upload, open file or running attempt may be there more than before;
after the last one no task.

A module that uses it says ``pytestmark = pytest.mark.asyncio(loop_scope="module")``. It may hold
``SERVER``, the TOML of its server, and ``PRINCIPALS``, token -> :class:`Principal`.
"""

import asyncio
import itertools
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from client_agent import app
from client_agent.settings.agent import AgentSection
from server.app import Server
from server.domain.jobs import FileKind
from shared.principals import Principal
from tests.kit.clock import JumpingClock
from tests.kit.fake_sandbox import FakeProcess, FakeSandbox
from tests.kit.memory_folder import module_folder
from tests.kit.server_http import ServerClient, served_by

__all__ = ["Place", "Warm", "module_folder", "place", "started", "together", "warm"]

PATIENCE_S = 20.0
"""For what was left: less than fixtures may take to clean up."""
SLOTS = 4
Script = Callable[[FakeProcess], None]


def hello(process: FakeProcess) -> None:
    """What run.sh does where a test says nothing."""
    process.log(stdout=b"hello\n")
    process.finish()


@dataclass
class Warm:
    """Server and agent.

    Attributes:
        clock: both programs' clock; :meth:`JumpingClock.forward` lets time pass.
        scripts: service -> what its jobs do as their gate opens; None: the test ends them.
        data: the server's folder.
        operator: a token that may make services; "": none is needed.
    """

    url: str
    server: Server
    clock: JumpingClock
    sandbox: FakeSandbox
    data: Path
    agent_data: Path
    operator: str = ""
    scripts: dict[str, Script | None] = field(default_factory=dict)
    _numbers: Any = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self.sandbox.script = self._script

    def new(self, word: str) -> str:
        return f"{word}-{next(self._numbers)}"

    def session(self, token: str = "") -> aiohttp.ClientSession:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return aiohttp.ClientSession(headers=headers)

    def held(self) -> Counter[str]:
        """What is open or under way now in both. Connections between them come and go."""
        staging = [self.data / "staging", self.agent_data / "staging"]
        staged = sum(len(files) for top in staging for _, _, files in os.walk(top))
        return Counter(files=open_files(), staged=staged, running=len(self.sandbox.live))

    def _script(self, process: FakeProcess) -> None:
        script = self.scripts.get(process.launch.env["FERRYMAN_SERVICE"], hello)
        if script is not None:
            script(process)


class Place(ServerClient):
    """One test's part of a warm server: a user, and a service with settings of its own."""

    def __init__(self, warm: Warm, session: aiohttp.ClientSession) -> None:
        super().__init__(warm.url, session, warm.server)
        self.warm, self.user, self.service = warm, warm.new("user"), warm.new("service")
        self.users = {self.user}

    def does(self, script: Script | None) -> None:
        """What its jobs do as they start; None: :meth:`process` ends them."""
        self.warm.scripts[self.service] = script

    async def upload(
        self, files: dict[str, bytes] | None = None, service: str = "", **fields: str
    ) -> int:
        return await super().upload(files, service or self.service, **fields)

    async def posted(self, *how: Any, **given: Any) -> tuple[int, Any]:
        given = {"user_id": self.user, "service": self.service} | given
        status, said = await super().posted(*how, **given)
        if status == 201:
            self.users.add(given["user_id"])
        return status, said

    def stored(self) -> set[str]:
        """Bundles and results of all that are files."""
        tops = [self.warm.data / kind for kind in FileKind]
        return {name for top in tops for _, _, names in os.walk(top) for name in names}

    async def process(self, job_id: int, attempt: int = 1) -> FakeProcess:
        """The running attempt: what run.sh does is said to it."""
        return await self.warm.sandbox.process(f"{job_id}.{attempt}")

    async def configure(self, **settings: Any) -> None:
        await self.api("PUT", f"/services/{self.service}", json=settings)

    async def end(self) -> None:
        for user in self.users:
            for job in (await self.api("GET", "/jobs", user=user, limit="200"))["items"]:
                if not job["ended"]:
                    await self.ask("POST", f"/api/v1/jobs/{job['id']}/cancel")
                    with suppress(KeyError):  # it was to be deleted as it ends
                        await self.job(job["id"])


@asynccontextmanager
async def started(
    folder: Path,
    toml: str = "",
    principals: Mapping[str, Principal] | None = None,
    operator: str = "",
) -> AsyncIterator[Warm]:
    """Both, on free ports."""
    clock = JumpingClock()
    agent_data, data = folder / "agent", folder / "server"
    sandbox = FakeSandbox(clock, agent_data)
    given: dict[str, Any] = {"data_dir": agent_data, "port": 0, "slots": SLOTS, "min_free": 0}
    async with AsyncExitStack() as stack:
        section = AgentSection.model_validate(given)
        agent = await stack.enter_async_context(app.running(section, clock, sandbox))
        toml += f'\n[agents.local]\nurl = "http://127.0.0.1:{agent.port}"\n'
        how: dict[str, Any] = {"data_dir": data, "machine": clock, "principals": principals}
        caller = await served_by(stack, folder, toml, getter_interval=0.5, **how)
        yield Warm(caller.url, caller.server, clock, sandbox, data, agent_data, operator)


@asynccontextmanager
async def together(folder: Path) -> AsyncIterator[Place]:
    """Both, for one test, which says itself what each attempt does."""
    async with started(folder) as found, found.session() as session:
        found.sandbox.script = None
        place = Place(found, session)
        place.service = "example"
        yield place


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def warm(request: pytest.FixtureRequest, module_folder: Path) -> AsyncIterator[Warm]:
    """The module's server and agent, after a first job: what is opened at first use is open."""
    module = request.module
    principals = getattr(module, "PRINCIPALS", None)
    operator = getattr(module, "OPERATOR", "")
    async with started(module_folder, getattr(module, "SERVER", ""), principals, operator) as found:
        async with found.session(operator) as session:
            first = Place(found, session)
            await first.configure()
            await asyncio.gather(*[first.job(await first.upload()) for _ in range(SLOTS)])
        tasks = tasks_now()
        yield found
        await until_nothing(lambda: max(0, tasks_now() - tasks))


@pytest_asyncio.fixture(loop_scope="module")
async def place(warm: Warm) -> AsyncIterator[Place]:
    before = warm.held()
    async with warm.session(warm.operator) as session:
        found = Place(warm, session)
        await found.configure()
        yield found
        await found.end()
    warm.scripts.pop(found.service, None)
    await until_nothing(lambda: warm.held() - before)


def open_files() -> int:
    found = 0
    for path in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # it was that of the folder
            found += not str(path.readlink()).startswith("socket:")
    return found


def tasks_now() -> int:
    """How many there are besides those of connections, which come and go."""
    names = (getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks())
    return sum(1 for name in names if not name.startswith(("RequestHandler.", "Connection.")))


async def until_nothing(left: Callable[[], object]) -> None:
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while found := left():
        assert asyncio.get_running_loop().time() < deadline, f"left behind: {found}"
        await asyncio.sleep(0.002)  # noqa: TID251  # no event says that a file is closed
