"""Settings that are read again while the server runs: over HTTP, by the SDK and the command line;
what changes, what waits for a restart, and what is refused.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from unittest.mock import Mock

import pytest
import pytest_asyncio
import structlog

from ferryman import Client, Conflict
from server.domain.choose import Candidate
from server.settings import load
from server.settings.tables import ServerSettings
from server.settings.users import UserTable
from shared.units.rates import parse_rate
from tests.kit.command_line import ferryman
from tests.kit.each import each
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.raw_archives import FORM, file_part, form_of
from tests.kit.server_http import ServerClient, driving
from tests.kit.store import new
from tests.kit.uploads import FIELDS
from tests.kit.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
TOKEN, OTHER = "the-first-random-text", "the-second-random-text"
ROUTE = "/api/v1/settings/reload"
OWN = f'[server]\ntokens = ["{TOKEN}"]\n'


class World:
    """A server with a file."""

    def __init__(self, caller: ServerClient, file: Path) -> None:
        self.caller, self.file, self.context = caller, file, caller.server.context

    @property
    def settings(self) -> ServerSettings:
        return self.caller.server.reload.settings

    async def ask(self, method: str, path: str, token: str) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {token}"}
        url = f"{self.caller.url}{path}"
        async with self.caller.session.request(method, url, headers=headers) as answer:
            return answer.status, await answer.json()

    async def reload(self, text: str | None = None, token: str = TOKEN) -> tuple[int, Any]:
        if text is not None:
            self.file.write_text(text)
        return await self.ask("POST", ROUTE, token)

    async def status_of(self, token: str) -> int:
        return (await self.ask("GET", "/api/v1/whoami", token))[0]


@asynccontextmanager
async def serving(
    folder: Path, first: str = OWN, client: FakeOrchestrator | None = None
) -> AsyncIterator[World]:
    """One that keeps its agent, of the variables that it was started with, unless the file has
    some.
    """
    file = folder / "ferryman.toml"

    def read() -> ServerSettings:
        flags = {"server": {"data_dir": folder / "data", "getter_interval": 0.02}}
        found, agents = load.read(file, flags, {}), caller.server.reload.settings.agents
        named = "[agents." in file.read_text()
        return found if named else found.model_copy(update={"agents": agents})

    async with driving(folder, client or FakeOrchestrator(), extra=first, read=read) as caller:
        yield World(caller, file)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def started(module_folder: Path) -> AsyncIterator[World]:
    async with serving(module_folder) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def world(started: World) -> AsyncIterator[World]:
    """It is as at its start before each test."""
    yield started
    started.file.write_text(f"{OWN}[services.my_service]\n")
    await started.caller.server.reload.run_once()


WAITS: Final = {
    "host": '"::1"',
    "port": "1",
    "auth": '"token"',
    "max_files": "9",
    "stored_per_user": "77",
    "sender_interval": '"3s"',
    "log_level": '"error"',
}
"""Some keys of ``[server]`` -> what they are changed to."""


async def test_it_says_each_time_what_has_changed_and_what_waits_and_is_audited(world):
    before = world.settings.server
    status, answer = await world.reload(token="x" * 20)
    assert (status, answer["code"]) == (401, "not_allowed")
    waits = "".join(f"{key} = {value}\n" for key, value in WAITS.items())
    # A flag says where the folder is.
    text = f'[server]\ntokens = ["{TOKEN}", "{OTHER}"]\n{waits}data_dir = "/x"\n[services.new]\n'
    status, done = await world.reload(text)
    assert status == 200
    assert {one["key"]: (one["old"], one["new"]) for one in done["changed"]} == {
        "server.tokens": ("(secret)", "(secret)"),
        "services.my_service": ("taken out", None),
        "services.new": (None, "added"),
    }
    assert {one["key"] for one in done["waiting"]} == {f"server.{key}" for key in WAITS}
    for key in WAITS:
        assert getattr(world.settings.server, key) == getattr(before, key)
    assert not [token for token in (TOKEN, OTHER) if token in json.dumps(done)]
    status, again = await world.reload()
    assert (again["changed"], again["waiting"]) == ([], done["waiting"])
    async with Client(world.caller.url, token=TOKEN) as client:
        found = [one async for one in client.audit(action="settings/reload")]
    assert {one.action for one in found} == {f"POST {ROUTE}"}
    assert [one.status for one in found[:3]] == [200, 200, 401]
    world.file.write_text(f"{OWN}[services.my_service]\n")
    answers = await asyncio.gather(*(world.reload() for _ in range(4)))
    assert sorted(len(done["changed"]) for _, done in answers) == [0, 0, 0, 3], "one by one"


async def test_who_came_with_a_token_that_was_taken_out_is_refused_from_then_on(world, monkeypatch):
    """Uploads under way and browsers that logged in, too."""
    assert await world.status_of(OTHER) == 401
    await world.reload(f'[server]\ntokens = ["{TOKEN}", "{OTHER}"]\n[services.my_service]\n')
    sessions, limits = world.context.sessions, world.context.upload_limits
    cookie = await sessions.log_in(world.context.token_holder(OTHER, "peer"), "peer")
    assert sessions.principal_of(cookie, "peer") is not None
    begun = Mock(side_effect=limits.count)
    monkeypatch.setattr(limits, "count", begun)
    removed, body = asyncio.Event(), form_of(*FIELDS, file_part("run.sh", b"echo\n"))

    async def content() -> AsyncIterator[bytes]:
        yield body[:-9]
        await removed.wait()
        yield body[-9:]

    async def upload(token: str) -> int:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": FORM}
        url = f"{world.caller.url}/upload"
        async with world.caller.session.post(url, data=content(), headers=headers) as answer:
            return int(answer.status)

    uploads = asyncio.gather(upload(TOKEN), upload(OTHER))
    await until(lambda: begun.call_count == 2)
    await world.reload(f"{OWN}[services.my_service]\n")
    removed.set()
    assert [*await uploads] == [201, 403]
    assert (await world.status_of(TOKEN), await world.status_of(OTHER)) == (200, 401)
    assert sessions.principal_of(cookie, "peer") is None


async def test_the_sdk_and_the_command_line(world):
    world.file.write_text(f"{OWN}port = 7\n[services.my_service]\nmax_runs = 4\n")
    url = ("--url", world.caller.url, "--token", TOKEN)
    code, out, err = await ferryman("config", "reload", *url)
    assert (code, err) == (0, "")
    assert "services.my_service.max_runs: 10 -> 4\n" in out
    assert "(restart to apply)" in out
    assert json.loads((await ferryman("config", "reload", "--json", *url))[1])["changed"] == []
    world.file.write_text(OWN.replace("tokens", "tokenz"))
    code, out, err = await ferryman("config", "reload", *url)
    assert (code, out, "did you mean tokens?" in err) == (1, "", True)
    async with Client(world.caller.url, token=TOKEN) as client:
        with pytest.raises(Conflict, match="did you mean tokens"):
            await client.reload_settings()
        world.file.write_text(f"{OWN}[services.my_service]\nmax_runs = 5\n")
        (one,) = (await client.reload_settings()).changed
    assert (one.key, one.old, one.new) == ("services.my_service.max_runs", "4", "5")


@each(
    "text, words",
    [
        ("[server\n", "not valid TOML"),
        (f"{OWN}max_filez = 3\n", "did you mean max_files?"),
        (f"{OWN}max_files = 0\n", "server.max_files: Input should be greater than 0"),
        ("[server]\n", "without the last token nobody would need one"),
        ("[server]\ntokens = { file = '/nowhere' }\n", "server.tokens: file /nowhere"),
        (f"{OWN}tls_cert = '/nowhere'\n", "tls_cert /nowhere: No such file"),
        (f"{OWN}[services.a]\nretry_on = ['x']\n", "'x' is neither an exit code"),
        (None, "no such file"),
    ],
)
async def test_wrong_settings_change_nothing(world, text, words):
    before = world.settings
    if text is None:
        world.file.unlink()
    with structlog.testing.capture_logs() as lines:
        status, answer = await world.reload(text)
    assert (status, answer["code"]) == (409, "settings_not_reloaded")
    assert words in answer["detail"]
    assert words in next(one["why"] for one in lines if one["event"] == "settings.not_reloaded")
    assert TOKEN not in answer["detail"]
    assert world.settings is before
    assert await world.status_of(TOKEN) == 200


async def test_the_content_of_a_file_takes_effect(world, module_folder):
    secret, known = module_folder / "secret", world.context.token_holder
    for key, own, more in (
        ("tokens", "[server]\n", f"{TOKEN}\n"),
        ("metrics_tokens", OWN, ""),
    ):
        secret.write_text(more or "a-third-random-text")
        text = f'{own}{key} = {{ file = "{secret}" }}\n[services.my_service]\n'
        assert (await world.reload(text))[0] == 200
        assert not known(OTHER, "peer").authenticated
        secret.write_text(f"{more}{OTHER}\n")
        (changed,) = (await world.reload())[1]["changed"]
        assert (changed["key"], changed["new"]) == (f"server.{key}", "(secret)")
        assert known(OTHER, "peer").authenticated, key
        secret.write_text("\n")
        assert "there is no token in it" in (await world.reload())[1]["detail"]
        secret.unlink()
        assert "No such file" in (await world.reload())[1]["detail"]
    changed = None
    for value in ("first", "second"):
        secret.write_text(f"{value}\n")
        text = f"{OWN}[services.my_service.env]\nKEY = {{ file = '{secret}' }}\n"
        changed = (await world.reload(text))[1]["changed"]
    assert [one["key"] for one in changed] == ["services.my_service.env.KEY"]
    assert world.context.services["my_service"].env == {"KEY": "second"}


OF_USER: Final[dict[str, tuple[str, str, Any]]] = {
    "rate_limit": ('"9/s"', "rate", parse_rate("9/s")),
    "upload_per_user_per_day": ("77", "uploaded", 77),
    "stored_per_user": ("77", "stored", 77),
    "uploads_per_user": ("3", "uploads", 3),
    "runs_per_user": ("3", "runs_by_user", 3),
    "queued_per_user": ("3", "queued_by_user", 3),
    "services": ("{my_service = {runs_per_user = 3}}", "runs_by_user", 3),
}
"""Key of a table of users -> what it is changed to, where that is seen, and as what."""


async def test_every_key_of_a_user_takes_effect_and_holds_for_the_next_claim(world):
    assert OF_USER.keys() == UserTable.model_fields.keys() - {"members"}
    context = world.context
    for key, (value, where, expected) in OF_USER.items():
        table = f'[users.lab]\nmembers = ["ann", "b*"]\n{key} = {value}\n'
        await world.reload(f"{OWN}[services.my_service]\n{table}")
        by_user = getattr(context.services["my_service"], where, None)
        for user in ("ann", "bob"):
            found = getattr(context.allowances.of(user), where, None)
            assert (by_user.get(user) if by_user is not None else found) == expected, key
    await world.reload(f"{OWN}[services.my_service]\n[services.s]\n[users.ann]\nruns_per_user = 1")
    for _ in range(3):
        await context.jobs.insert(new("ann"), "queued")
    claimed = await context.jobs.claim_fairly(context.services["s"], [Candidate("node", 4)], 10, 20)
    assert len(claimed) == 1


async def test_a_server_asks_for_a_token_once_there_is_one_and_hides_passwords_of_agents(tmp_path):
    first = "[server]\nmax_files = 9\n"
    async with serving(tmp_path, first) as world:
        assert world.context.token_needed() is False
        assert (await world.reload(OWN))[0] == 200
        assert world.context.token_needed() is True
        assert (await world.status_of(TOKEN), await world.status_of(OTHER)) == (200, 401)
        assert (await world.reload(first))[1]["code"] == "settings_not_reloaded"
        await world.reload(f"{OWN}[agents.a]\nurl = 'http://127.0.0.1:1'\n")
        other = "url = 'http://me:secret@127.0.0.1:2'\nprefetch = 2\n"
        _, done = await world.reload(f"{OWN}[agents.b]\n{other}")
        assert {one["key"]: (one["old"], one["new"]) for one in done["changed"]} == {
            "agents.a": ("taken out (http://127.0.0.1:1)", None),
            "agents.b": (None, "added (http://***@127.0.0.1:2)"),
        }
        assert world.settings.agents["b"].prefetch == 2


async def test_jobs_of_a_service_that_was_renamed_are_said_everywhere_and_moved_by_one_command(
    tmp_path,
):
    client = FakeOrchestrator(then="Running")
    async with serving(tmp_path, "", client) as world:
        caller, to = world.caller, ("--url", world.caller.url)
        runs = await caller.upload()
        await caller.job(runs, until="Running")
        waits, later = [await caller.upload(not_before="in 1h") for _ in range(2)]
        world.file.write_text("[services.renamed]\n")
        with structlog.testing.capture_logs() as lines:
            code, out, err = await ferryman("config", "reload", *to)
        assert (code, "services.my_service: taken out" in out) == (0, True)
        said = "my_service is in no settings any more: 2 jobs wait, 1 in work"
        assert f"service {said}" in err
        for how in ("services move my_service NAME", "cancel --all --service my_service"):
            assert f"ferryman {how} --url {caller.url}" in err
        (line,) = [one for one in lines if one["event"] == "service.gone"]
        assert (line["service"], line["queued"], line["in_work"]) == ("my_service", 2, 1)
        (_, gone) = (await caller.api("GET", "/services"))["items"]
        shown = (gone["name"], gone["source"], gone["in_work"], gone["counts"]["Queued"])
        assert shown == ("my_service", "none", 1, 2)
        assert "\tgone\t" in (await ferryman("services", "list", *to))[1]
        found = (await caller.api("GET", "/status"))["troubles"]
        (trouble,) = [one for one in found if one["kind"] == "service_gone"]
        assert (trouble["message"], trouble["about"]) == (f"service {said}", "my_service")
        page = (await caller.get("/services"))[2].decode()
        assert "until an operator moves them" in page
        assert "/services/my_service" not in page
        code, out, _ = await ferryman("doctor", *to)
        assert code == 1
        assert "it is in no settings any more: 2 jobs wait, 1 in work" in out

        code, _, err = await ferryman("services", "move", "my_service", "nowhere", *to)
        assert (code, "'nowhere' is none that takes jobs" in err) == (65, True), err
        code, _, err = await ferryman("services", "move", "my_service", "renamed", *to)
        assert (code, err) == (0, "3 jobs of service my_service moved to renamed\n")
        assert len((await caller.api("GET", "/services"))["items"]) == 1
        for job_id in (runs, waits, later):
            assert (await caller.api("GET", f"/jobs/{job_id}"))["service"] == "renamed"
        events = (await caller.api("GET", f"/jobs/{waits}/events"))["items"]
        moved = {"by": "local", "service": "renamed", "service_before": "my_service"}
        assert (events[-1]["event"], events[-1]["fields"]) == ("job.moved", moved)
        client.payloads[1].status = "Completed"
        assert (await caller.job(runs))["status"] == "Completed"
        code, _, _ = await ferryman("cancel", "--all", "--service", "renamed", "--yes", *to)
        assert [(await caller.job(one))["status"] for one in (waits, later)] == ["Cancelled"] * 2
