"""Commands and the SDK against a server and an agent, from a bundle to its result."""

import asyncio
import io
import json
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest

from ferryman import Client, JobState, errors, verify_webhook
from tests.client import conftest
from tests.client.conftest import OPERATOR, both
from tests.kit.fake_sandbox import FakeProcess
from tests.kit.warm import Place
from tests.kit.webhook_receiver import receiving

pytestmark = pytest.mark.asyncio(loop_scope="module")
SERVER = "[server]\nwebhook_allow = ['127.0.0.0/8']\n"
PRINCIPALS = conftest.PRINCIPALS
RUN = {"run.sh": b"echo hi\n"}
ODD = {"a/odd 50%?#&é.txt": b"odd", "b/odd 50%?#&é.txt": b"other"}
FILES = {"out/table.csv": b"1,2\n" * 9, "out/plot.png": bytes(range(256)), "empty": b""} | ODD


def client_of(place: Place, **options: Any) -> Client:
    return Client(place.url, **{"user": place.user, "token": OPERATOR, **options})


def leaves_files(process: FakeProcess) -> None:
    for name, content in FILES.items():
        process.write(name, content)
    process.log(stdout=b"hello\n")
    process.finish()


def names(path: Path) -> set[str]:
    with zipfile.ZipFile(path) as archive:
        return set(archive.namelist())


async def test_a_bundle_is_sent_waited_for_and_its_result_fetched(run, place, bundle, tmp_path):
    place.does(leaves_files)
    said = await run("submit", bundle, "--wait", "-o", "r.zip", "--name", "first", "--tag", "red")
    assert said.code == 0, said.err
    number = int(said.out)
    lines = [line.split()[1] for line in said.err.splitlines() if line.lstrip().startswith("+")]
    states = ["Queued", "Processing", "Submitted", "Running", "Completed"]
    assert [word for word in lines if word in states] == states
    assert {*FILES, "run.sh", "ferryman.json"} <= names(tmp_path / "r.zip")
    again = await run("download", number)
    assert (again.code, again.out) == (0, f"job-{number}.zip\n")
    assert (tmp_path / again.out.strip()).read_bytes() == (tmp_path / "r.zip").read_bytes()
    document = json.loads((await run("status", number, "--json")).out)
    assert (document["user_id"], document["status"]) == (place.user, "Completed")
    assert json.loads((await run("status", "last", "--json")).out)["id"] == number
    second = await run("submit", bundle, "--tag", "blue", "-q", "-o", "-")
    assert zipfile.is_zipfile(io.BytesIO(second.data))
    listed = json.loads((await run("list", "--user", place.user, "--json")).out)
    assert [job["tags"] for job in listed] == [["blue"], ["red"]]
    for words, ids in ((("--tag", "red"), [number]), (("--state", "failed"), [])):
        found = await run("list", "--user", place.user, *words, "--json")
        assert [job["id"] for job in json.loads(found.out)] == ids


async def test_a_failure_has_reason_stderr_and_what_was_left(run, place, bundle, tmp_path):
    def breaks(process: FakeProcess) -> None:
        process.write("half.txt", b"half\n")
        process.log(stderr=b"it \x1b[31mbroke\n")
        process.finish(7)

    place.does(breaks)
    said = await run("submit", bundle, "--wait", "-o", "r.zip", "--timeout", "1000d")
    number = said.out.strip()
    warned = [line for line in said.err.splitlines() if "warn" in line]
    assert [line.partition(" was")[0] for line in warned] == ["warning: timeout: 1000d"]
    hint = f"what it left, logs included: ferryman download {number} --partial --url {place.url}"
    assert (said.code, (tmp_path / "r.zip").exists()) == (7, False)
    end = said.err.splitlines()[-4:]
    assert end[0] == f"job {number} Failed (exit_code): run.sh ended with exit code 7"
    assert end[1:] == ["last lines of stderr:", "  | it \\x1b[31mbroke", hint]
    quiet = await run("submit", bundle, "--wait", "-q")
    assert (quiet.code, len(quiet.err.splitlines())) == (7, 4)
    waited = await run("wait", number, "-q")
    assert (waited.code, waited.out, waited.err.splitlines()) == (7, "", end)
    denied = await run("download", number)
    assert (denied.code, denied.err.splitlines()[-1]) == (1, hint)
    assert (await run("download", number, "--partial", "-o", "p.zip")).code == 0
    assert "half.txt" in names(tmp_path / "p.zip")
    async with client_of(place) as client:
        result = await client.wait(int(number))
        assert (result.status, result.exit_code) == (JobState.FAILED, 7)
        with pytest.raises(errors.NoResult, match="exit code 7"):
            await result.save(tmp_path / "none")
        saved = await result.save(tmp_path / "some", partial=True)
    assert (saved / "half.txt").read_text() == "half\n"


