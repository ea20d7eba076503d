"""``POST /api/v1/settings/reload``, the SDK and ``ferryman config reload``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from ferryman import Client, Conflict, NotAllowed, SyncClient
from server.settings import load
from server.settings.tables import ServerSettings
from tests.kit.command_line import ferryman
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import ServerClient, driving

TOKEN, OTHER = "the-first-random-text", "the-second-random-text"
ROUTE = "/api/v1/settings/reload"
OWN = f'[server]\ntokens = ["{TOKEN}"]\n'


class World:
    """A server with a file."""

    def __init__(self, caller: ServerClient, file: Path) -> None:
        self.caller, self.file = caller, file

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


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    file = tmp_path / "ferryman.toml"

    def read() -> ServerSettings:
        # The service is there, as in the variables that the server was started with.
        flags = {"server": {"data_dir": tmp_path / "data", "getter_interval": 0.02}}
        return load.read(file, flags, {}).model_copy(update={"agents": found().agents})

    def found() -> ServerSettings:
        return caller.server.reload.settings

    async with driving(tmp_path, FakeOrchestrator(), extra=OWN, read=read) as caller:
        yield World(caller, file)


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
    await world.reload(f'[server]\ntokens = ["{TOKEN}"]\n[services.my_service]\n')
    removed.set()
    assert [*await uploads] == [201, 403]


async def test_a_browser_that_logged_in_with_a_token_is_logged_out_with_it(world: World) -> None:
    context = world.caller.server.context
    principal = context.token_holder(TOKEN, "peer")
    text = await context.sessions.log_in(principal, "peer")
    assert context.sessions.principal_of(text, "peer") == principal
    await world.reload(f'[server]\ntokens = ["{OTHER}"]\n')
    assert context.sessions.principal_of(text, "peer") is None


@pytest.mark.parametrize(
    ("text", "words"),
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
    before = world.caller.server.reload.settings
    if text is None:
        world.file.unlink()
    with structlog.testing.capture_logs() as lines:
        status, answer = await world.reload(text)
    assert (status, answer["code"]) == (409, "settings_not_reloaded")
    assert words in answer["detail"]
    assert words in next(one["why"] for one in lines if one["event"] == "settings.not_reloaded")
    assert TOKEN not in answer["detail"]
    assert world.caller.server.reload.settings is before
    assert await world.status_of(TOKEN) == 200


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


async def test_it_is_for_operators_and_in_the_audit_trail(world: World) -> None:
    status, answer = await world.reload(token="x" * 20)
    assert (status, answer["code"]) == (401, "not_allowed")
    await world.reload()
    async with Client(world.caller.url, token=TOKEN) as client:
        found = [one async for one in client.audit(action="settings/reload")]
    assert [(one.action, one.status) for one in found] == [
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
    assert "services.my_service.max_runs: 3 -> 4\n" in out
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


async def test_nothing_to_change_is_said(world: World) -> None:
    await world.reload()
    code, out, err = await ferryman("config", "reload", "--url", world.caller.url, "--token", TOKEN)
    assert (code, out, err) == (0, "", "nothing has changed\n")


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
