"""Dead letters, and jobs that are deleted, over HTTP, by the SDK and the command line."""

from __future__ import annotations

from typing import Any

import pytest

from ferryman import Client, NotFound
from tests.kit.command_line import ferryman
from tests.kit.warm import Place

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_dead_letter_is_listed_retried_and_dropped(place: Place) -> None:
    await place.configure(dead_letter=True)
    place.does(lambda process: process.finish(3))
    jobs = [await place.upload(tags="a,b"), await place.upload()]
    for job_id in jobs:
        assert (await place.job(job_id))["dead_letter"] is True

    async def listed(**query: str) -> list[int]:
        page = await place.api("GET", "/jobs", dead_letter="true", user=place.user, **query)
        return [item["id"] for item in page["items"]]

    assert await listed() == jobs[::-1]
    assert await listed(tag="a", reason="exit_code", service=place.service) == jobs[:1]
    assert await listed(reason="timeout") == await listed(since="2999-01-01T00:00:00Z") == []
    place.does(lambda process: process.finish())
    job = await place.api("POST", f"/jobs/{jobs[0]}/retry")
    assert (job["run"], job["dead_letter"], job["ended"]) == (2, False, False)
    done = await place.job(jobs[0])
    assert [one["status"] for one in done["attempts"]] == ["Failed", "Completed"]
    assert (await place.ask("DELETE", f"/api/v1/jobs/{jobs[1]}"))[0] == 204
    assert await listed() == []


async def test_a_delete_cancels_and_keeps_what_has_not_ended_and_deletes_what_has(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.stages.cancel.PATIENCE_S", 0.05)
    place.does(None)
    url = ("--url", place.url)
    needed, waiting = await place.upload(), await place.upload(not_before="in 1h")
    child = await place.upload(after=str(needed))
    process = await place.process(needed)
    monkeypatch.setattr(place.warm.sandbox, "obeys_sigterm", False)

    async def delete(job_id: int) -> tuple[int, Any]:
        return await place.ask("DELETE", f"/api/v1/jobs/{job_id}")

    for _ in range(2):  # it is not deleted when it dies; until then a second request cancels it too
        status, job = await delete(needed)
        assert (status, job["ended"]) == (202, False)
        assert "will be terminated" in job["message"]
    process.finish()
    assert (await place.job(needed))["status"] == "Cancelled"
    assert (await place.job(child))["reason"] == "dependency_failed"
    assert await delete(needed) == (204, "")

    async with Client(place.url) as client:
        kept = await client.delete(waiting)
        assert kept is not None
        assert (kept.status, kept.message) == ("Cancelled", "cancelled before it was started")
        assert (await client.status(waiting)).ended
        assert await client.delete(waiting) is None
        with pytest.raises(NotFound):
            await client.status(waiting)
    other = await place.upload(not_before="in 1h")
    for said in ("had not ended: it is ", "is deleted"):
        code, _, err = await ferryman("delete", str(other), *url)
        assert (code, err.startswith(f"job {other} {said}")) == (0, True), err
    await place.upload(not_before="in 1h")
    _, _, err = await ferryman("delete", "--all", "--yes", "--user", place.user, *url)
    assert "had not ended: it is being cancelled, and kept" in err