async def test_each_attempt_can_be_looked_at(run, place, bundle, tmp_path):
    def second_time(process: FakeProcess) -> None:
        attempt = process.launch.env["FERRYMAN_ATTEMPT"]
        process.log(stdout=f"this is {attempt}\n".encode(), stderr=f"error {attempt}\n".encode())
        process.write(f"left-by-{attempt}", b"")
        process.finish(0 if attempt == "2" else 3)

    place.does(second_time)
    await place.configure(retries=1, retry_on=["exit:3"], retry_delays=["0s"])
    waited = await run("submit", bundle, "--wait")
    assert waited.code == 0, waited.err
    number = int(waited.out)
    heads, first, second = (await run("status", number)).out.splitlines()[-3:]
    assert heads == "ATTEMPT\tSTATUS\tAGENT\tSTARTED\tTOOK\tEXIT\tREASON"
    assert first.split("\t")[:2] + first.split("\t")[5:] == ["1", "Failed", "3", "exit_code"]
    assert second.split("\t")[:2] + second.split("\t")[5:] == ["2", "Completed", "0", ""]
    for words, out in (
        ((), "this is 2\n"),
        (("--attempt", 1), "this is 1\n"),
        (("--attempt", 1, "--stderr"), "error 1\n"),
    ):
        assert (await run("logs", number, *words)).out == out
    assert (await run("logs", number, "--attempt", 3)).code == 1
    done = await run("download", number, "--attempt", 1)
    assert done.out == f"job-{number}-attempt-1.zip\n"
    left = names(tmp_path / done.out.strip())
    assert {name for name in left if "left" in name} == {"left-by-1"}
    assert (await run("download", number, "--attempt", 1, "--partial")).code == 2
    async for client in both(place.url, token=OPERATOR):
        states = [one.status for one in (await client.status(number)).attempts or ()]
        assert states == [JobState.FAILED, JobState.COMPLETED]
        assert await client.log(number) == "this is 2\n"
        assert await client.log(number, 1, "stderr") == "error 1\n"
        assert (await client.download(number, tmp_path / "1.zip", attempt=1)).checked
        assert names(tmp_path / "1.zip") == left
        for kind, given in (
            (errors.NotFound, {"attempt": 3}),
            (errors.Refused, {"attempt": 0}),
            (errors.BadArgument, {"attempt": 1, "partial": True}),
        ):
            with pytest.raises(kind):
                await client.download(number, tmp_path, **given)


