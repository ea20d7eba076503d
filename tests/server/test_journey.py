"""A job's way over HTTP, on a warm server and agent."""

from __future__ import annotations

import io
import zipfile

import pytest

from tests.kit.fake_sandbox import FakeProcess
from tests.kit.warm import Place

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_bundle_comes_back_as_a_zip_of_what_its_script_left(place: Place) -> None:
    def script(process: FakeProcess) -> None:
        process.log(stdout=b"hello\n")
        process.write("answer.txt", process.read("data.txt") * 2)
        process.finish()

    place.does(script)
    files = {"run.sh": b"cat data.txt data.txt > answer.txt\n", "data.txt": b"42"}
    job = await place.job(await place.upload(files))
    assert (job["status"], job["exit_code"], job["attempt"]) == ("Completed", 0, 1)
    status, kind, result = await place.get(f"/download/{job['id']}")
    assert (status, kind) == (200, "application/zip")
    with zipfile.ZipFile(io.BytesIO(result)) as archive:
        assert archive.read("answer.txt") == b"4242"
        assert archive.read("data.txt") == b"42"


async def test_what_is_left_running_is_cancelled_after_the_test(place: Place) -> None:
    place.does(None)
    job_id = await place.upload()
    process = await place.process(job_id)
    await place.end()
    assert (await place.job(job_id))["status"] == "Cancelled"
    assert not process.alive
