"""``ferryman schedule`` and the SDK's methods behind it, against a real server."""

from __future__ import annotations

import pytest

from ferryman import BadArgument, Client, Conflict, NotFound, Refused
from tests.kit import command_line
from tests.kit.fake_agent import FakeAgent, serving


async def test_a_schedule_is_added_listed_and_deleted(tmp_path) -> None:
    (tmp_path / "run.sh").write_text("echo hi\n")
    async with serving(tmp_path, FakeAgent("north", "abc")) as caller:

        async def ferryman(*words: str) -> tuple[int, str, str]:
            return await command_line.ferryman("--url", caller.url, *words)

        what = ("--service", "my_service", "--name", "nightly", "--user", "ann", "--tag", "n")
        added = await ferryman(
            *("schedule", "add", str(tmp_path / "run.sh"), "--cron", "0 3 * * *"), *what
        )
        assert added[:2] == (0, "1\n")
        assert added[2].splitlines()[1].startswith("its first job comes at ")

        again = await ferryman(
            *("schedule", "add", str(tmp_path / "run.sh"), "--cron", "0 3 * * *"), *what
        )
        assert again[0] == 1  # as with other conflicts; 65 is for a bundle that is wrong
        async with Client(caller.url, user="ann") as client:
            with pytest.raises(Conflict, match="nightly"):
                await client.add_schedule(
                    {"run.sh": b"x"}, cron="0 3 * * *", service="my_service", name="nightly"
                )

        code, out, err = await ferryman("schedule", "list")
        assert (code, err) == (0, "")
        assert out.splitlines()[1].split("\t")[:4] == ["1", "nightly", "0 3 * * *", "UTC"]
        assert (await ferryman("schedule", "delete", "1"))[2] == "schedule 1 is deleted\n"
        async with Client(caller.url, user="ann") as client:
            assert [one async for one in client.schedules()] == []
            with pytest.raises(NotFound):
                await client.delete_schedule(1)
            with pytest.raises((BadArgument, Refused), match="cron"):
                await client.add_schedule(
                    {"run.sh": b"x"}, cron="never", service="my_service", name="n"
                )
