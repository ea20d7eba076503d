"""Jobs over HTTP: documents, lists, results; many at once; what a user has used."""

import asyncio
import base64
import hashlib
import json
import random  # noqa: TID251  # with a seed
from collections.abc import Mapping
from typing import Any

import pytest

from ferryman import Client, NotAllowed
from shared.principals import Principal, Role
from tests.kit.command_line import ferryman
from tests.kit.each import each
from tests.kit.raw_archives import unzipped
from tests.kit.store import Jobs
from tests.kit.waiting import eventually
from tests.kit.warm import Place
from tests.server.warm_jobs import done, leaving

pytestmark = pytest.mark.asyncio(loop_scope="module")
SERVER = """
[server]
cleaner_interval = "50ms"
stored_per_user = 1000000
upload_per_user_per_day = 50000000
[users.7]
uploads_per_user = 3
queued_per_user = 9
stored_per_user = 2000000
[users.lab]
members = ["8"]
upload_per_user_per_day = 0
"""
OPERATOR, ANN = "o" * 20, "a" * 20
PRINCIPALS = {
    OPERATOR: Principal("operator", Role.OPERATOR),
    ANN: Principal("ann-laptop", Role.USER, "ann"),
    "seven": Principal("seven", Role.USER, "7"),
    "portal": Principal("portal", Role.PORTAL, users=("7",)),
}


async def running(place: Place, **fields: Any) -> int:
    """A job whose script waits for the test."""
    place.does(None)
    job_id = await place.upload(**fields)
    await place.job(job_id, until="Running")
    return job_id


async def test_lists_are_chosen_by_what_the_upload_said(place: Place) -> None:
    plain = await running(place)
    more = {"name": "nightly", "tags": "a,b", "priority": "7"}
    named = await running(place, **more)
    later = await place.upload(not_before="in 2h", tags="a", after=str(plain))
    for query, expected in [
        ("name=nightly", [named]),
        ("tag=a", [later, named]),
        ("since=1h", [later, named, plain]),
        ("until=1h", []),
        ("state=Queued", [later]),
        ("reason=timeout", []),
        ("dead_letter=true", []),
        ("top_level=true&tag=a", [later, named]),
        (f"parent={plain}", []),
        ("batch=true&tag=a", []),
        ("schedule=1", []),
        (f"after={plain}", [later]),
        (f"after={plain}&tag=a", [later]),
        (f"after={plain}&tag=b", []),
        (f"after={named}&tag=a", []),
    ]:
        _, page = await place.ask("GET", f"/api/v1/jobs?user={place.user}&{query}")
        assert [job["id"] for job in page["items"]] == expected, query


ALL = slice(None)
CONDITIONS: list[tuple[dict[str, str], int, slice | None]] = [
    ({}, 200, ALL),
    ({"If-None-Match": "THIS"}, 304, None),
    ({"If-Match": '"other"'}, 412, None),
    ({"If-Match": "THIS"}, 200, ALL),
    ({"If-Match": "*"}, 200, ALL),
    ({"Range": "bytes=5-9"}, 206, slice(5, 10)),
    ({"Range": "bytes=100-"}, 206, slice(100, None)),
    ({"Range": "bytes=-7"}, 206, slice(-7, None)),
    ({"Range": "bytes=99999999-"}, 416, None),
    ({"Range": "bytes=-0"}, 416, None),
    ({"Range": "bytes=0-1,5-6"}, 200, ALL),
    ({"Range": "bytes=" + "9" * 5_000 + "-"}, 200, ALL),
    ({"Range": "lines=1-2"}, 200, ALL),
    ({"Range": "bytes=5-9", "If-Range": "THIS"}, 206, slice(5, 10)),
    ({"Range": "bytes=5-9", "If-Range": '"other"'}, 200, ALL),
    ({"Range": "bytes=5-9", "If-Range": 'W/"other"'}, 200, ALL),
]