async def test_a_running_job_is_followed_and_cancelled(run, place, bundle, tmp_path):
    place.does(None)
    number = int((await run("submit", bundle)).out)
    process = await place.process(number)
    process.log(stdout=b"so far\n")
    await place.job(number, until="Running")
    assert (await run("logs", number)).out == "so far\n"
    early = await run("download", number)
    hint = f"logs included: ferryman download {number} --partial --url {place.url}"
    assert (early.code, early.err.splitlines()[-1]) == (75, f"what there is now, {hint}")
    async with client_of(place) as client:
        log = client.follow_log(number)
        assert await anext(log) == b"so far\n"
        with pytest.raises(errors.NotReady):
            await client.download(number, tmp_path)
        with pytest.raises(errors.WaitedTooLong) as caught:
            await client.wait(number, timeout=0.01)
        assert caught.value.job.status is JobState.RUNNING
        done = await client.download(number, tmp_path, partial=True)
        assert {"run.sh", "ferryman.json"} <= names(done.path)
        assert (await run("cancel", number)).err == f"job {number} is cancelled\n"
        assert (await client.cancel(number)).status is JobState.CANCELLED
        with pytest.raises(errors.NoResult):
            await client.download(number, tmp_path)
        assert [chunk async for chunk in log] == []
    assert (await run("status", number, "--wait", "-q")).code == 143
    assert json.loads((await run("cancel", number, "--json")).out)["status"] == "Cancelled"


async def test_what_ended_cannot_be_cancelled_and_refusals_carry_codes(place):
    async with client_of(place) as client:
        job = await client.submit(RUN, service=place.service, idempotency_key="k1")
        assert (await client.submit(RUN, service=place.service, idempotency_key="k1")).id == job.id
        with pytest.raises(errors.Refused) as reused:
            await client.submit({"run.sh": b"x"}, service=place.service, idempotency_key="k1")
        await client.wait(job.id)
        with pytest.raises(errors.AlreadyEnded, match="Completed"):
            await client.cancel(job.id)
        with pytest.raises(errors.NotFound) as missing:
            await client.status(10**12)
        with pytest.raises(errors.Refused) as refused:
            await client.submit(RUN, service="nonsense")
        sent: list[int] = []
        large: Any = {"service": place.service, "progress": lambda done, _: sent.append(done)}
        with pytest.raises(errors.BadArgument, match="timeout"):
            await client.submit({**RUN, "large": bytes(3 << 20)}, timeout="soon", **large)
        with pytest.raises(errors.NotFound):
            await anext(client.events(10**12))
        assert sent == [], "the content was sent"
    codes = [f"{one.value.status} {one.value.code}" for one in (reused, missing, refused)]
    assert codes == ["422 idempotency_key_reused", "404 job_not_found", "400 unknown_service"]


async def test_files_are_listed_and_fetched_one_by_one(run, place, tmp_path):
    place.does(leaves_files)
    number = await place.upload(RUN)
    await place.job(number)
    listed = await run("files", number)
    heads, *lines = [line.split("\t") for line in listed.out.splitlines()]
    assert (listed.code, listed.err, heads) == (0, "", ["PATH", "SIZE", "TYPE", "CHANGED"])
    sizes = {line[0]: int(line[1]) for line in lines}
    assert sizes.items() >= {name: len(content) for name, content in FILES.items()}.items()
    parsed = json.loads((await run("files", number, "--json", "--attempt", "1")).out)
    assert [one["path"] for one in parsed] == [*sizes]
    one = await run("download", number, "out/plot.png")
    assert (one.code, one.out, one.err.startswith("saved plot.png (")) == (0, "plot.png\n", True)
    assert (tmp_path / "plot.png").read_bytes() == FILES["out/plot.png"]
    for path, content in ODD.items():
        found = await run("download", number, path, "-o", "-")
        assert (found.code, found.data) == (0, content)
    two = ("out/table.csv", "empty", "-o", tmp_path / "new", "--json")
    parsed = json.loads((await run("download", number, *two)).out)
    assert [one["size"] for one in parsed] == [36, 0]
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"table.csv", "empty"}
    before = sorted(tmp_path.iterdir())
    for words, code, text in (
        (("table.csv",), 1, "out/table.csv"),
        (("nowhere",), 1, "ferryman"),
        (("../nowhere",), 1, f"its files: ferryman files {number}"),
        (("18",), 1, "one job at a time: ferryman download 18"),
        (tuple(ODD), 2, "one name"),
        (("empty", "stdout.log", "-o", "-"), 2, "one file"),
        (("empty", "--partial"), 2, "whole ZIP"),
    ):
        said = await run("download", number, *words)
        assert (said.code, said.out, text in said.err) == (code, "", True), said.err
        assert "/api/" not in said.err
    assert sorted(tmp_path.iterdir()) == before
    async for client in both(place.url, token=OPERATOR):
        assert [one.path async for one in client.files(number)] == [*sizes]
        for path, content in FILES.items():
            to = io.BytesIO()
            assert (await client.fetch(number, path, to)).size == len(content)
            assert to.getvalue() == content
        with pytest.raises(errors.NotFound):
            await client.fetch(number, "nowhere", io.BytesIO())
        folder = tmp_path / type(client).__name__ / "out"
        result = await client.wait(number)
        assert await result.save(folder) == folder
        (folder / "empty").write_text("old and longer")
        (folder / "own.txt").write_text("mine")
        await result.save(f"{folder}/")
        saved = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
        assert {*FILES, "own.txt"} < saved
        assert all((folder / path).read_bytes() == of for path, of in FILES.items())
        assert await result.save(folder / "r.zip") == folder / "r.zip"
        assert {*FILES} < names(folder / "r.zip")
        assert [file.path async for file in result.files()] == [*sizes]


