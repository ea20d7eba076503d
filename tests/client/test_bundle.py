"""What may be submitted, which is checked before a byte is sent, and what of a folder is left out;
what patterns mean: tests/formats/test_names.py.
"""

import io
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferryman.bundle import Files, gather
from ferryman.errors import BadBundle
from shared.files.names import UnsafeName, safe_path
from tests.client.fake_server import accepted
from tests.kit.each import each
from tests.kit.raw_archives import zipped


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "bundle"
    (root / "data" / "deep").mkdir(parents=True)
    (root / "run.sh").write_text("echo hi\n")
    (root / "data" / "in.pdb").write_text("ATOM\n")
    (root / "data" / "deep" / "x").write_bytes(b"")
    return root


@each(
    ("chosen", "sent"),
    [
        ([""], {"data/deep/x": 0, "data/in.pdb": 5, "run.sh": 8}),
        (["run.sh", "data/in.pdb"], {"in.pdb": 5, "run.sh": 8}),
        (["run.sh", "data"], {"deep/x": 0, "in.pdb": 5, "run.sh": 8}),
        ([".."], {"bundle/data/deep/x": 0, "bundle/data/in.pdb": 5, "bundle/run.sh": 8}),
    ],
)
def test_files_go_by_their_base_names_and_folders_stand_for_what_is_in_them(folder, chosen, sent):
    """One top folder that holds the script will do."""
    parts = gather([folder / one if one != ".." else folder.parent for one in chosen])
    assert {part.name: part.size for part in parts} == sent
    assert [part.name for part in parts] == sorted(sent)


def test_a_folder_may_be_the_current_one_and_a_mapping_says_names(folder, monkeypatch):
    (folder / "again.pdb").symlink_to("data/in.pdb")
    monkeypatch.chdir(folder)
    sizes = {part.name: part.size for part in gather(".")}
    assert sizes == {part.name: part.size for part in gather(f"{folder}/")}
    assert sizes["again.pdb"] == 5
    parts = gather({"run.sh": b"true\n", "e\u0301/model.pdb": folder / "data" / "in.pdb"})
    assert [(part.name, part.size) for part in parts] == [("run.sh", 5), ("\u00e9/model.pdb", 5)]


def test_what_makes_no_bundle_is_refused_and_named(folder, tmp_path):
    twice = tmp_path / "run" / "in.pdb"
    twice.parent.mkdir()
    twice.touch()
    opened: Any = io.BytesIO(b"text")
    refused: list[tuple[Files, str]] = [
        ([folder / "run.sh", folder / "data" / "in.pdb", twice], r"in\.pdb.*twice"),
        ({"run.sh": b"", "in": b"", "in/x": b""}, "“in” is a file, so “in/x” cannot be in it"),
        (folder / "data" / "in.pdb", r"no run\.sh: .* only “in\.pdb”"),
        (folder / "gone.txt", r"gone\.txt: No such file"),
        (folder / "data" / "deep" / "x" / "y", "Not a directory"),
        ({"run.sh": b"x", "in.txt": opened}, r"in\.txt.*what its read\(\) gives"),
        ({}, "nothing to send"),
        ([], "nothing to send"),
    ]
    for files, why in refused:
        with pytest.raises(BadBundle, match=why):
            gather(files)


@each(
    ("kind", "why"),
    [
        ("pipe", "a named pipe"),
        ("socket", "a socket"),
        ("../secret", "a symbolic link .*out of the folder"),
        ("data", "a symbolic link .*folder"),
        ("gone", "a symbolic link .*nowhere"),
        ("thing", "a symbolic link .*nowhere"),
    ],
)
def test_what_is_no_file_and_links_out_or_in_a_circle_are_refused_unopened(folder, kind, why):
    (folder.parent / "secret").write_text("s")
    thing = folder / "thing"
    thing.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(thing)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(str(thing))
    else:
        thing.symlink_to(kind)
    with pytest.raises(BadBundle, match=f"thing is {why}"):
        gather(folder)


def test_unsafe_names_are_refused_and_what_only_other_systems_mind_is_left_to_the_server():
    unsafe = ("../run.sh", "/run.sh", "a\\b", "a\nb", "a//b", "a/", "", ".", "a/./b", "a/..")
    for name in (*unsafe, "\udc80"):
        with pytest.raises(BadBundle, match="cannot be in a bundle"):
            gather({"run.sh": b"", name: b""})
    left = {"chr1:1000-2000.bed", "aux.h", "RUN.sh", "...", ".x", "a..b"}
    assert {part.name for part in gather({"run.sh": b"", **dict.fromkeys(left, b"")})} > left


@given(st.text("ab.:/\\\n\x7f\udc80é ", max_size=6))
def test_a_name_that_the_client_refuses_no_server_takes(name):
    try:
        gather({"run.sh": b"", name: b""})
    except BadBundle:
        with pytest.raises(UnsafeName):
            safe_path(name)


