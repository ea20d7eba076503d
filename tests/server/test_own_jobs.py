"""Whose a job is: who uploads for whom, what lists and events hold, and what log and trail say."""

import asyncio
import itertools
import re
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest
from structlog.testing import capture_logs

from server.stages import wakeups
from shared.http.middleware import GATE
from shared.principals import Principal, Role
from tests.kit.each import each
from tests.kit.raw_http import holding
from tests.kit.store import Jobs
from tests.kit.waiting import eventually, until
from tests.server.access import BOUNDARY, OPERATOR, PEOPLE, PRINCIPALS, Crowd, crowd, formed

__all__ = ["OPERATOR", "PRINCIPALS", "crowd"]

pytestmark = pytest.mark.asyncio(loop_scope="module")

SERVER = "[server]\nuploads_per_user = 4"


@each("role, user_id", [(Role.USER, None), (Role.USER, ""), (Role.PORTAL, "ann")])
async def test_a_user_has_a_user_id_and_nobody_else(role: Role, user_id: str | None) -> None:
    """Without one it would see the jobs of everybody."""
    with pytest.raises(ValueError, match="user_id"):
        Principal("x", role, user_id)


async def test_nobody_uploads_for_another(crowd: Crowd) -> None:
    query = f"/upload?user_id=bob&service={crowd.place.service}"
    for expect in ({}, {"Expect": "100-continue"}):
        for who, status in (("ann", 403), ("node", 403), ("", 401), ("portal as ann", 403)):
            for path in (query, "/upload") if who == "node" else (query,):
                said = await crowd.ask(who, "POST", path, "", **BOUNDARY | expect)
                assert (said.status, said.code) == (status, "not_allowed"), (who, path)
    for who in ("ann", "portal as ann"):
        # What the form says in the end counts, whatever the head says.
        fields = {"user_id": "bob", "service": crowd.place.service}
        for path in ("/upload", "/upload?user_id=ann"):
            said = await crowd.ask(who, "POST", path, formed(fields), **BOUNDARY)
            assert (said.status, said.code) == (403, "not_allowed"), (who, path)
    jobs = await crowd.place.api("GET", "/jobs", user="bob", service=crowd.place.service)
    assert jobs["items"] == []


async def test_an_upload_without_a_user_is_of_the_one_who_asks(crowd: Crowd) -> None:
    form = formed({"service": crowd.place.service})
    for who, user in (("ann", "ann"), ("portal as bob", "bob")):
        key = crowd.place.warm.new("key")
        said = await crowd.ask(who, "POST", "/upload", form, **BOUNDARY, Idempotency_Key=key)
        assert said.status == 201, said
        job = await crowd.place.api("GET", f"/jobs/{said.document['id']}")
        assert job["user_id"] == user
        listed = await crowd.ask(who, "GET", f"/api/v1/jobs?idempotency_key={key}")
        assert [one["user_id"] for one in listed.document["items"]] == [user]
    for who in ("portal", "admin"):
        said = await crowd.ask(who, "POST", "/upload", form, **BOUNDARY)
        assert (said.status, said.document["message"]) == (400, "Missing user_id field")


async def test_a_refused_upload_shows_nothing_of_what_the_other_uploads(crowd: Crowd) -> None:
    port, bobs = int(crowd.place.url.rpartition(":")[2]), partial(crowd.upload, "bob", "bob")
    fields = formed({"user_id": "bob", "service": crowd.place.service}).partition("--b--")[0]
    head = (
        "POST /upload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n"
        "Content-Type: multipart/form-data; boundary=b\r\n"
        f"Authorization: Bearer the-token-of-bob\r\n\r\n{fields}"
    )
    async with AsyncExitStack() as stack:
        for _ in range(4):
            await stack.enter_async_context(holding(port, head))
        await eventually(bobs, lambda said: said.document.get("code") == "too_many_uploads")
        assert (await crowd.upload("ann", "bob")).code == "not_allowed"
    await eventually(bobs, lambda said: said.status == 201)