async def test_a_schedule_is_added_listed_and_deleted(run, place, bundle):
    words = ("schedule", "add", bundle, "--cron", "0 3 * * *", "--name", "nightly", "--tag", "n")
    added = await run(*words)
    assert (added.code, added.err.splitlines()[1][:25]) == (0, "its first job comes at 20")
    number = added.out.strip()
    assert (await run(*words)).code == 1  # as with other conflicts; 65 is for a bundle
    listed = [line.split("\t") for line in (await run("schedule", "list")).out.splitlines()]
    assert [number, "nightly", "0 3 * * *", "UTC"] in [line[:4] for line in listed]
    async with client_of(place) as client:
        given: Any = {"service": place.service, "name": "nightly"}
        with pytest.raises(errors.Conflict, match="nightly"):
            await client.add_schedule(RUN, cron="0 3 * * *", **given)
        with pytest.raises((errors.BadArgument, errors.Refused), match="cron"):
            await client.add_schedule(RUN, cron="never", **given)
        assert (await run("schedule", "delete", number)).err == f"schedule {number} is deleted\n"
        assert number not in [str(one.id) async for one in client.schedules()]
        with pytest.raises(errors.NotFound):
            await client.delete_schedule(int(number))


async def test_a_service_is_paused_and_resumed(run, place):
    paused = await run("services", "pause", place.service, "--message", "new disk")
    assert (paused.code, paused.out) == (0, "")
    assert paused.err == f"service {place.service} is paused\n"
    number = await place.upload(RUN)
    listed = (await run("services", "list")).out.splitlines()
    (line,) = [one.split("\t") for one in listed if one.startswith(f"{place.service}\t")]
    assert (line[1], line[3], line[-1]) == ("paused", "1", "new disk")
    assert (await place.job(number, until="Queued"))["queue"]["code"] == "paused"
    resumed = await run("services", "resume", place.service)
    assert resumed.err == f"service {place.service} is not paused\n"
    await place.job(number, until="Completed")
    async with client_of(place) as client:
        assert not any(one.paused for one in await client.services())
        with pytest.raises(errors.NotFound):
            await client.change_service("nobody", "pause")