def test_one_archive_is_sent_as_it_is_and_looked_into_where_it_is_a_zip(folder, tmp_path):
    archives = [tmp_path / name for name in ("b.tar", "b.tar.gz", "B.TGZ")]
    for archive in archives:
        archive.write_bytes(b"the server looks into it")
    path = tmp_path / "b.zip"
    path.write_bytes(zipped({"top/run.sh": b""}))
    for archive in (*archives, path):
        (part,) = gather(archive)
        assert (part.field, part.name, part.source) == ("bundle", archive.name, archive)
    parts = gather([folder / "run.sh", path])
    assert [(part.field, part.name) for part in parts] == [("file", "b.zip"), ("file", "run.sh")]
    path.write_bytes(zipped({"a/run.sh": b"", "b/x": b""}))
    with pytest.raises(BadBundle, match=r"no run\.sh"):
        gather(path)
    path.write_bytes(b"no zip")
    with pytest.raises(BadBundle, match="not a ZIP"):
        gather(path)


SIZES = {
    "run.sh": 8,
    ".git/config": 0,
    "sub/.git": 3,
    "job-3.zip": 0,
    "job-3-attempt-2-new.zip": 0,
    "sub/job-4-partial.zip": 0,
    "sub/job-4-children.zip": 0,
    "result/ferryman.json": 0,
    "result/out.csv": 0,
    "sub/data.csv": 4,
    "sub/job-x.zip": 0,
    "mine/ferryman.json": 0,
}
MINE = ["mine/ferryman.json", "run.sh", "sub/data.csv", "sub/job-x.zip"]


@pytest.fixture
def crowded(bundle: Path) -> Path:
    """A bundle among what gathers around one."""
    for name, size in SIZES.items():
        (bundle / name).parent.mkdir(exist_ok=True)
        (bundle / name).write_bytes(bytes(size))
    (bundle / "result/ferryman.json").write_text('{"format": 1, "job": 3, "attempt": 1}')
    (bundle / "mine/ferryman.json").write_text('{"settings": "of mine"}')
    (bundle / ".git/broken").symlink_to("/nowhere/at/all")
    return bundle


async def test_version_control_and_former_results_are_left_out(fake, ferryman, crowded) -> None:
    fake.on("POST /upload", accepted())
    words = ("submit", crowded, "-s", "e", "-u", "a", "--url", fake.url)
    said, quiet = await ferryman(*words), await ferryman(*words, "-q")
    for upload in fake.uploads:
        assert [name for _, name, _ in upload.files] == MINE
    assert said.err.splitlines()[:-1] == [
        "sending 4 files (35 B)",
        "left out: .git/, job-3-attempt-2-new.zip, job-3.zip, result/, sub/.git and 2 more "
        "(--everything sends them)",
    ]
    assert (quiet.code, quiet.err) == (0, "")
    (crowded / ".git/broken").unlink()
    said = await ferryman(*words, "--everything")
    assert [name for _, name, _ in fake.uploads[-1].files] == sorted(SIZES)
    assert said.err.splitlines()[:-1] == ["sending 12 files (75 B)"]


async def test_a_dry_run_prints_what_is_chosen_and_sends_nothing(ferryman, crowded) -> None:
    async def chosen(*words: object, ignored: str = "") -> tuple[list[str], list[str]]:
        (crowded / ".ferrymanignore").write_text(ignored)
        options = ("-s", "e", "-u", "a", "--dry-run", "--url", "http://127.0.0.1:1")
        said = await ferryman("submit", *words, *options, "--json")
        assert (said.code, said.err) == (0, "")
        document = json.loads(said.out)
        plain = await ferryman("submit", *words, *options)
        names = [one["name"] for one in document["files"]]
        lines = [f"{one['size']}\t{one['name']}" for one in document["files"]]
        assert plain.out.splitlines() == lines
        end = f"{len(names)} file{'s' * (len(names) > 1)} ({document['size']} B) would be sent"
        assert plain.err.splitlines()[-1] == f"{end}; nothing was"
        return names, document["left_out"]

    names, left_out = await chosen(crowded)
    assert (names, left_out[0]) == (MINE, ".git/")
    ignored = "# results\n!job-3.zip\n*.csv\n"
    names, _ = await chosen(crowded, "-x", "mine/", "--exclude", "sub/job-x.zip", ignored=ignored)
    assert names == ["job-3.zip", "run.sh"]
    names, _ = await chosen(crowded, "-x", "!data.csv", ignored=ignored)
    assert {"sub/data.csv", "job-3.zip"} < {*names} < {*SIZES}
    named = (crowded / "run.sh", crowded / "job-3.zip", crowded / "sub")
    assert (await chosen(*named))[0] == ["data.csv", "job-3.zip", "job-x.zip", "run.sh"]
    names, left_out = await chosen(*named, "-x", "job-*.zip")
    assert names == ["data.csv", "run.sh"]
    assert left_out[:3] == ["job-3.zip", ".git", "job-4-children.zip"]
