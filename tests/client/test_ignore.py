"""What of a folder is left out of a bundle."""

from __future__ import annotations

import json
import subprocess
import time
import zipfile
from pathlib import Path, PurePosixPath

import pytest

from ferryman.errors import BadArgument, BadBundle
from ferryman.ignore import Ignore, Pattern, ignore_for
from tests.client.fake_server import FakeServer, accepted

NAMES = (
    *("run.sh", "a.o", "src/a.o", "src/a.c", "src/build/x", "build/y", "build/keep/z", "a b"),
    *("src/deep/er/a.o", "#x", "!y", "log1", "log10", "x-y", "data/in.txt", "src/data/in.txt"),
)
"""All are files."""


def ignored(patterns: list[str]) -> set[str]:
    """The names that are left out, those in folders that are left out, too."""
    parsed = [one for text in patterns if (one := Pattern.parse(text, "here"))]
    ignore = Ignore(parsed, usual=False)

    def out(name: PurePosixPath) -> bool:
        folders = reversed(name.parents[:-1])
        return any(ignore(str(one), Path(), True) for one in folders) or ignore(
            str(name), Path(), False
        )

    return {name for name in NAMES if out(PurePosixPath(name))}


@pytest.mark.parametrize(
    "patterns",
    [
        ["*.o"],
        ["/*.o"],
        ["src/*.o"],
        ["src/**/*.o"],
        ["**/data"],
        ["data/"],
        ["a.o/"],
        ["/build"],
        ["build/"],
        ["build/**"],
        ["src/build"],
        ["log?"],
        ["log[0-9]"],
        ["log[!2-9]"],
        ["x[-_]y"],
        ["*.o", "!src/a.o"],
        ["*", "!run.sh"],
        ["# comment", "", "   ", "a b"],
        ["\\#x", "\\!y"],
        ["src/", "!src/a.c"],
        ["in.txt   "],
        ["src/*/in.txt"],
        ["src/**/**/in.txt"],
        ["**"],
    ],
    ids=" ".join,
)
def test_patterns_mean_what_they_mean_to_git(tmp_path, patterns) -> None:
    run = {"cwd": tmp_path, "check": True, "capture_output": True, "text": True}
    subprocess.run(["git", "init", "-q"], **run)
    for name in NAMES:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / ".git/info/exclude").write_text("\n".join(patterns) + "\n")
    kept = subprocess.run(
        ["git", "-c", "core.excludesFile=", "ls-files", "-z", "--others", "--exclude-standard"],
        **run,
    )
    assert ignored(patterns) == set(NAMES) - set(kept.stdout.split("\0"))


@pytest.mark.parametrize("text", ["/", "!"])
def test_a_pattern_that_means_nothing_is_named(text) -> None:
    with pytest.raises(BadArgument, match=r"^\.ferrymanignore, line 3: "):
        Pattern.parse(text, ".ferrymanignore, line 3")


def test_an_ignore_file_that_cannot_be_read_is_named(tmp_path) -> None:
    (tmp_path / ".ferrymanignore").write_bytes(b"\xff\n")
    with pytest.raises(BadBundle, match="no text in UTF-8"):
        ignore_for(tmp_path, (), everything=False)
    assert ignore_for(tmp_path, (), everything=True).left_out == []


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


def test_no_pattern_takes_long() -> None:
    path = "a/" * 40 + "a" * 200
    start = time.process_time()
    for text in ("*a" * 120 + "b", "**/a/" * 60 + "*a*a*b", "**/" * 200 + "x", "*a*/" * 30 + "b"):
        pattern = Pattern.parse(text, "")
        assert pattern is not None
        assert not pattern.fits(path)
    assert time.process_time() - start < 2


@pytest.mark.parametrize(
    ("text", "fits", "others"),
    [
        ("**/a*b*c/**", ["axbc/x", "q/abcbc/x/y"], ["abc", "q/abx/x"]),
        ("a/**/b/**/c", ["a/b/c", "a/x/b/b/y/c"], ["a/c", "a/b/x", "xa/b/c"]),
        ("a/**/**", ["a/b", "a/b/c"], ["b/a"]),
        ("**/**", ["a", "a/b"], []),
        ("*[*]*", ["a*b"], ["ab"]),
    ],
)
def test_patterns_with_several_wildcards_fit(text: str, fits: list[str], others: list[str]) -> None:
    pattern = Pattern.parse(text, "")
    assert pattern is not None
    assert [one for one in fits if not pattern.fits(one)] == []
    assert [one for one in others if pattern.fits(one)] == []