async def test_a_result_has_validators_ranges_and_its_digest(place: Place) -> None:
    """A small one, which is sent from memory, a large one, files of it, and a bundle."""
    incompressible = {"large": random.Random(1).randbytes(300_000)}
    small = await done(place, leaving())
    large = await done(place, leaving(incompressible, stdout=bytes(range(256)) * 1024))

    async def get(
        path: str, method: str = "GET", **headers: str
    ) -> tuple[int, Mapping[str, str], bytes]:
        url = f"{place.url}/api/v1/jobs/{path}"
        async with place.session.request(method, url, headers=headers) as answer:
            return answer.status, answer.headers, await answer.read()

    for path in (
        *(f"{small}/result", f"{large}/result", f"{large}/logs", f"{large}/bundle"),
        *(f"{large}/files/large", f"{large}/files/stdout.log"),
    ):
        await get(path, Range="bytes=9-")
        await get(path)  # the whole of a large one says its digest from then on
        _, told, whole = await get(path)
        size, tag = len(whole), told["ETag"]
        assert told["X-Content-Type-Options"] == "nosniff"
        if path.endswith("result"):
            digest = base64.b64encode(hashlib.sha256(whole).digest()).decode()
            assert told["Repr-Digest"] == f"sha-256=:{digest}:"
            name = f"filename*=UTF-8''job-{path.partition('/')[0]}.zip"
            assert name in told["Content-Disposition"]
        for given, status, part in CONDITIONS:
            shown = {name: text.replace("THIS", tag) for name, text in given.items()}
            found, headers, body = await get(path, **shown)
            assert found == status, (path, given)
            if part is not None:
                assert body == whole[part], (path, given)
                assert (headers["ETag"], headers["Content-Length"]) == (tag, str(len(body)))
            if status == 206:
                start, stop, _ = part.indices(size) if part else (0, 0, 0)
                assert headers["Content-Range"] == f"bytes {start}-{stop - 1}/{size}"
            if status == 416:
                assert headers["Content-Range"] == f"bytes */{size}"
        status, headers, body = await get(path, "HEAD")
        assert (status, body, headers["Content-Length"]) == (200, b"", str(size))
        parts = [get(path, Range=f"bytes={at}-{at + 99_999}") for at in range(0, size, 100_000)]
        assert b"".join(body for _, _, body in await asyncio.gather(*parts)) == whole


async def test_where_there_is_no_result_the_status_says_why(place: Place) -> None:
    assert await place.ask("GET", "/") == (200, {"message": "pong"})
    first, second = await running(place), await running(place)
    assert (await place.ask("GET", f"/api/v1/jobs/{first}/result"))[0] == 202
    status, reply = await place.ask("GET", f"/download/{first}")
    assert (status, set(reply), reply["status"]) == (200, {"id", "status", "message"}, "Running")
    (await place.process(first)).finish(3)
    await place.job(first)
    status, kind, body = await place.get(f"/api/v1/jobs/{first}/result")
    assert (status, kind) == (409, "application/problem+json")
    assert f"/download_partial/{first}" in (said := json.loads(body))["detail"]
    assert said["code"] == "exit_code"
    async with place.session.get(f"{place.url}/download_partial/{first}") as answer:
        assert f"''job-{first}-partial.zip" in answer.headers["Content-Disposition"]
    for path, status, state in (
        (f"/api/v1/jobs/{second}/cancel", 200, "Cancelled"),
        (f"/terminate/{second}", 200, "Killed"),
        (f"/api/v1/jobs/{first}/cancel", 200, "Failed"),
        (f"/terminate/{first}", 409, "Failed"),
    ):
        found, answer = await place.ask("POST", path)
        assert (found, answer["status"]) == (status, state)


