"""Who did what over HTTP, as operators see it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from server.store.audit import AuditFilter
from server.web.site import SITE, CsrfTokens
from shared.principals import Principal, Role
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import RUN, ServerClient, driving

PRINCIPALS = {
    "the-operator's-own-token": Principal("admin", Role.OPERATOR),
    "the-token-of-ann-herself": Principal("ann-laptop", Role.USER, "ann"),
    "the-token-of-the-portal": Principal("portal", Role.PORTAL),
}
OPERATOR, ANN, PORTAL = PRINCIPALS


class Caller:
    def __init__(self, client: ServerClient) -> None:
        self._client = client

    async def ask(
        self, method: str, path: str, token: str = OPERATOR, json: Any = None, **headers: str
    ) -> tuple[int, Any]:
        given = {"Authorization": f"Bearer {token}", **headers}
        async with self._client.session.request(
            method, f"{self._client.url}{path}", json=json, headers=given
        ) as answer:
            return answer.status, await answer.json()

    async def upload(self, token: str, user: str, **headers: str) -> int:
        parts = [("user_id", user), ("service", "my_service")]
        body = "".join(
            f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{text}\r\n'
            for name, text in parts
        ).encode()
        body += b'--b\r\nContent-Disposition: form-data; name="f"; filename="run.sh"\r\n\r\n'
        body += RUN + b"\r\n--b--\r\n"
        kind = "multipart/form-data; boundary=b"
        given = {"Authorization": f"Bearer {token}", "Content-Type": kind, **headers}
        url = f"{self._client.url}/upload"
        async with self._client.session.post(url, data=body, headers=given) as answer:
            assert answer.status == 201, await answer.text()
            return int((await answer.json())["id"])

    async def trail(self, query: str = "") -> list[dict[str, Any]]:
        """All entries, the oldest first."""
        status, page = await self.ask("GET", f"/api/v1/audit{query}")
        assert status == 200, page
        return list(reversed(page["items"]))


@pytest.fixture
async def caller(tmp_path: Path):
    async with driving(tmp_path, FakeOrchestrator(), principals=PRINCIPALS) as found:
        yield Caller(found)


def said(entries: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(one[name] for name in names) for one in entries]


async def test_what_changes_something_is_in_the_trail_and_reads_are_not(caller: Caller) -> None:
    job = await caller.upload(ANN, "ann")
    other = await caller.upload(PORTAL, "bob", **{"Ferryman-Act-As": "bob"})
    await caller.ask("GET", f"/api/v1/jobs/{job}", ANN)
    await caller.ask("POST", f"/api/v1/jobs/{job}/cancel", ANN)
    await caller.ask("POST", f"/api/v1/jobs/{other}/cancel", ANN)
    await caller.ask("POST", "/api/v1/jobs/bulk", ANN, {"action": "delete", "ids": [job]})
    await caller.ask("POST", "/api/v1/services/my_service/pause")
    await caller.ask("POST", "/api/v1/services/my_service/pause", ANN)
    await caller.ask("POST", "/api/v1/nowhere", ANN)
    _, made = await caller.ask("POST", "/api/v1/tokens", json={"name": "x", "role": "user"})
    await caller.ask("DELETE", f"/api/v1/tokens/{made['id']}")
    found = await caller.trail()
    assert said(found, "principal", "action", "target", "status", "code") == [
        ("ann-laptop", "POST /upload", str(job), 201, None),
        ("portal", "POST /upload", str(other), 201, None),
        ("ann-laptop", "POST /api/v1/jobs/{id}/cancel", str(job), 200, None),
        ("ann-laptop", "POST /api/v1/jobs/{id}/cancel", str(other), 404, "job_not_found"),
        ("ann-laptop", "POST /api/v1/jobs/bulk", f"delete {job}", 200, None),
        ("admin", "POST /api/v1/services/{name}/pause", "my_service", 200, None),
        ("ann-laptop", "POST /api/v1/services/{name}/pause", "my_service", 403, "not_allowed"),
        ("ann-laptop", "POST (no such route)", "", 404, "not_found"),
        ("admin", "POST /api/v1/tokens", made["id"], 201, None),
        ("admin", "DELETE /api/v1/tokens/{token}", made["id"], 200, None),
    ]
    assert said(found, "acts_as", "peer", "role")[1] == ("bob", "127.0.0.1", "portal")
    assert len({one["request_id"] for one in found}) == len(found)


async def test_the_trail_says_which_token_was_used(caller: Caller) -> None:
    _, made = await caller.ask("POST", "/api/v1/tokens", json={"name": "bob", "role": "user"})
    job = await caller.upload(made["token"], "bob")
    (entry,) = await caller.trail(f"?token={made['id']}")
    assert (entry["principal"], entry["target"]) == ("bob", str(job))
    assert made["token"] not in str(await caller.trail())


async def test_changes_by_operators_are_in_the_trail_before_their_answer(
    tmp_path: Path,
) -> None:
    async with driving(tmp_path, FakeOrchestrator(), principals=PRINCIPALS) as client:
        caller = Caller(client)
        records = client.server.context.audit._records
        await caller.ask("POST", "/api/v1/services/my_service/pause")
        # The page writes what waits; the records themselves show what was written before it.
        (entry,) = await records.page(AuditFilter(), 9, 2**62)
        assert entry.action == "POST /api/v1/services/{name}/pause"


async def test_the_trail_outlives_the_server(tmp_path: Path) -> None:
    async with driving(tmp_path, FakeOrchestrator(), principals=PRINCIPALS) as client:
        job = await Caller(client).upload(ANN, "ann")
    async with driving(tmp_path, FakeOrchestrator(), principals=PRINCIPALS) as client:
        (entry,) = await Caller(client).trail()
        assert (entry["principal"], entry["target"]) == ("ann-laptop", str(job))


async def test_refusals_that_anybody_can_cause_do_not_fill_the_trail(caller: Caller) -> None:
    for _ in range(40):
        status, _ = await caller.ask("POST", "/api/v1/tokens", "no-token-that-is-known")
        assert status == 401
    refused = await caller.trail("?principal=anonymous")
    assert 10 <= len(refused) < 30
    assert refused[0]["code"] == "not_allowed"
    assert sum(one["left_out"] for one in refused) <= 40 - len(refused)


@pytest.mark.parametrize("defect", [False, True])
async def test_strangers_fill_neither_trail_nor_log_whatever_the_answer_is(
    caller: Caller, monkeypatch: pytest.MonkeyPatch, defect: bool
) -> None:
    if defect:
        monkeypatch.setattr(CsrfTokens, "good", None)  # a call of it fails
    # The first form needs no more than a look at its length, the second one is read.
    form = {"token": "x" * (100 if defect else 10_000)}
    began = asyncio.get_running_loop().time()
    with capture_logs() as lines:
        for _ in range(60):
            url = f"{caller._client.url}/login"
            async with caller._client.session.post(
                url, data=form, cookies={cookie_of(caller): "x"}
            ) as answer:
                assert answer.status == (500 if defect else 413)
    most = 11 + 10 * (asyncio.get_running_loop().time() - began)
    found = await caller.trail("?principal=anonymous")
    assert 10 <= len(found) <= most
    logged = [line["event"] for line in lines]
    assert 10 <= logged.count("request.done") <= most
    assert logged.count("request.failed") <= most


def cookie_of(caller: Caller) -> str:
    return caller._client.server.application[SITE].cookie("browser")


async def test_pages_and_choices(caller: Caller) -> None:
    jobs = [await caller.upload(ANN, "ann") for _ in range(3)]
    await caller.upload(PORTAL, "ann", **{"Ferryman-Act-As": "ann"})
    seen, cursor = [], ""
    while True:
        _, page = await caller.ask("GET", f"/api/v1/audit?limit=2&action=UPLOAD{cursor}")
        seen += [one["seq"] for one in page["items"]]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert seen == sorted(seen, reverse=True)
    assert len(seen) == 4
    assert said(await caller.trail(f"?target={jobs[1]}"), "target") == [(str(jobs[1]),)]
    assert said(await caller.trail("?user=ann"), "principal") == [("portal",)]
    assert len(await caller.trail("?since=1h")) == 4
    assert await caller.trail("?until=1h") == []
    for query in ("since=yesterday", "limit=0", "cursor=x", "tokn=1", f"user={'a' * 65}"):
        assert (await caller.ask("GET", f"/api/v1/audit?{query}"))[0] == 400


@pytest.mark.parametrize("token", [ANN, PORTAL])
async def test_only_operators_read_the_trail(caller: Caller, token: str) -> None:
    status, refused = await caller.ask("GET", "/api/v1/audit", token)
    assert (status, refused["code"]) == (403, "not_allowed")


async def test_behind_a_trusted_proxy_the_trail_has_the_callers_address(tmp_path: Path) -> None:
    async with driving(tmp_path, FakeOrchestrator(), trusted_proxies="127.0.0.1") as client:
        caller = Caller(client)
        sent = {"X-Forwarded-For": "203.0.113.9, 192.0.2.7"}
        status, _ = await caller.ask("POST", "/api/v1/services/my_service/pause", **sent)
        assert status == 200
        _, trail = await caller.ask("GET", "/api/v1/audit")
        assert trail["items"][0]["peer"] == "192.0.2.7"
