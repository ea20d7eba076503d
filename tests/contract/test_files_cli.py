"""``ferryman files`` and ``ferryman download ID FILE``, and the SDK behind them, against a real
server.
"""

from __future__ import annotations

import io
import json

import pytest

from ferryman import Client, NotFound
from tests.contract.test_files_http import FILES, Setting, ended, zipped
from tests.kit.command_line import ferryman_bytes

ODD = {"a/odd 50%?#&é.txt": b"odd", "b/odd 50%?#&é.txt": b"other"}


async def ferryman(here: Setting, *words: str, cwd: str = "") -> tuple[int, bytes, str]:
    code, out, err = await ferryman_bytes("--url", here.caller.url, *words, cwd=cwd)
    return code, out, err


@pytest.fixture
async def here(tmp_path):
    async with ended(tmp_path, zipped(FILES | ODD)) as found:
        yield found


async def test_the_files_of_a_job_are_listed(here) -> None:
    code, out, err = await ferryman(here, "files", "1")
    assert (code, err) == (0, "")
    heads, *lines = [line.split("\t") for line in out.decode().splitlines()]
    assert heads == ["PATH", "SIZE", "TYPE", "CHANGED"]
    assert [line[0] for line in lines] == [*FILES, *ODD, "ferryman.json"]
    assert lines[0][1:3] == [str(len(FILES["out/table.csv"])), "text/csv"]
    _, out, _ = await ferryman(here, "files", "1", "--json", "--attempt", "1")
    assert json.loads(out)[0]["path"] == "out/table.csv"


async def test_one_file_is_downloaded_under_its_own_name(here, tmp_path) -> None:
    code, out, err = await ferryman(here, "download", "1", "out/plot.png", cwd=str(tmp_path))
    assert (code, out) == (0, b"plot.png\n")
    assert err.startswith("saved plot.png (")
    assert (tmp_path / "plot.png").read_bytes() == FILES["out/plot.png"]
    for path, content in ODD.items():
        code, out, _ = await ferryman(here, "download", "1", path, "-o", "-")
        assert (code, out) == (0, content)


async def test_several_files_are_downloaded_into_a_folder(here, tmp_path) -> None:
    words = ("download", "1", "out/table.csv", "empty", "-o", str(tmp_path / "new"), "--json")
    code, out, _ = await ferryman(here, *words)
    assert code == 0
    assert [one["size"] for one in json.loads(out)] == [len(FILES["out/table.csv"]), 0]
    assert (tmp_path / "new" / "table.csv").read_bytes() == FILES["out/table.csv"]
    assert (tmp_path / "new" / "empty").read_bytes() == b""


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("table.csv",), 1, "out/table.csv"),
        (("nowhere",), 1, "ferryman"),
        (("../nowhere",), 1, "its files: ferryman files 1"),
        (("18",), 1, "one job at a time: ferryman download 18"),
        (tuple(ODD), 2, "one name"),
        (("empty", "stdout.log", "-o", "-"), 2, "one file"),
        (("empty", "--partial"), 2, "whole ZIP"),
    ],
)
async def test_what_cannot_be_fetched_says_what_to_do(here, tmp_path, words, code, said) -> None:
    found, out, err = await ferryman(here, "download", "1", *words, cwd=str(tmp_path))
    assert (found, out) == (code, b"")
    assert said in err
    assert "/api/" not in err
    assert [one.name for one in tmp_path.iterdir() if one.is_file()] in ([], ["ferryman.toml"])


async def test_the_sdk_reads_single_files(here) -> None:
    async with Client(here.caller.url) as client:
        assert [one.path async for one in client.files(1)] == [*FILES, *ODD, "ferryman.json"]
        for path, content in (FILES | ODD).items():
            to = io.BytesIO()
            done = await client.fetch(1, path, to)
            assert (to.getvalue() == content, done.size) == (True, len(content))
        with pytest.raises(NotFound):
            await client.fetch(1, "nowhere", io.BytesIO())