async def test_the_bundle_and_the_result_can_be_fetched_until_they_expire(
    place: Place, tmp_path: Any
) -> None:
    await place.configure(expires_after="3h")
    files = {"run.sh": b"echo hello\n", "a/b.txt": bytes(range(256)) * 400}
    job_id = await place.upload(files)
    path = (await place.api("GET", f"/jobs/{job_id}"))["links"]["bundle"]
    assert path == f"/api/v1/jobs/{job_id}/bundle"
    async with place.session.get(f"{place.url}{path}") as answer:
        whole = await answer.read()
        assert (answer.status, answer.content_type) == (200, "application/zip")
        assert f"job-{job_id}-bundle.zip" in answer.headers["Content-Disposition"]
    assert unzipped(whole).items() >= files.items()
    async with Client(place.url, token=OPERATOR) as sdk:
        done = await sdk.download(job_id, f"{tmp_path}/", bundle=True)
    assert (done.path.name, done.size) == (f"job-{job_id}-bundle.zip", len(whole))
    await place.job(job_id)
    place.warm.clock.forward(4 * 3_600)
    cleaned = await eventually(
        lambda: place.api("GET", f"/jobs/{job_id}"), lambda job: job["status"] == "Cleaned"
    )
    assert (cleaned["links"]["bundle"], cleaned["links"]["result"]) == (None, None)
    for gone in (path, f"/api/v1/jobs/{job_id}/result"):
        status, problem = await place.ask("GET", gone)
        assert (status, problem["code"]) == (410, "result_cleaned")
    assert (await place.ask("GET", f"/download_partial/{job_id}"))[0] == 410
    status, reply = await place.ask("GET", f"/download/{job_id}")
    assert (status, reply["status"]) == (200, "Cleaned")


@each("files, where", [("all", "_joined_in_memory"), ("changed", "send_file")])
@each("goes, status, code", [("cleaned", 410, "result_cleaned"), ("deleted", 404, "job_not_found")])
async def test_a_result_that_goes_while_it_is_asked_for_is_no_fault_of_the_server(
    place: Place, goes: str, status: int, code: str, files: str, where: str
) -> None:
    job_id = await done(place, leaving(), result_files=files)
    jobs = Jobs(place.server.context.core.database)

    async def gone(*_: object) -> None:
        job = await jobs.get(job_id)
        if goes == "deleted":
            await jobs.delete(job_id)
        else:
            await jobs.clean([job], 1)
        if where == "send_file":
            raise FileNotFoundError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"server.http.results.{where}", gone)
        found, problem = await place.ask("GET", f"/api/v1/jobs/{job_id}/result")
    assert (found, problem["code"]) == (status, code)


async def bulk(place: Place, token: str = OPERATOR, **asked: Any) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {token}"}
    return await place.ask("POST", "/api/v1/jobs/bulk", json=asked, headers=headers)


async def items(place: Place, **asked: Any) -> list[tuple[int, bool, str]]:
    status, answer = await bulk(place, **asked)
    assert status == 200, answer
    return [(item["id"], item["ok"], item["code"]) for item in answer["items"]]


async def test_jobs_are_cancelled_retried_tagged_and_deleted_by_number(place: Place) -> None:
    first, waiting = await running(place), await place.upload(not_before="in 1h")
    assert await items(place, action="cancel", ids=[first, waiting, 99_999]) == [
        *((job_id, True, "requested") for job_id in (first, waiting)),
        (99_999, False, "job_not_found"),
    ]
    for job_id in (first, waiting):
        assert (await place.job(job_id))["status"] == "Cancelled"
    assert await items(place, action="cancel", ids=[first]) == [(first, True, "already_ended")]
    assert await items(place, action="retry", ids=[waiting]) == [(waiting, True, "queued")]
    assert (await items(place, action="retry", ids=[waiting]))[0][1] is False
    tagged = [(first, True, "tagged"), (waiting, True, "tagged")]
    twice = [first, waiting, first]
    assert await items(place, action="tag", ids=twice, tags=["a", "b"]) == tagged
    await items(place, action="untag", ids=[first], tags=["b"])
    found = await place.api("GET", "/jobs", tag="b", user=place.user)
    assert [one["id"] for one in found["items"]] == [waiting]
    assert (await place.job(first))["tags"] == ["a"]
    assert await items(place, action="delete", ids=[first]) == [(first, True, "deleted")]
    assert (await place.get(f"/api/v1/jobs/{first}"))[0] == 404
    status, problem = await bulk(place, ANN, action="move", service=place.service, ids=[waiting])
    assert (status, problem["code"]) == (403, "not_allowed")
    another = await running(place)
    (found,) = await items(place, action="delete", ids=[another])
    assert found[1:] in ((True, "requested"), (True, "cancelled"))
    assert (await place.job(another))["status"] == "Cancelled"
    assert await items(place, action="delete", ids=[another]) == [(another, True, "deleted")]