async def test_a_receiver_verifies_a_webhook_with_the_sdk(run, place):
    async with receiving() as receiver, client_of(place) as client:
        given: Any = {"service": place.service, "callback_url": receiver.url(), "meta": {"a": 1}}
        job = await client.submit(RUN, **given)
        (received,) = await receiver.arrived(1)
        (secret,) = (await client.webhook_secret()).secrets
        found = verify_webhook(received.body, received.headers, secret)
        assert (found.type, found.data.id, found.data.meta) == ("job.completed", job.id, {"a": 1})
        assert found.data.ended_at == (await client.status(job.id)).ended_at
        sent_at = int(received.headers["webhook-timestamp"])
        upper = {name.upper(): value for name, value in received.headers.items()}
        verify_webhook(received.body, upper, secret, now=sent_at + 299)
        several = {**received.headers, "webhook-signature": "v1,xx v2,yy "}
        several["webhook-signature"] += received.headers["webhook-signature"]
        verify_webhook(received.body, several, secret)
        other = (await client.webhook_secret(principal="somebody-else")).secrets[0]
    headers = received.headers
    for body, given_headers, key, now, why in (
        (received.body + b" ", headers, secret, sent_at, "was altered"),
        (received.body, headers, other, sent_at, "secret is another one"),
        (received.body, headers, secret, sent_at + 301, "not sent within 300 s"),
        (received.body, headers, secret, sent_at - 301, "not sent within 300 s"),
        (received.body, {}, secret, sent_at, "no header webhook-id"),
        (received.body, {**headers, "webhook-id": "x"}, secret, sent_at, "altered"),
    ):
        with pytest.raises(errors.BadWebhook, match=why):
            verify_webhook(body, given_headers, key, now=now)
    with pytest.raises(errors.BadArgument, match="begins with whsec_"):
        verify_webhook(received.body, received.headers, "abc")
    old = (await run("webhook-secret")).out.strip()
    replaced = (await run("webhook-secret", "--replace")).out.split()
    assert (old, replaced[1], replaced[0] == old) == (secret, secret, False)
    parsed = json.loads((await run("webhook-secret", "--json", "--principal", "portal")).out)
    assert (parsed["principal"], len(parsed["secrets"])) == ("portal", 1)


async def test_both_clients_follow_wait_and_list(run, place):
    async with client_of(place) as client:
        live = client.all_events(0, service=place.service)
        first = asyncio.ensure_future(anext(live))
        job = await place.upload()
        seen = [one async for one in client.events(job)]
        assert (await first, seen[0].event) == (seen[0], "job.queued")
        await live.aclose()
    numbers = [one.seq for one in seen]
    async for client in both(place.url, token=OPERATOR):
        past = client.all_events(0, service=place.service)
        assert [(await anext(past)).seq for _ in seen] == numbers
        await past.aclose()
        assert [one.seq async for one in client.events(job, follow=False)] == numbers
        assert [one.seq async for one in client.events(job, after=numbers[2])] == numbers[3:]
        assert (await client.wait(job, timeout=5)).status is JobState.COMPLETED
        listed = client.jobs(user=place.user)
        assert (await anext(listed)).id == job
        await listed.aclose()
        with pytest.raises(errors.NotFound, match="not found"):
            await client.status(10**12)
    assert not [one for one in threading.enumerate() if one.name == "ferryman-sync"]
    lines = (await run("events", job)).out.splitlines()
    assert (len(lines), "Completed" in lines[-1]) == (len(seen), True)
    followed = (await run("events", job, "-f", "--json")).out.splitlines()
    assert [json.loads(line)["seq"] for line in followed] == [one.seq for one in seen]
    wrong = await run("events", job, "--user", "x")
    assert (wrong.code, "leave out the ID" in wrong.err) == (2, True)


async def test_jobs_are_done_to_many_at_once(run, place):
    place.does(lambda process: process.finish(3))
    ids = [await place.upload() for _ in range(3)]
    for number in ids:
        await place.job(number)
    tried = await run("retry", *ids, 10**9)
    assert tried.code == 1
    assert tried.err.splitlines() == [
        *(f"job {number} is Queued, run 2" for number in ids),
        "Job 1000000000 not found in the database",
    ]
    for number in ids:
        await place.job(number)
    mine = ("--all", "--user", place.user, "--yes")
    deleted = await run("delete", *mine, "--state", "failed")
    assert sorted(deleted.err.splitlines()) == [f"job {number} is deleted" for number in ids]
    assert json.loads((await run("list", "--user", place.user, "--json")).out) == []
