"""Uploads: what is on the wire, and what a broken connection does to them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from aiohttp import web

from ferryman import BadBundle, Client, FileChanged, NotAllowed, NotUnderstood, Refused, TryLater
from ferryman.errors import Unreachable
from ferryman.upload import BATCH
from shared.wire import StatusBody
from tests.unit.ferryman.fake_server import (
    QUEUED,
    InstantClock,
    RecordingServer,
    answer,
    problem,
    serving,
)

SCRIPT = {"run.sh": b"echo hi\n"}


async def test_names_fields_and_contents_arrive_as_they_are(tmp_path):
    big = bytes(range(256)) * 8192  # 2 MiB: several pieces
    (tmp_path / "big").write_bytes(big)
    take = RecordingServer()
    async with serving(("POST", "/upload", take)) as url, Client(url, user="ada") as client:
        accepted = await client.submit(
            {
                "run.sh": b"echo hi\n",
                "data/é “x”.pdb": b"ATOM\r\n",
                'q"uote': b"",
                "big": tmp_path / "big",
            },
            service="example",
            name="my job",
            tags=["a", "b"],
            timeout=90,
            memory="64MiB",
            cpus=0.5,
            pids=32,
            disk=8 << 20,
        )
    (upload,) = take.uploads
    assert (accepted.id, accepted.status) == (17, "Queued")
    assert upload.fields == {
        "user_id": "ada",
        "service": "example",
        "name": "my job",
        "tags": "a,b",
        "timeout": "90s",
        "memory": "64MiB",
        "cpus": "0.5",
        "pids": "32",
        "disk": "8388608",
    }
    assert upload.files == [
        ("file", "big", big),
        ("file", "data/é “x”.pdb", b"ATOM\r\n"),
        ("file", 'q"uote', b""),
        ("file", "run.sh", b"echo hi\n"),
    ]
    in_the_head = upload.fields.keys() - {"name", "tags"}
    assert upload.query == {field: upload.fields[field] for field in in_the_head}
    assert upload.length is not None
    assert not upload.chunked
    assert upload.expected == "100-continue"


async def test_a_small_upload_does_not_wait_for_leave():
    take = RecordingServer()
    async with serving(("POST", "/upload", take)) as url, Client(url, user="ada") as client:
        await client.submit(SCRIPT, service="example")
    assert take.uploads[0].expected is None


async def test_a_lost_answer_is_asked_for_again_under_the_same_key():
    take = RecordingServer(lose=2)
    clock = InstantClock()
    async with (
        serving(("POST", "/upload", take)) as url,
        Client(url, user="ada", clock=clock) as client,
    ):
        accepted = await client.submit(SCRIPT, service="example")
    assert accepted.id == 17
    assert len(take.uploads) == 3
    assert {upload.key for upload in take.uploads} == {accepted.idempotency_key}
    assert clock.slept == sorted(clock.slept)
    assert len(clock.slept) == 2


async def test_every_upload_has_a_key_of_its_own_unless_one_is_given():
    take = RecordingServer()
    async with serving(("POST", "/upload", take)) as url, Client(url, user="ada") as client:
        for key in (None, None, "mine"):
            await client.submit(SCRIPT, service="example", idempotency_key=key)
    first, second, third = (upload.key for upload in take.uploads)
    assert len({first, second, third}) == 3
    assert third == "mine"
    assert re.fullmatch(r"[\w-]{20,}", first)


async def test_tries_end_after_retry_for():
    clock = InstantClock()
    take = RecordingServer(lose=1_000)
    async with (
        serving(("POST", "/upload", take)) as url,
        Client(url, user="ada", clock=clock, retry_for=5) as client,
    ):
        with pytest.raises(Unreachable) as caught:
            await client.submit(SCRIPT, service="example")
    assert caught.value.url.startswith(url)
    assert 3 < clock.at <= 5


async def test_an_unreachable_server_is_reported_in_plain_words():
    async with serving() as url:
        pass
    async with Client(url, user="ada", retry_for=0) as client:
        with pytest.raises(
            Unreachable, match=r"cannot reach http://127.0.0.1:\d+.*: Connection refused"
        ):
            await client.submit(SCRIPT, service="example")


@pytest.mark.parametrize(
    ("refusal", "pauses"),
    [
        ((503, "starting", "not yet", 2), [2.0, 2.0]),
        ((429, "too_many_uploads", "64 are in flight", 1), [1.0, 2.0]),
    ],
    ids=["a server that starts", "too many uploads at once"],
)
async def test_a_refusal_that_passes_by_itself_is_tried_again(refusal, pauses):
    tries = 0
    *what, retry_after = refusal

    async def refusing(request: web.Request) -> web.StreamResponse:
        nonlocal tries
        tries += 1
        await request.read()
        if tries < 3:
            return problem(*what, Retry_After=str(retry_after))
        return answer(QUEUED, 201)

    clock = InstantClock()
    async with (
        serving(("POST", "/upload", refusing)) as url,
        Client(url, user="ada", clock=clock) as client,
    ):
        assert (await client.submit(SCRIPT, service="example")).id == 17
    assert clock.slept == pauses


@pytest.mark.parametrize(
    ("status", "kind"), [(403, NotAllowed), (429, TryLater), (507, TryLater), (422, Refused)]
)
async def test_refusals_carry_what_the_server_said(status, kind):
    async def refuse(request: web.Request) -> web.StreamResponse:
        return problem(status, "some_code", "This will not do.", Retry_After="7")

    async with serving(("POST", "/upload", refuse)) as url, Client(url, user="ada") as client:
        with pytest.raises(kind, match=r"^This will not do\.$") as caught:
            await client.submit(SCRIPT, service="example")
    error = caught.value
    assert (error.status, error.code, error.request_id) == (status, "some_code", "r-1")
    assert error.retry_after == 7


async def test_the_reference_shape_of_a_refusal_is_understood():
    async def refuse(request: web.Request) -> web.StreamResponse:
        return answer(StatusBody(id=0, status="Unknown", message="Invalid service"), 400)

    async with serving(("POST", "/upload", refuse)) as url, Client(url, user="ada") as client:
        with pytest.raises(Refused, match=r"^Invalid service$"):
            await client.submit(SCRIPT, service="example")


async def test_a_refusal_before_the_body_saves_sending_it(tmp_path):
    (tmp_path / "run.sh").touch()
    (tmp_path / "big").write_bytes(bytes(8 * BATCH))

    async def refuse(request: web.Request) -> web.StreamResponse:
        return problem(413, "too_large", "at most 1 MiB")

    sent: list[int] = []
    async with (
        serving(("POST", "/upload", RecordingServer()), expect=refuse) as url,
        Client(url, user="ada") as client,
    ):
        with pytest.raises(Refused, match="at most 1 MiB"):
            await client.submit(
                tmp_path, service="example", progress=lambda done, _: sent.append(done)
            )
    assert sent == []


async def test_another_program_on_the_port_is_reported():
    async def page(request: web.Request) -> web.StreamResponse:
        return web.Response(text="<h1>Welcome to nginx</h1>", content_type="text/html")

    async with serving(("POST", "/upload", page)) as url, Client(url, user="ada") as client:
        with pytest.raises(NotUnderstood, match="does not answer like a Ferryman server"):
            await client.submit(SCRIPT, service="example")


@pytest.mark.parametrize("grows", [True, False])
async def test_a_file_that_changes_while_it_is_sent_is_an_error_and_not_sent_again(tmp_path, grows):
    (tmp_path / "run.sh").touch()
    big = tmp_path / "big"
    big.write_bytes(bytes(4 * BATCH))
    tries = 0

    async def reading(request: web.Request) -> web.StreamResponse:
        nonlocal tries
        tries += 1
        await request.read()
        return answer(QUEUED, 201)

    def change(done: int, total: int) -> None:
        if grows:
            with big.open("ab") as file:
                file.write(b"more")
        else:
            with big.open("r+b") as file:
                file.truncate(BATCH)

    async with serving(("POST", "/upload", reading)) as url, Client(url, user="ada") as client:
        with pytest.raises(FileChanged, match="big changed while it was being sent"):
            await client.submit(tmp_path, service="example", progress=change)
    assert tries <= 1


async def test_progress_ends_at_the_whole():
    progress_calls: list[tuple[int, int]] = []
    take = RecordingServer()
    async with serving(("POST", "/upload", take)) as url, Client(url, user="ada") as client:
        await client.submit(
            {"run.sh": b"", "x": bytes(3 * BATCH)},
            service="example",
            progress=lambda done, total: progress_calls.append((done, total)),
        )
    assert progress_calls[-1][0] == progress_calls[-1][1] == take.uploads[0].length
    assert len(progress_calls) >= 3


async def test_the_token_is_sent_with_every_request():
    seen: list[str | None] = []

    async def look(request: web.Request) -> web.StreamResponse:
        seen.append(request.headers.get("Authorization"))
        return web.json_response({"status": "ok", "database": "ok"})

    async with serving(("GET", "/health", look)) as url:
        for token in ("secret", None):
            async with Client(url, token=token) as client:
                assert (await client.health()).status == "ok"
    assert seen == ["Bearer secret", None]


async def test_a_server_below_a_path_is_reached_there():
    async def health(request: web.Request) -> web.StreamResponse:
        return web.json_response({"status": "ok", "database": "ok"})

    async with (
        serving(("GET", "/hpc/ferryman/health", health)) as url,
        Client(f"{url}/hpc/ferryman/") as client,
    ):
        assert (await client.health()).status == "ok"


@pytest.mark.parametrize("url", ["127.0.0.1:5000", "ftp://host", "", "http://"])
def test_a_url_without_http_is_refused_with_an_example(url):
    with pytest.raises(ValueError, match="such as http://"):
        Client(url)


async def test_wrong_arguments_are_refused_before_anything_is_sent():
    async with Client("http://127.0.0.1:9", retry_for=0) as client:
        with pytest.raises(ValueError, match="whose job"):
            await client.submit(SCRIPT, service="example")
        with pytest.raises(ValueError, match="comma"):
            await client.submit(SCRIPT, service="example", user="ada", tags=["a,b"])
        with pytest.raises(BadBundle):
            await client.submit(Path("/nonexistent"), service="example", user="ada")


async def test_a_string_is_one_tag_and_numbers_have_no_exponent():
    take = RecordingServer()
    async with serving(("POST", "/upload", take)) as url, Client(url, user="ada") as client:
        await client.submit(SCRIPT, service="example", tags="abc", timeout=1e7, cpus=1e-5)
    (upload,) = take.uploads
    assert upload.fields["tags"] == "abc"
    assert upload.fields["timeout"] == "10000000s"
    assert upload.fields["cpus"] == "0.00001"


async def test_a_limit_of_requests_is_waited_for_but_not_for_longer_than_asked():
    left = [2, 2]

    async def health(_: web.Request) -> web.StreamResponse:
        if not left:
            return web.json_response({"status": "ok"})
        return problem(429, "rate_limited", "slower", Retry_After=str(left.pop()))

    clock = InstantClock()
    async with serving(("GET", "/health", health)) as url:
        async with Client(url, clock=clock) as client:
            assert (await client.health()).status == "ok"
        assert clock.slept == [2, 2]
        left.append(60)
        async with Client(url, clock=clock) as client:
            with pytest.raises(TryLater, match="slower") as caught:
                await client.health()
    assert caught.value.retry_after == 60
    assert clock.slept == [2, 2]


async def test_own_headers_go_with_every_request():
    seen: list[tuple[str | None, str | None]] = []

    async def health(request: web.Request) -> web.StreamResponse:
        seen.append((request.headers.get("X-Portal"), request.headers.get("Authorization")))
        return web.json_response({"status": "ok"})

    async with (
        serving(("GET", "/health", health)) as url,
        Client(url, token="t", headers={"X-Portal": "p"}) as client,
    ):
        await client.health()
        await client.health()
    assert seen == [("p", "Bearer t")] * 2


async def test_a_proxy_of_the_environment_is_used_but_not_for_this_machine(monkeypatch, tmp_path):
    (tmp_path / "netrc").write_text("machine ferryman.invalid login ada password secret\n")
    asked: list[str] = []

    async def proxy(request: web.Request) -> web.StreamResponse:
        asked.append(str(request.url))
        return web.json_response({"status": "ok"})

    async with serving(("*", "/{any:.*}", proxy)) as url:
        monkeypatch.setenv("http_proxy", url)
        monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
        async with Client("http://ferryman.invalid", token="t") as client:
            assert (await client.health()).status == "ok"
        for trust_env in (False, True):
            own = Client("http://ferryman.invalid", retry_for=0, trust_env=trust_env)
            async with own as client:
                with pytest.raises(Unreachable):
                    await client.health()
            monkeypatch.setenv("no_proxy", ".invalid")
        for host in ("localhost", "127.0.0.1"):
            async with Client(f"http://{host}:9", retry_for=0) as client:
                with pytest.raises(Unreachable):
                    await client.health()
        async with Client("http://localhost:9", proxy=url) as client:
            assert (await client.health()).status == "ok"
    assert asked == ["http://ferryman.invalid/health", "http://localhost:9/health"]