async def test_a_filter_is_worked_off_in_slices_with_each_job_once(place: Place) -> None:
    tags = ["even", "odd"] * 2 + ["even"]
    ids = [await place.upload(not_before="in 1h", tags=tag) for tag in tags]
    mine, even, odd = {"user": place.user}, ids[::-2], ids[-2::-2]
    asked: dict[str, Any] = {"action": "cancel", "filter": mine | {"tag": "even"}, "limit": 2}
    _, first = await bulk(place, **asked)
    _, second = await bulk(place, **asked, cursor=first["next"])
    assert [one["id"] for one in first["items"] + second["items"]] == even
    assert (first["more"], second["more"], second["next"]) == (True, False, None)
    for job_id in even:
        assert (await place.job(job_id))["status"] == "Cancelled"
    # Where no state is named: those that the action can change.
    assert [one[0] for one in await items(place, action="cancel", filter=mine)] == odd
    for job_id in odd:
        await place.job(job_id)
    assert await items(place, action="cancel", all=True) == []
    retried = await items(place, action="retry", filter=mine | {"tag": "odd", "since": "1h"})
    assert [one[:2] for one in retried] == [(one, True) for one in odd]
    deleted = await items(place, action="delete", filter=mine | {"state": "Cancelled"})
    assert [one[0] for one in deleted] == even


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({}, "missing_action", "Missing action field"),
    ({"action": "cancel", "ids": [1], "service": "my_service"}, "invalid_service", "move"),
    ({"action": "move", "ids": [1]}, "invalid_service", "move needs one"),
    ({"action": "explode", "ids": [1]}, "invalid_action", "'tag', 'untag' or 'move'"),
    ({"action": "cancel"}, "invalid_filter", '"all": true'),
    ({"action": "cancel", "ids": []}, "invalid_ids", "at least 1 item"),
    ({"action": "cancel", "ids": list(range(1, 1_002))}, "invalid_ids", "at most 1000 items"),
    ({"action": "cancel", "ids": [1], "all": True}, "invalid_ids", "not both"),
    ({"action": "cancel", "all": "yes"}, "invalid_all", "boolean"),
    ({"action": "cancel", "ids": [True]}, "invalid_ids", "integer"),
    ({"action": "cancel", "filter": {"color": "red"}}, "unknown_field", "color"),
    ({"action": "cancel", "filter": {"state": "Bored"}}, "invalid_state", "'Bored'"),
    ({"action": "cancel", "filter": {"since": "soon"}}, "invalid_since", "'soon'"),
    ({"action": "cancel", "filter": {"tag": None}}, "invalid_filter", "tag: input should be"),
    ({"action": "cancel", "filter": [1]}, "invalid_filter", "dictionary"),
    ({"action": "cancel", "filter": {"tag": "a"}, "limit": 1_001}, "invalid_limit", "to 1000"),
    ({"action": "cancel", "filter": {"tag": "a"}, "cursor": "x"}, "invalid_cursor", "gave as next"),
    ({"action": "cancel", "filter": {"tag": "a"}, "cursor": "1_0"}, "invalid_cursor", "as next"),
    ({"action": "cancel", "filter": {"tag": "a"}, "cursor": True}, "invalid_cursor", "as next"),
    ({"action": "tag", "ids": [1]}, "invalid_tags", "need some"),
    ({"action": "cancel", "ids": [1], "tags": ["a"]}, "invalid_tags", "have none"),
    ({"action": "tag", "ids": [1], "tags": "a"}, "invalid_tags", "valid list"),
    ({"action": "tag", "ids": [1], "tags": ["\ud800"]}, "invalid_json", "whole characters"),
    ({"action": "cancel", "ids": [1], "color": "red"}, "unknown_field", "color"),
]


