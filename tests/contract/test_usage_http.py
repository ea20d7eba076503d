"""``GET /api/v1/usage``: what a user has used, and what is left; and who may see it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ferryman import Client, NotAllowed
from shared.principals import Principal, Role
from tests.kit.command_line import ferryman
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import ServerClient, driving

SETTINGS = """
[server]
stored_per_user = 1000000
upload_per_user_per_day = 5000

[users.7]
uploads_per_user = 3
queued_per_user = 9
stored_per_user = 2000000

[users.lab]
members = ["8"]
upload_per_user_per_day = 0
"""
PRINCIPALS = {
    "seven": Principal("seven", Role.USER, "7"),
    "eight": Principal("eight", Role.USER, "8"),
    "portal": Principal("portal", Role.PORTAL, users=("7",)),
    "agent": Principal("agent", Role.AGENT),
    "operator": Principal("operator", Role.OPERATOR),
}


async def asked(
    client: ServerClient, query: str = "", token: str = "", **headers: str
) -> tuple[int, dict[str, Any]]:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    if token:
        given["Authorization"] = f"Bearer {token}"
    url = f"{client.url}/api/v1/usage{query}"
    async with client.session.get(url, headers=given) as answer:
        return answer.status, await answer.json()


async def test_what_is_used_and_what_is_left(tmp_path):
    orchestrator = FakeOrchestrator(then="Running")
    async with driving(tmp_path, orchestrator, extra=SETTINGS) as client:
        for _ in range(2):
            await client.job(await client.upload(), until="Running")
        await client.upload()
        status, found = await asked(client, "?user=7")
        stored = await client.server.context.jobs.stored("7")
        (service,) = [one for one in found["services"] if one["service"] == "my_service"]
        assert status == 200
        assert 0 < stored == found["stored"]["used"]
        assert found["stored"] == {"used": stored, "limit": 2_000_000, "left": 2_000_000 - stored}
        today = found["uploaded_today"]
        assert today.pop("renewed_at").endswith("T00:00:00Z")
        assert today == {"used": stored, "limit": 5_000, "left": 5_000 - stored}
        assert found["uploads"] == {"used": 0, "limit": 3, "left": 3}
        assert service["under_way"] == {"used": 2, "limit": 2, "left": 0}
        assert service["waiting"] == {"used": 1, "limit": 9, "left": 8}
        assert found["rate_limit"] is None
        _, other = await asked(client, "?user=8")
        assert other["uploaded_today"] is None
        assert other["stored"] == {"used": 0, "limit": 1_000_000, "left": 1_000_000}


async def test_the_command_line_shows_it(tmp_path):
    async with driving(tmp_path, FakeOrchestrator(), extra=SETTINGS) as client:
        await client.job(await client.upload())

        async def run(*words: str, **environ: str) -> str:
            code, out, err = await ferryman("usage", *words, FERRYMAN_URL=client.url, **environ)
            assert code == 0, err
            return out

        lines = [line.split("\t") for line in (await run(FERRYMAN_USER="7")).splitlines()]
        assert lines[0] == ["WHAT", "USED", "LIMIT", "LEFT"]
        rows = {line[0]: line[1:] for line in lines}
        assert rows["stored"][1] == "1.9 MiB"
        assert rows["uploads at once"] == ["0", "3", "3"]
        assert rows["my_service: under way"] == ["0", "2", "2"]
        assert rows["requests"] == ["", "none", ""]
        assert json.loads(await run("--json", "-u", "8"))["user_id"] == "8"


async def test_the_sdk_asks_for_the_users_own(tmp_path):
    async with (
        driving(tmp_path, FakeOrchestrator(), principals=PRINCIPALS) as caller,
        Client(caller.url, token="seven") as client,
    ):
        assert (await client.usage()).user_id == "7"
        with pytest.raises(NotAllowed):
            await client.usage("8")
    async with (
        driving(tmp_path / "open", FakeOrchestrator()) as caller,
        Client(caller.url, user="9") as client,
    ):
        assert (await client.usage()).user_id == "9"
        assert (await client.usage("8")).user_id == "8"


async def test_nobody_sees_what_is_not_theirs(tmp_path):
    async with driving(tmp_path, FakeOrchestrator(), principals=PRINCIPALS) as client:
        for token, query, expected in (
            ("seven", "", 200),
            ("seven", "?user=7", 200),
            ("seven", "?user=8", 403),
            ("eight", "?user=7", 403),
            ("portal", "?user=7", 200),
            ("portal", "?user=8", 403),
            ("portal", "", 400),
            ("agent", "?user=7", 403),
            ("operator", "?user=8", 200),
            ("operator", "", 400),
            ("operator", "?user=a%20b", 400),
            ("nobody", "", 401),
        ):
            status, found = await asked(client, query, token)
            assert status == expected, (token, query, found)
        assert (await asked(client, token="portal", Ferryman_Act_As="7"))[1]["user_id"] == "7"