async def test_a_key_gives_its_job_only_to_who_may_see_it(crowd: Crowd) -> None:
    key = {"Idempotency-Key": crowd.place.warm.new("key")}
    first = (await crowd.upload("portal", "ann", key)).document["id"]
    for who, status in (("portal", 201), ("ann", 201), ("stranger", 422)):
        said = await crowd.upload(who, "ann", key)
        assert said.status == status
        if status == 201:
            assert said.document["id"] == first
        else:
            assert said.code == "idempotency_key_reused"
            assert not re.search(rf"\b{first}\b", said.document["message"])
    # Keys are a user's own: bob's is another one.
    assert (await crowd.upload("bob", "bob", key)).document["id"] != first
    counts = {"ann": 1, "bob": 0, "portal": 1, "stranger": 0, "admin": 1}
    query = f"/api/v1/jobs?user=ann&idempotency_key={key['Idempotency-Key']}"
    for who, count in counts.items():
        assert len((await crowd.ask(who, "GET", query)).document["items"]) == count, who
    wrong = {"": "missing_user", "user=ann&state=Failed&": "invalid_state"}
    for other, code in wrong.items():
        said = await crowd.ask("portal", "GET", query.replace("user=ann&", other))
        assert (said.status, said.code) == (400, code)


async def test_a_job_that_has_just_moved_is_shown_from_memory_to_who_may_see_it(
    crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeups, "_RECENT_FOR_S", 1e9)
    crowd.place.does(None)
    job = await crowd.made("ann", "ann")
    process = await crowd.place.process(job)
    await crowd.place.job(job, until="Running")
    path = f"/api/v1/jobs/{job}?wait=20&seen=Running"
    people = ("ann", "admin", "bob", "portal")
    asked = [asyncio.create_task(crowd.ask(who, "GET", path)) for who in people]
    gate = crowd.place.server.application[GATE]
    await until(lambda: sum(gate._waits.values()) + sum(one.done() for one in asked) == 4)
    process.finish()
    assert [(await one).status for one in asked] == [200, 200, 404, 404]


async def test_lists_and_events_hold_what_their_reader_may_see(crowd: Crowd) -> None:
    service = crowd.place.service
    pairs = (("ann", "ann"), ("portal", "ann"), ("portal", "bob"), ("stranger", "bob"))
    jobs = {pair: [await crowd.job(*pair) for _ in range(2)] for pair in (*pairs, ("admin", "bob"))}
    for (who, _), ids in jobs.items():
        job = await Jobs(crowd.place.server.context.core.database).get(ids[0])
        assert job.submitted_by == PEOPLE[who].name

    def of(*names: str, user: str = "") -> list[int]:
        of = [ids for (who, own), ids in jobs.items() if who in names and user in ("", own)]
        return sorted(itertools.chain(*of), reverse=True)

    everything, anns = of(*PEOPLE), of(*PEOPLE, user="ann")
    for who, query, expected in (
        ("admin", "", everything),
        ("admin", "&user=ann", anns),
        ("ann", "", anns),
        ("ann", "&user=ann", anns),
        ("ann", "&user=bob", []),
        ("ann", "&user=nobody-at-all", []),
        ("bob", "&state=Queued", of(*PEOPLE, user="bob")),
        ("portal", "", of("portal")),
        ("portal", "&user=bob", of("portal", user="bob")),
        ("portal", "&state=Queued", of("portal")),
        ("portal", "&tag=none", []),
        ("portal as ann", "", of("portal", user="ann")),
        ("portal as ann", "&user=bob", []),
        ("stranger", "&user=ann", []),
    ):
        start = f"/api/v1/jobs?limit=2&service={service}{query}"
        found, path = list[int](), start
        while path:
            page = (await crowd.ask(who, "GET", path)).document
            found += [item["id"] for item in page["items"]]
            path = f"{start}&cursor={page['next']}" if page["next"] else ""
        assert found == expected, (who, query)
        if "state" not in query and "tag" not in query:
            said = await crowd.ask(who, "GET", f"/api/v1/events?limit=500{query}")
            shown = {one["job_id"] for one in said.document["items"]}
            assert shown & set(everything) == set(expected), (who, query)


