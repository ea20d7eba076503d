"""Settings that are read again while the server runs: over HTTP, by the SDK and the command line;
what changes, what waits for a restart, and what is refused.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio
import structlog

from ferryman import Client, Conflict, NotAllowed, SyncClient
from server.domain.choose import Candidate
from server.domain.jobs import Bundle, NewJob
from server.reload import Reload
from server.settings import load
from server.settings.tables import ServerSettings
from server.settings.users import UserTable
from shared.units.rates import parse_rate
from shared.wire import Limits
from tests.kit.command_line import ferryman
from tests.kit.each import each
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import ServerClient, driving

pytestmark = pytest.mark.asyncio(loop_scope="module")
TOKEN, OTHER = "the-first-random-text", "the-second-random-text"
ROUTE = "/api/v1/settings/reload"
OWN = f'[server]\ntokens = ["{TOKEN}"]\n'


class World:
    """A server with a file."""

    def __init__(self, caller: ServerClient, file: Path) -> None:
        self.caller, self.file = caller, file

    @property
    def settings(self) -> ServerSettings:
        return self.caller.server.reload.settings

    async def reload(
        self, text: str | None = None, token: str = TOKEN
    ) -> tuple[int, dict[str, Any]]:
        if text is not None:
            self.file.write_text(text)
        headers = {"Authorization": f"Bearer {token}"}
        async with self.caller.session.post(self.caller.url + ROUTE, headers=headers) as answer:
            return answer.status, await answer.json()

    async def status_of(self, token: str) -> int:
        headers = {"Authorization": f"Bearer {token}"}
        url = f"{self.caller.url}/api/v1/whoami"
        async with self.caller.session.get(url, headers=headers) as answer:
            return answer.status


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def started(module_folder: Path) -> AsyncIterator[World]:
    file = module_folder / "ferryman.toml"

    def read() -> ServerSettings:
        # The service is there, as in the variables that the server was started with.
        flags = {"server": {"data_dir": module_folder / "data", "getter_interval": 0.02}}
        found = caller.server.reload.settings.agents
        return load.read(file, flags, {}).model_copy(update={"agents": found})

    async with driving(module_folder, FakeOrchestrator(), extra=OWN, read=read) as caller:
        yield World(caller, file)


@pytest_asyncio.fixture(loop_scope="module")
async def world(started: World) -> AsyncIterator[World]:
    """It is as at its start before each test."""
    yield started
    started.file.write_text(f"{OWN}[services.my_service]\n")
    await started.caller.server.reload.run_once()


async def test_it_says_what_has_changed_and_what_waits(world: World) -> None:
    text = f'[server]\ntokens = ["{TOKEN}", "{OTHER}"]\nmax_files = 9\nport = 1\n[services.new]\n'
    status, done = await world.reload(text)
    assert status == 200
    assert {one["key"]: (one["old"], one["new"]) for one in done["changed"]} == {
        "server.tokens": ("(secret)", "(secret)"),
        "services.my_service": ("taken out", None),
        "services.new": (None, "added"),
    }
    assert [one["key"] for one in done["waiting"]] == ["server.port", "server.max_files"]
    assert TOKEN not in json.dumps(done)
    assert OTHER not in json.dumps(done)
    status, again = await world.reload()
    assert (again["changed"], again["waiting"]) == ([], done["waiting"])


async def test_a_token_that_was_taken_out_is_refused_from_then_on(world: World) -> None:
    assert await world.status_of(OTHER) == 401
    await world.reload(f'[server]\ntokens = ["{OTHER}"]\n')
    assert (await world.status_of(TOKEN), await world.status_of(OTHER)) == (401, 200)


async def test_an_upload_ends_with_a_token_that_was_taken_out_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.reload(f'[server]\ntokens = ["{TOKEN}", "{OTHER}"]\n[services.my_service]\n')
    limits, begun, removed = world.caller.server.context.upload_limits, 0, asyncio.Event()
    both, count = asyncio.Event(), limits.count

    def counts(user: str) -> None:
        nonlocal begun
        count(user)
        begun += 1
        if begun == 2:
            both.set()

    monkeypatch.setattr(limits, "count", counts)
    name = 'Content-Disposition: form-data; name="file"; filename="run.sh"'
    body = f"--x\r\n{name}\r\n\r\necho\r\n--x--\r\n".encode()

    async def content() -> AsyncIterator[bytes]:
        yield body[:-9]
        await removed.wait()
        yield body[-9:]

    async def upload(token: str) -> int:
        url = f"{world.caller.url}/upload?user_id=1&service=my_service"
        headers = {"Authorization": f"Bearer {token}"}
        headers["Content-Type"] = "multipart/form-data; boundary=x"
        async with world.caller.session.post(url, data=content(), headers=headers) as answer:
            return answer.status

    uploads = asyncio.gather(upload(TOKEN), upload(OTHER))
    await both.wait()
    await world.reload(f"{OWN}[services.my_service]\n")
    removed.set()
    assert [*await uploads] == [201, 403]


async def test_a_browser_that_logged_in_with_a_token_is_logged_out_with_it(world: World) -> None:
    context = world.caller.server.context
    principal = context.token_holder(TOKEN, "peer")
    text = await context.sessions.log_in(principal, "peer")
    assert context.sessions.principal_of(text, "peer") == principal
    await world.reload(f'[server]\ntokens = ["{OTHER}"]\n')
    assert context.sessions.principal_of(text, "peer") is None


async def test_it_is_for_operators_and_in_the_audit_trail(world: World) -> None:
    status, answer = await world.reload(token="x" * 20)
    assert (status, answer["code"]) == (401, "not_allowed")
    await world.reload()
    async with Client(world.caller.url, token=TOKEN) as client:
        found = [one async for one in client.audit(action="settings/reload")]
    assert [(one.action, one.status) for one in found[:2]] == [
        (f"POST {ROUTE}", 200),
        (f"POST {ROUTE}", 401),
    ]


async def test_two_reloads_at_once_follow_each_other(world: World) -> None:
    world.file.write_text(f"{OWN}[services.new]\n")
    answers = await asyncio.gather(*(world.reload() for _ in range(4)))
    changed = [[one["key"] for one in done["changed"]] for _, done in answers]
    assert [len(keys) for keys in sorted(changed, key=len)] == [0, 0, 0, 2]


async def test_the_sdk_and_the_command_line(world: World) -> None:
    world.file.write_text(f"{OWN}port = 7\n[services.my_service]\nmax_runs = 4\n")
    url = ("--url", world.caller.url, "--token", TOKEN)
    code, out, err = await ferryman("config", "reload", *url)
    assert (code, err) == (0, "")
    assert "services.my_service.max_runs: 10 -> 4\n" in out
    assert "(restart to apply)" in out
    code, out, err = await ferryman("config", "reload", "--json", *url)
    assert json.loads(out)["changed"] == []
    world.file.write_text(OWN.replace("tokens", "tokenz"))
    code, out, err = await ferryman("config", "reload", *url)
    assert (code, out) == (1, "")
    assert "did you mean tokens?" in err
    with SyncClient(world.caller.url, token=TOKEN) as client:
        with pytest.raises(Conflict, match="did you mean tokens"):
            await asyncio.to_thread(client.reload_settings)
        world.file.write_text(f"{OWN}[services.my_service]\nmax_runs = 5\n")
        done = await asyncio.to_thread(client.reload_settings)
    (one,) = done.changed
    assert (one.key, one.old, one.new) == ("services.my_service.max_runs", "4", "5")
    async with Client(world.caller.url, token="x" * 20) as stranger:
        with pytest.raises(NotAllowed):
            await stranger.reload_settings()


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
async def test_wrong_settings_change_nothing(world: World, text: str | None, words: str) -> None:
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


WAITS: Final = {
    "host": '"::1"',
    "port": "1",
    "auth": '"token"',
    "data_dir": '"/x"',
    "max_files": "9",
    "stored_per_user": "77",
    "sender_interval": '"3s"',
    "log_level": '"error"',
}
"""Some keys of ``[server]`` -> what they are changed to."""


@each("key", WAITS)
async def test_what_waits_for_a_restart_is_said_each_time(world: World, key: str) -> None:
    before = getattr(world.settings.server, key)
    await world.reload(f"{OWN}[services.my_service]\n")
    for _ in range(2):
        text = f"{OWN}{key} = {WAITS[key]}\n[services.my_service]\n"
        status, done = await world.reload(text)
        assert status == 200
        if key != "data_dir":  # a flag says it
            assert [one["key"] for one in done["waiting"]] == [f"server.{key}"]
        assert done["changed"] == []
    assert getattr(world.settings.server, key) == before


@each("key", ["tokens", "metrics_tokens"])
async def test_the_content_of_a_file_takes_effect(
    world: World, module_folder: Path, key: str
) -> None:
    secret = module_folder / "secret"
    own = "" if key == "tokens" else f'tokens = ["{TOKEN}"]\n'
    text = f'[server]\n{own}{key} = {{ file = "{secret}" }}\n[services.my_service]\n'
    secret.write_text(f"{TOKEN}\n" if key == "tokens" else "a-third-random-text")
    assert (await world.reload(text))[0] == 200
    known = world.caller.server.context.token_holder
    assert not known(OTHER, "peer").authenticated
    secret.write_text(f"{TOKEN}\n{OTHER}\n" if key == "tokens" else OTHER)
    _, done = await world.reload()
    assert [(one["key"], one["new"]) for one in done["changed"]] == [(f"server.{key}", "(secret)")]
    assert known(OTHER, "peer").authenticated
    secret.write_text("\n")
    assert "there is no token in it" in (await world.reload())[1]["detail"]
    secret.unlink()
    assert "No such file" in (await world.reload())[1]["detail"]


async def test_the_variables_of_a_service_are_read_again_from_their_file(
    world: World, module_folder: Path
) -> None:
    key = module_folder / "key"
    key.write_text("first\n")
    text = f"{OWN}[services.my_service.env]\nKEY = {{ file = '{key}' }}\n"
    await world.reload(text)
    key.write_text("second\n")
    _, done = await world.reload()
    assert [one["key"] for one in done["changed"]] == ["services.my_service.env.KEY"]
    assert world.caller.server.context.services["my_service"].env == {"KEY": "second"}


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


async def test_every_key_of_a_user_takes_effect(world: World) -> None:
    assert OF_USER.keys() == UserTable.model_fields.keys() - {"members"}
    context = world.caller.server.context
    for key, (value, where, expected) in OF_USER.items():
        table = f'[users.lab]\nmembers = ["ann", "b*"]\n{key} = {value}\n'
        await world.reload(f"{OWN}[services.my_service]\n{table}")
        for user in ("ann", "bob"):
            if where.endswith("_by_user"):
                found = getattr(context.services["my_service"], where).get(user)
            else:
                found = getattr(context.allowances.of(user), where)
            assert found == expected, key


async def test_a_users_new_limit_holds_for_the_next_claim(world: World) -> None:
    context = world.caller.server.context
    await world.reload(f"{OWN}[services.my_service]\n[services.s]\n[users.ann]\nruns_per_user = 1")
    for _ in range(3):
        new = NewJob("ann", "s", Bundle("b", 1, "digest"), Limits(), 60.0, created_at=10)
        await context.jobs.insert(new, "queued")
    claimed = await context.jobs.claim_fairly(context.services["s"], [Candidate("node", 4)], 10, 20)
    assert len(claimed) == 1


async def test_an_agent_is_named_with_its_address_without_its_password(tmp_path: Path) -> None:
    file, text = tmp_path / "new.toml", "[services.s]\n[agents.a]\nurl = 'http://a:1'"

    def read() -> ServerSettings:
        file.write_text(text)
        return load.read(file, {}, {})

    async def used(_: ServerSettings) -> None:
        """Fail never."""

    before = read()
    text = "[services.s]\n[agents.b]\nurl = 'http://me:secret@b:2'\nprefetch = 2\n"
    reload = Reload(before, read, lambda _old, _new: None, used)
    done = await reload.run_once()
    assert {one.key: (one.old, one.new) for one in done.changed} == {
        "agents.a": ("taken out (http://a:1)", None),
        "agents.b": (None, "added (http://***@b:2)"),
    }
    assert reload.settings.agents["b"].prefetch == 2


async def test_a_server_that_asks_nobody_for_a_token_asks_once_there_is_one(
    tmp_path: Path,
) -> None:
    file = tmp_path / "ferryman.toml"

    def read() -> ServerSettings:
        return load.read(file, {"server": {"data_dir": tmp_path / "data"}}, {})

    first = "[server]\nmax_files = 9\n"
    async with driving(tmp_path, FakeOrchestrator(), extra=first, read=read) as caller:
        world = World(caller, file)
        assert caller.server.context.token_needed() is False
        status, _ = await world.reload(OWN)
        assert (status, caller.server.context.token_needed()) == (200, True)
        assert (await world.status_of(TOKEN), await world.status_of(OTHER)) == (200, 401)
        assert (await world.reload(first))[1]["code"] == "settings_not_reloaded"


async def test_jobs_of_a_service_that_was_renamed_are_said_everywhere_and_moved_by_one_command(
    tmp_path: Path,
) -> None:
    settings = "[services.my_service]\n"
    client = FakeOrchestrator(then="Running")

    def read() -> ServerSettings:
        file = tmp_path / "new.toml"
        file.write_text(settings)
        flags = {"server": {"data_dir": tmp_path / "data", "getter_interval": 0.02}}
        found = load.read(file, flags, {})
        return found.model_copy(update={"agents": caller.server.reload.settings.agents})

    async with driving(tmp_path, client, read=read) as caller:
        to = ("--url", caller.url)
        runs = await caller.upload()
        await caller.job(runs, until="Running")
        waits, later = [await caller.upload(not_before="in 1h") for _ in range(2)]
        settings = "[services.renamed]\n"
        with structlog.testing.capture_logs() as lines:
            code, out, err = await ferryman("config", "reload", *to)
        assert (code, "services.my_service: taken out" in out) == (0, True)
        said = "my_service is in no settings any more: 2 jobs wait, 1 in work"
        assert f"service {said}" in err
        for how in ("services move my_service NAME", "cancel --all --service my_service"):
            assert f"ferryman {how} --url {caller.url}" in err
        (line,) = [one for one in lines if one["event"] == "service.gone"]
        assert (line["service"], line["queued"], line["in_work"]) == ("my_service", 2, 1)
        (_, gone) = json.loads((await caller.get("/api/v1/services"))[2])["items"]
        shown = (gone["name"], gone["source"], gone["in_work"], gone["counts"]["Queued"])
        assert shown == ("my_service", "none", 1, 2)
        assert "\tgone\t" in (await ferryman("services", "list", *to))[1]
        found = json.loads((await caller.get("/api/v1/status"))[2])["troubles"]
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
        assert len(json.loads((await caller.get("/api/v1/services"))[2])["items"]) == 1
        for job_id in (runs, waits, later):
            job = json.loads((await caller.get(f"/api/v1/jobs/{job_id}"))[2])
            assert job["service"] == "renamed"
        events = json.loads((await caller.get(f"/api/v1/jobs/{waits}/events"))[2])["items"]
        assert events[-1]["event"] == "job.moved"
        assert events[-1]["fields"] == {
            "by": "local",
            "service": "renamed",
            "service_before": "my_service",
        }
        client.payloads[1].status = "Completed"
        assert (await caller.job(runs))["status"] == "Completed"
        code, _, _ = await ferryman("cancel", "--all", "--service", "renamed", "--yes", *to)
        assert [(await caller.job(one))["status"] for one in (waits, later)] == ["Cancelled"] * 2