@each("wrong, code, words", WRONG)
async def test_what_is_wrong_is_named_and_nothing_is_done(
    place: Place, wrong: dict[str, Any], code: str, words: str
) -> None:
    job_id = await place.upload(not_before="in 1h")
    wrong = {name: [job_id] if str(value) == "[1]" else value for name, value in wrong.items()}
    status, problem = await bulk(place, **wrong)
    assert (status, problem["code"]) == (400, code), problem
    assert words in problem["detail"]
    shown = await place.api("GET", f"/jobs/{job_id}")
    assert (shown["cancel_requested_at"], shown["tags"]) == (None, [])


ASKED = {"": 400, "?user=7": 200, "?user=8": 403}


async def test_what_is_used_and_what_is_left_and_nobody_sees_that_of_others(place: Place) -> None:
    await place.configure(runs_per_user=2)
    place.does(None)
    for _ in range(2):
        await place.job(await place.upload(user_id="7"), until="Running")
    await place.upload(user_id="7", array="0-2", not_before="in 1h")  # its children count already
    found = await place.api("GET", "/usage", user="7")
    stored = await Jobs(place.server.context.core.database).stored("7")
    (service,) = [one for one in found["services"] if one["service"] == place.service]
    assert 0 < stored == found["stored"]["used"]
    assert found["stored"] == {"used": stored, "limit": 2_000_000, "left": 2_000_000 - stored}
    today = found["uploaded_today"]
    assert today.pop("renewed_at").endswith("T00:00:00Z")
    assert today == {"used": stored, "limit": 50_000_000, "left": 50_000_000 - stored}
    assert found["uploads"] == {"used": 0, "limit": 3, "left": 3}
    assert service["under_way"] == {"used": 2, "limit": 2, "left": 0}
    assert service["waiting"] == {"used": 4, "limit": 9, "left": 5}
    assert found["rate_limit"] is None
    assert found["days"] == []
    other = await place.api("GET", "/usage", user="8")
    assert other["uploaded_today"] is None
    assert other["stored"] == {"used": 0, "limit": 1_000_000, "left": 1_000_000}

    how = {"FERRYMAN_URL": place.url, "FERRYMAN_TOKEN": OPERATOR, "FERRYMAN_USER": "7"}
    code, out, err = await ferryman("usage", **how)
    assert code == 0, err
    rows = {line[0]: line[1:] for line in (text.split("\t") for text in out.splitlines())}
    assert rows["WHAT"] == ["USED", "LIMIT", "LEFT"]
    assert rows["stored"][1] == "1.9 MiB"
    assert rows["uploads at once"] == ["0", "3", "3"]
    assert rows[f"{place.service}: under way"][0] == "2"
    assert rows["requests"] == ["", "none", ""]
    jobs = await place.api("GET", "/jobs", user="7")
    for one in jobs["items"]:
        await place.api("POST", f"/jobs/{one['id']}/cancel")
        await place.job(one["id"])
    async with Client(place.url, token="seven") as client:
        usage = await client.usage()
        (day,) = usage.days
        assert (usage.user_id, day.service) == ("7", place.service)
        assert (day.completed, day.cancelled, day.bundle_bytes) == (0, 3, stored)
        assert day.ran_s > 0
        with pytest.raises(NotAllowed):
            await client.usage("8")
    async with Client(place.url, token=OPERATOR, user="9") as client:
        assert [(await client.usage(*user)).user_id for user in ((), ("8",))] == ["9", "8"]
    path, portal = "/api/v1/usage", {"Authorization": "Bearer portal"}
    answers = {query: (await place.ask("GET", path + query, headers=portal))[0] for query in ASKED}
    assert answers == ASKED
    assert (await place.ask("GET", f"{path}?user=a%20b"))[0] == 400
    shown = portal | {"Ferryman-Act-As": "7"}
    assert (await place.ask("GET", path, headers=shown))[1]["user_id"] == "7"
