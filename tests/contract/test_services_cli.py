"""``ferryman services`` and the SDK's methods behind it, against a real server."""

from __future__ import annotations

import pytest

from ferryman import Client, NotFound
from tests.kit import command_line
from tests.kit.fake_agent import FakeAgent, serving


async def test_a_service_is_listed_paused_and_resumed(tmp_path) -> None:
    async with serving(tmp_path, FakeAgent("north", "abc")) as caller:

        async def ferryman(*words: str) -> tuple[int, str, str]:
            return await command_line.ferryman("--url", caller.url, "services", *words)

        code, out, err = await ferryman("pause", "my_service", "--message", "the disk is changed")
        assert (code, out, err) == (0, "", "service my_service is paused\n")
        job_id = await caller.upload()
        code, out, err = await ferryman("list")
        assert (code, err) == (0, "")
        (line,) = [one for one in out.splitlines() if one.startswith("my_service\t")]
        assert line.split("\t")[1:4:2] == ["paused", "1"]
        assert line.endswith("\tthe disk is changed")
        assert (await caller.job(job_id, until="Queued"))["queue"]["code"] == "paused"

        assert (await ferryman("resume", "my_service"))[2] == "service my_service is not paused\n"
        await caller.job(job_id, until="Completed")
        async with Client(caller.url) as client:
            assert not any(one.paused for one in await client.services())
            with pytest.raises(NotFound):
                await client.change_service("nobody", "pause")
