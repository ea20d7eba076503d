"""What of a folder is left out of a bundle; what patterns mean: tests/formats/test_patterns.py."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from tests.client.fake_server import FakeServer, accepted


@pytest.fixture
def folder(bundle: Path) -> Path:
    """A bundle among what gathers around one."""
    files = {
        ".git/config": "",
        "sub/.git": "gitdir: elsewhere",
        "job-3.zip": "",
        "job-3-attempt-2.zip": "",
        "sub/job-4-partial.zip": "",
        "sub/job-4-children.zip": "",
        "result/ferryman.json": '{"format": 1, "job": 3, "attempt": 1}',
        "result/out.csv": "",
        "sub/data.csv": "1,2\n",
        "sub/job-x.zip": "",
        "mine/ferryman.json": '{"settings": "of mine"}',
    }
    for name, text in files.items():
        path = bundle / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (bundle / ".git/broken").symlink_to("/nowhere/at/all")
    return bundle


async def sent(ferryman, *words: object) -> tuple[list[str], list[str]]:
    """Names that arrived, and what was said before."""
    fake = FakeServer().on("POST /upload", accepted())
    async with fake.serving():
        done = await ferryman("submit", *words, "-s", "e", "-u", "a", "--url", fake.url)
    assert done.code == 0, done.err
    return [name for _, name, _ in fake.uploads[0].files], done.err.splitlines()[:-1]


async def test_version_control_and_former_results_are_left_out_and_said_so(
    ferryman, folder
) -> None:
    names, said = await sent(ferryman, folder)
    assert names == ["mine/ferryman.json", "run.sh", "sub/data.csv", "sub/job-x.zip"]
    assert said == [
        "sending 4 files (35 B)",
        "left out: .git/, job-3-attempt-2.zip, job-3.zip, result/, sub/.git and 2 more "
        "(--everything sends them)",
    ]
    (folder / ".git/broken").unlink()
    names, said = await sent(ferryman, folder, "--everything")
    assert len(names) == 12
    assert said == ["sending 12 files (89 B)"]


async def test_an_ignore_file_and_exclude_choose(ferryman, folder) -> None:
    (folder / ".ferrymanignore").write_text("# results\n!job-3.zip\n*.csv\n")
    names, _ = await sent(ferryman, folder, "-x", "mine/", "--exclude", "sub/job-x.zip")
    assert names == ["job-3.zip", "run.sh"]
    names, _ = await sent(ferryman, folder, "-x", "!data.csv")
    assert "sub/data.csv" in names
    assert ".ferrymanignore" not in names


async def test_what_is_named_is_sent_unless_it_is_excluded(ferryman, folder) -> None:
    words = (folder / "run.sh", folder / "job-3.zip", folder / "sub")
    names, _ = await sent(ferryman, *words)
    assert names == ["data.csv", "job-3.zip", "job-x.zip", "run.sh"]
    names, said = await sent(ferryman, *words, "-x", "job-*.zip")
    assert names == ["data.csv", "run.sh"]
    assert "job-3.zip, .git, job-4-children.zip" in said[1]


async def test_an_archive_is_sent_as_it_is(ferryman, folder, tmp_path) -> None:
    archive = tmp_path / "job-9.zip"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("run.sh", "echo hi\n")
    names, said = await sent(ferryman, archive)
    assert names == ["job-9.zip"]
    assert said[0].startswith("sending job-9.zip (")


async def test_a_dry_run_prints_names_and_sends_nothing(ferryman, folder) -> None:
    words = ("submit", folder, "-s", "e", "-u", "a", "--dry-run", "--url", "http://127.0.0.1:1")
    plain, parsed = await ferryman(*words), await ferryman(*words, "--json")
    assert (plain.code, parsed.code) == (0, 0)
    assert plain.out.splitlines()[1:3] == ["8\trun.sh", "4\tsub/data.csv"]
    assert plain.err.splitlines()[-1] == "4 files (35 B) would be sent; nothing was"
    document = json.loads(parsed.out)
    assert document["size"] == 35
    assert {"name": "run.sh", "size": 8} in document["files"]
    assert ".git/" in document["left_out"]
    assert parsed.err == ""


async def test_a_quiet_submit_says_nothing_of_it(ferryman, folder) -> None:
    names, said = await sent(ferryman, folder, "-q")
    assert (len(names), said) == (4, [])
