"""Jobs and the examples through a real server, agent and sandbox, as their users see them."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import zipfile
from contextlib import aclosing
from typing import Any

from ferryman import Client, EventDoc, JobState, SyncClient
from ferryman.models.jobs import Progress
from tests.kit.dev_program import EXAMPLES, FERRYMAN, DevProgram, ended, environment


async def test_a_bundle_larger_than_every_buffer_arrives_whole(system: DevProgram, tmp_path):
    big = tmp_path / "big.bin"
    with big.open("wb") as file:
        for _ in range(24):
            file.write(bytes(range(256)) * 4096)  # 1 MiB
    script = b"find . -type f | sort > list.txt; cp data/big.bin 'data/\xc3\xbc x/copy.bin'"
    files = {"run.sh": script, "data/big.bin": big, "data/ü x/c.txt": b"one\n"}
    async with Client(system.url, user="ada") as client:
        job = await client.submit(files, service="example")
        ended = await client.wait(job.id, timeout=60)
        assert ended.status is JobState.COMPLETED, ended.message
        done = await client.download(job.id, tmp_path / "r.zip")
    with zipfile.ZipFile(done.path) as archive:
        assert archive.read("data/ü x/copy.bin") == big.read_bytes()
        listed = archive.read("list.txt").decode().splitlines()
    assert set(listed) >= {"./data/big.bin", "./data/ü x/c.txt", "./run.sh"}


def test_jobs_find_the_meta_of_their_upload_and_no_result_has_it(ferryman, bundle, tmp_path):
    script = 'mkdir -p d; cd d; cat "${FERRYMAN_META-none}"; ls -A .. | sort | tr "\\n" " "'
    meta = {"sample": "Überprobe", "of": ['"', 7]}
    words = ("submit", bundle(script), "--meta", json.dumps(meta))
    done = ferryman(*words, "--output", tmp_path / "result.zip")
    assert done.code == 0, done.err
    result = zipfile.ZipFile(tmp_path / "result.zip")
    said = result.read("stdout.log").decode()
    assert json.loads(said[: said.rindex("}") + 1]) == meta
    assert ".ferryman-meta.json" in said
    assert not [name for name in result.namelist() if "meta" in name]
    array = ferryman(*words, "--array", "0-1", "--wait")
    assert array.code == 0, array.err
    for number in (1, 2):
        assert "Überprobe" in ferryman("logs", int(array.out) + number).out
    script = 'echo "${FERRYMAN_META-none}"; ls -A | sort | tr "\\n" " "'
    alone = ferryman("submit", bundle(script), "--wait")
    assert ferryman("logs", int(alone.out)).out == "none\nrun.sh "


LIVE = b"""\
echo "first line"
echo "::progress value=45,total=100::step 45 of 100"
echo "::output name=score::0.93"
echo "::warning::nearly out of ideas"
echo "::event name=ideas.left,count=1::one"
sleep 600
"""
PRINTED = b"".join(LIVE.splitlines(keepends=True)[:5]).replace(b"echo ", b"").replace(b'"', b"")


async def test_a_running_job_is_seen_in_its_document_its_events_and_its_log(system: DevProgram):
    async with Client(system.url, user="ada") as client:
        number = (await client.submit({"run.sh": LIVE}, service="example")).id

        async def log() -> bytes:
            """Followed from before its start."""
            got = b""
            async with aclosing(client.follow_log(number)) as pieces:
                async for piece in pieces:
                    got += piece
                    if len(got) >= len(PRINTED):
                        break
            return got

        reading = asyncio.create_task(log())
        events: dict[str, EventDoc] = {}
        async for event in client.events(number):
            events[event.event] = event
            if event.event == "ideas.left":  # the last thing that it says
                assert await reading == PRINTED
                job = await client.status(number)
                assert (job.status, job.message) == (JobState.RUNNING, "step 45 of 100")
                assert job.progress == Progress(current=45.0, total=100.0)
                assert job.output == {"score": "0.93"}
                await client.cancel(number)
    assert events["job.warning"].message == "nearly out of ideas"
    own = events["ideas.left"]
    assert (own.source, own.fields) == ("run.sh", {"count": "1"})
    assert events["job.output"].fields == {"name": "score", "value": "0.93"}
    assert list(events)[-1] == "job.cancelled"


def test_ctrl_c_cancels_the_job_where_that_was_asked_for(system: DevProgram, ferryman, bundle):
    words = ("submit", str(bundle("sleep 600")), "--service", "example", "--user", "ada", "--wait")
    command = (*FERRYMAN, *words, "--cancel-on-interrupt", "--url", system.url)
    ends: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment(), **ends) as process:
        try:
            assert process.stderr is not None
            assert any("Running" in line for line in process.stderr)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 130
    assert f"job {int(out)} is cancelled" in err
    assert json.loads(ferryman("status", int(out), "--json").out)["status"] == "Cancelled"


def test_lists_can_be_cut_short_by_a_pipe(system: DevProgram):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer) as pipe:
        command = (*FERRYMAN, "list", "--url", system.url)
        done = ended(*command, stdout=pipe, stderr=subprocess.PIPE, status=None)
    assert "Traceback" not in done.stderr


# -- the examples


LEFT = {
    "contacts": {"contacts.csv", "summary.txt"},
    "csv-stats": {"measurements.stats.csv"},
    "mandelbrot": {"mandelbrot.png"},
}
"""Example -> what it leaves, the content of which tests/docs/test_examples.py looks at."""


async def test_each_example_runs_as_it_is_shipped(system: DevProgram, tmp_path):
    there = {path.parent.name for path in EXAMPLES.glob("*/run.sh")}
    assert there == {*LEFT, "fails-instructively"}
    async with Client(system.url, user="ada") as client:
        for name, files in LEFT.items():
            accepted = await client.submit(EXAMPLES / name, service="example")
            job = await client.wait(accepted.id, timeout=60)
            assert job.status is JobState.COMPLETED, (job.message, job.stderr_tail)
            done = await client.download(job.id, tmp_path)
            archive = zipfile.ZipFile(done.path)
            assert archive.testzip() is None
            assert {*archive.namelist()} >= {*files, "stdout.log", "stderr.log"}
            receipt = json.loads(archive.read("ferryman.json"))
            shown = receipt["job"], receipt["exit_code"], receipt["skipped"]
            assert shown == (job.id, 0, [])
            assert receipt["bundle"]["digest"]
            assert receipt["usage"]["wall_s"] > 0


def test_load_says_how_long_its_jobs_took_and_deletes_them(system):
    words = ("-P", EXAMPLES / "load.py", "--service=example", "--jobs=3")
    done = ended(sys.executable, *words, env=environment() | {"FERRYMAN_URL": system.url})
    assert "3 jobs in" in done.stdout
    assert "3 Completed" in done.stdout
    with SyncClient(system.url) as client:
        tag = done.stdout.splitlines()[0].removeprefix("tag: ")
        assert list(client.jobs(tag=tag)) == []
