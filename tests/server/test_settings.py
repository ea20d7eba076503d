"""What changes while the server runs: settings that are read again, and services."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from unittest.mock import Mock

import pytest
import pytest_asyncio
import structlog

from ferryman import Client
from server.settings import load
from server.settings.tables import ServerSettings
from server.store import services as rows
from shared.principals import Principal, Role
from tests.kit.command_line import ferryman
from tests.kit.each import each
from tests.kit.fake_agent import FakeAgent
from tests.kit.fake_agent import serving as serving_agents
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.raw_archives import FORM, file_part, form_of
from tests.kit.server_http import ServerClient, driving
from tests.kit.uploads import FIELDS
from tests.kit.waiting import until
from tests.kit.warm import Place

pytestmark = pytest.mark.asyncio(loop_scope="module")
TOKEN, OTHER = "the-first-random-text", "the-second-random-text"
ROUTE = "/api/v1/settings/reload"
OWN = f'[server]\ntokens = ["{TOKEN}"]\n'


class World:
    def __init__(self, caller: ServerClient, file: Path) -> None:
        self.caller, self.file, self.context = caller, file, caller.server.context

    @property
    def settings(self) -> ServerSettings:
        return self.caller.server.context.core.settings.tables

    async def ask(self, method: str, path: str, token: str) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {token}"}
        return await self.caller.ask(method, path, headers=headers)

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
    """It keeps the agent of the variables that it was started with, unless the file has some."""
    file = folder / "ferryman.toml"

    def read() -> ServerSettings:
        flags = {"server": {"data_dir": folder / "data", "getter_interval": 0.02}}
        found = load.read(file, flags, {})
        kept = caller.server.context.core.settings.tables.agents
        named = "[agents." in file.read_text()
        return found if named else found.model_copy(update={"agents": kept})

    async with driving(folder, client or FakeOrchestrator(), extra=first, read=read) as caller:
        yield World(caller, file)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def started(module_folder: Path) -> AsyncIterator[World]:
    async with serving(module_folder) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def world(started: World) -> World:
    """Its settings are the same before each test, whichever comes first."""
    started.file.write_text(f"{OWN}[services.my_service]\n")
    await started.caller.server.context.reload()
    return started


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
    sessions, limits = world.context.access.sessions, world.context.pools.uploads
    cookie = await sessions.log_in(world.context.access.known.principal_of(OTHER, "peer"), "peer")
    assert sessions.principal_of(cookie, "peer") is not None
    begun = Mock(side_effect=limits.count)
    monkeypatch.setattr(limits, "count", begun)
    removed, body = asyncio.Event(), form_of(*FIELDS, file_part("run.sh", b"echo\n"))

    async def content() -> AsyncIterator[bytes]:
        yield body[:-9]
        await removed.wait()
        yield body[-9:]

    async def upload(token: str) -> Any:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": FORM}
        return (await world.caller.ask("POST", "/upload", data=content(), headers=headers))[0]

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
    assert (code, err, "(restart to apply)" in out) == (0, "", True)
    assert "services.my_service.max_runs: 10 -> 4\n" in out
    assert json.loads((await ferryman("config", "reload", "--json", *url))[1])["changed"] == []
    world.file.write_text(OWN.replace("tokens", "tokenz"))
    code, out, err = await ferryman("config", "reload", *url)
    assert (code, out, "did you mean tokens?" in err) == (1, "", True)
    async with Client(world.caller.url, token=TOKEN) as client:
        world.file.write_text(f"{OWN}[services.my_service]\nmax_runs = 5\n")
        (one,) = (await client.reload_settings()).changed
    assert (one.key, one.old, one.new) == ("services.my_service.max_runs", "4", "5")


@each(
    "text, words",
    [
        ("[server\n", "not valid TOML"),
        (f"{OWN}max_filez = 3\n", "did you mean max_files?"),
        ("[server]\n", "without the last token nobody would need one"),
        (f"{OWN}tls_cert = '/nowhere'\n", "tls_cert /nowhere: No such file"),
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
    secret, known = module_folder / "secret", world.context.access.known.principal_of
    for key, own, more in (("tokens", "[server]\n", f"{TOKEN}\n"), ("metrics_tokens", OWN, "")):
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
    assert world.context.core.services["my_service"].env == {"KEY": "second"}


async def test_a_table_of_users_takes_effect(world):
    """What it means for a claim: tests/store/test_claims.py."""
    core = world.context.core
    table = '[users.lab]\nmembers = ["ann", "b*"]\nstored_per_user = 77\nruns_per_user = 3\n'
    await world.reload(f"{OWN}[services.my_service]\n{table}")
    for user in ("ann", "bob"):
        assert core.settings.allowances.of(user).stored == 77
        assert core.services["my_service"].runs_by_user.get(user) == 3


async def test_a_server_asks_for_a_token_once_there_is_one_and_hides_passwords_of_agents(tmp_path):
    first = "[server]\nmax_files = 9\n"
    async with serving(tmp_path, first) as world:
        assert await world.status_of("") == 200
        assert (await world.reload(OWN))[0] == 200
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
        metrics = (await caller.get("/metrics"))[2].decode()
        assert 'ferryman_jobs{service="other",state="Queued"} 2.0' in metrics
        assert 'ferryman_oldest_waiting_seconds{service="other"}' in metrics
        assert 'ferryman_jobs{service="my_service"' not in metrics
        page = (await caller.get("/services"))[2]
        assert b"until an operator moves them" in page
        assert b"/services/my_service" not in page
        code, out, _ = await ferryman("doctor", *to)
        assert (code, "my_service: it is in no settings any more" in out) == (1, True), out

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


# -- services

SECRET = "hunter2-and-more"
OPERATOR, USER, PORTAL = "an-operator's-token", "a-user's-token-too", "a-portal's-token-too"
PRINCIPALS = {
    OPERATOR: Principal("admin", Role.OPERATOR),
    USER: Principal("ann-laptop", Role.USER, "7"),
    PORTAL: Principal("portal", Role.PORTAL),
}
SERVER = "[services.of_file]\n"


async def ask(
    place: ServerClient, method: str, path: str = "", body: Any = None, token: str = OPERATOR
) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {token}"}
    return await place.ask(method, f"/api/v1/services{path}", json=body, headers=headers)


async def launched(place: Place) -> tuple[dict[str, str], Any]:
    """The environment of a job of the service, and how it ended."""
    job_id = await place.upload()
    process = await place.process(job_id)
    process.finish()
    return dict(process.launch.env), await place.job(job_id)


async def test_a_service_made_at_run_time_runs_jobs_with_its_variables_and_limits(place, caplog):
    """Only operators see what is in it, and nothing of it is logged."""
    name = place.warm.new("gpu")
    limits = {"timeout": "90s", "limits": {"memory": "1GiB"}}
    env, before = {"A": "1", "KEY": SECRET}, place.server.context.core.services.values()
    with structlog.testing.capture_logs() as lines, caplog.at_level(logging.DEBUG):
        status, made = await ask(place, "PUT", f"/{name}", limits | {"env": env})
        assert status == 201, made
        for token in (USER, PORTAL):
            status, found = await ask(place, "GET", f"/{name}", token=token)
            assert (status, found["env"], found["settings"]) == (200, None, None)
    assert name not in [one.name for one in before], "who goes through them goes on as it began"
    assert any(line["event"] == "service.changed" for line in lines)
    assert SECRET not in json.dumps(lines, default=repr) + caplog.text
    assert (made["source"], made["timeout_s"], made["limits"]["memory"]) == ("api", 90.0, 1 << 30)
    assert (made["settings"], made["env"]) == (limits, ["A", "KEY"])
    place.service = name
    place.does(None)
    environment, job = await launched(place)
    assert environment.items() >= env.items()
    assert (job["status"], job["timeout_s"]) == ("Completed", 90.0)
    assert SECRET not in json.dumps([job, made, await ask(place, "GET")])
    # A change replaces the settings, and keeps the variables that it does not name.
    status, found = await ask(place, "PUT", f"/{name}", {"max_runs": 3})
    assert (status, found["timeout_s"], found["max_runs"]) == (200, 3_600.0, 3)
    assert (found["env"], found["changed_at"] > made["changed_at"]) == (["A", "KEY"], True)
    assert (await launched(place))[0]["KEY"] == SECRET


OF_ENV = [
    ({"FERRYMAN_JOB_ID": "1"}, "FERRYMAN_JOB_ID is reserved"),
    ({"PATH": "/x"}, "PATH is reserved"),
    ({"SHELLOPTS": "posix"}, "SHELLOPTS is bash's own"),
    ({"1A": "x"}, "cannot be the name of a variable"),
    *[(wrong, "an object of texts") for wrong in ({"A": 1}, {"A": {"file": "/x"}}, [SECRET])],
    ({"A": SECRET * 1_100}, "more than 16 KiB"),
    ({"A": f"{SECRET}\0"}, "A has a NUL"),
    ({f"A{n}": "" for n in range(129)}, "at most 128 are taken"),
]
WRONG = [
    *[({"env": env}, "env", says) for env, says in OF_ENV],
    ({"max_rans": 1}, "max_rans", "no such setting; did you mean max_runs?"),
    ({"timeout": "soon"}, "timeout", "'soon' is not a duration"),
    ({"limits": {"memry": 1}}, "limits.memry", "did you mean memory?"),
    ({"retries": -1}, "retries", "greater than or equal to 0"),
    ([SECRET], None, "a JSON object"),
]


@each("body, part, says", WRONG)
async def test_wrong_settings_are_refused_by_name_and_change_nothing(place, body, part, says):
    status, found = await ask(place, "PUT", "/wrong", body)
    assert (status, found.get("part")) == (400, part), found
    assert says in found["detail"]
    assert SECRET not in json.dumps(found)
    assert (await ask(place, "PUT", "/a.b", {}))[1]["code"] == "invalid_name"
    for text, status in ("{", 400), ('{"a": 1, "a": 2}', 400), (f'"{"x" * 300_000}"', 413):
        assert (await place.ask("PUT", "/api/v1/services/wrong", data=text))[0] == status
    status, found = await ask(place, "GET", "/wrong")
    assert (status, found["code"]) == (404, "service_not_found")


async def test_a_retired_service_takes_no_uploads_and_finishes_what_it_has(place):
    name = f"/{place.service}"
    _, made = await ask(place, "PUT", name, {"max_runs": 1})
    place.does(None)
    running, queued = [await place.upload() for _ in range(2)]
    process = await place.process(running)
    status, found = await ask(place, "DELETE", name)
    assert (status, found["retired"], found["changed_at"] > made["changed_at"]) == (200, True, True)
    with pytest.raises(AssertionError, match="this server has: "):
        await place.upload()
    move = {"action": "move", "service": place.service, "ids": [queued]}
    status, found = await place.ask("POST", "/api/v1/jobs/bulk", json=move)
    assert (status, found["code"]) == (400, "invalid_service")
    process.finish()
    (await place.process(queued)).finish()
    assert (await place.job(queued))["status"] == "Completed"
    for query, listed in (("", False), ("?retired=1", True)):
        items = (await ask(place, "GET", query))[1]["items"]
        assert (place.service in [one["name"] for one in items]) is listed
    assert (await ask(place, "PUT", name, {}))[1]["retired"] is False
    assert (await ask(place, "DELETE", "/none"))[0] == 404


async def test_the_file_wins_and_a_pause_outlives_the_server(module_folder):
    """Over three starts."""
    folder, agent = module_folder / "file", FakeAgent()
    folder.mkdir()

    async with serving_agents(folder, agent) as caller:
        for method in ("PUT", "DELETE"):
            status, found = await ask(caller, method, "/my_service", {})
            assert (status, found["code"]) == (409, "service_in_file")
        assert (await ask(caller, "PUT", "/gpu", {"timeout": "1m"}))[0] == 201
        status, found = await ask(caller, "POST", "/my_service/pause?message=new%20disks")
        assert (status, found["paused"], found["paused_message"]) == (200, True, "new disks")
        job = await caller.upload()
        database = caller.server.context.core.database
        await database.write(rows.put, "newer", {"of_tomorrow": 1}, None, 10)
        assert (await ask(caller, "POST", "/none/pause"))[0] == 404
        status, found = await ask(caller, "POST", "/my_service/pause?message=a%0Ab")
        assert (status, found["code"]) == (400, "invalid_message")
    agent.url = ""
    async with serving_agents(folder, agent, extra="[services.gpu]\ntimeout = '2m'") as caller:
        _, found = await ask(caller, "GET", "/gpu")
        assert (found["source"], found["timeout_s"], found["settings"]) == ("file", 120.0, None)
        _, found = await ask(caller, "GET", "/newer")
        assert found["retired"], "what it cannot read takes no jobs"
        _, found = await ask(caller, "GET", "/my_service")
        assert (found["source"], found["paused"]) == ("file", True)
        assert (found["counts"]["Queued"], found["in_work"]) == (1, 0)
        assert found["oldest_queued_at"].endswith("Z")
        shown = (await caller.job(job, until="Queued"))["queue"]
        paused = ("paused", "service my_service is paused: new disks")
        assert (shown["code"], shown["reason"]) == paused
        status, found = await ask(caller, "POST", "/my_service/resume")
        assert (status, found["paused"], found["paused_message"]) == (200, False, "")
        assert (await caller.job(job))["status"] == "Completed"
    agent.url = ""
    async with serving_agents(folder, agent) as caller:
        _, found = await ask(caller, "GET", "/gpu")
        assert (found["source"], found["timeout_s"]) == ("api", 60.0)