async def test_a_portal_acts_only_for_the_users_of_its_token(crowd: Crowd) -> None:
    asked = {"name": crowd.place.warm.new("lab"), "role": "portal", "users": ["lab-*", "ann"]}
    token = (await crowd.place.api("POST", "/tokens", asked))["token"]
    shown = {"Authorization": f"Bearer {token}"}
    for user, status in (("lab-7", 200), ("ann", 200), ("bob", 403), ("Lab-7", 403), ("", 400)):
        said = await crowd.ask("", "GET", "/api/v1/jobs", **shown, Ferryman_Act_As=user)
        assert said.status == status, user
        if status == 403:
            assert "its token is for lab-*, ann" in said.text
    for who, status in (("ann as bob", 403), ("admin as ann", 403), ("portal as a b", 400)):
        assert (await crowd.ask(who, "GET", "/api/v1/jobs")).status == status, who
    assert (await crowd.upload("", "bob", shown)).code == "not_allowed"
    assert (await crowd.upload("", "lab-1", shown)).status == 201
    crowd.place.users.add("lab-1")


async def denied(
    crowd: Crowd, lines: list[Any], who: str, path: str, headers: dict[str, str]
) -> list[tuple[str, int]]:
    """What the log says now of such a request."""
    lines.clear()
    await crowd.ask(who, "GET", path, **headers)
    assert "the-token-of" not in str(lines)
    return [(one["principal"], one["status"]) for one in lines if one.get("path") == path]


async def test_the_log_and_the_trail_say_who_made_a_request(crowd: Crowd) -> None:
    own, place = await crowd.job("ann", "ann"), crowd.place
    with capture_logs() as lines:
        for who, status, path, more in (
            ("bob", 404, f"/download/{own}", {}),
            ("portal", 404, "/nowhere", {}),
            ("node", 403, "/api/v1/jobs", {}),
            ("", 401, "/api/v1/jobs", {}),
            ("admin", 421, "/", {"Host": "evil.example"}),
        ):
            # Of refusals there are ten lines a second.
            name = PEOPLE[who].name if who else "anonymous"
            refused = partial(denied, crowd, lines, who, path, more)
            assert await eventually(refused, bool) == [(name, status)]
        uploaded = await crowd.made("portal", "bob")
        await place.job(uploaded)
        await until(lambda: any(one["event"] == "job.ended" for one in lines))
        await place.get(f"/download/{uploaded}")
        await until(lambda: any(one.get("outcome") == "downloaded" for one in lines))
    (line,) = [one for one in lines if one.get("outcome") == "downloaded"]
    assert (line["log_level"], line["job_id"]) == ("info", uploaded)
    (line,) = [one for one in lines if one.get("outcome") == "accepted"]
    names = ("event", "principal", "user_id", "service", "job_id")
    expected = ["request.done", "portal", "bob", place.service, uploaded]
    assert [line[name] for name in names] == expected
    (end,) = [one for one in lines if one["event"] == "job.ended"]
    assert (end["user_id"], end["service"], end["job_id"]) == ("bob", place.service, uploaded)
    assert "the-token-of" not in str(lines)
    for method, path in (("POST", f"/api/v1/jobs/{own}/cancel"), ("DELETE", "/api/v1/tokens/1")):
        assert (await crowd.ask("scraper", method, path)).status == 403
    trail = await place.api("GET", "/audit", principal="scraper")
    assert [one["role"] for one in trail["items"]] == ["metrics", "metrics"]
