"""What may be submitted; it is checked before a byte is sent."""

from __future__ import annotations

import os
import socket
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferryman.bundle import Files, gather
from ferryman.errors import BadBundle
from shared.files.names import UnsafeName, safe_path
from tests.kit.each import each


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "bundle"
    (root / "data" / "deep").mkdir(parents=True)
    (root / "run.sh").write_text("echo hi\n")
    (root / "data" / "in.pdb").write_text("ATOM\n")
    (root / "data" / "deep" / "x").write_bytes(b"")
    return root


def names(*paths: Path) -> list[str]:
    return [part.name for part in gather(list(paths))]


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


def test_a_folder_may_be_named_with_a_slash_or_as_the_current_one(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert [part.name for part in gather(".")] == [part.name for part in gather(f"{folder}/")]


def test_a_mapping_says_the_names_and_names_are_composed(folder):
    parts = gather({"run.sh": b"true\n", "e\u0301/model.pdb": folder / "data" / "in.pdb"})
    assert [(part.name, part.size) for part in parts] == [("run.sh", 5), ("\u00e9/model.pdb", 5)]


def test_two_files_of_one_base_name_are_refused(folder):
    (folder / "run").mkdir()
    (folder / "run" / "in.pdb").touch()
    with pytest.raises(BadBundle, match=r"in\.pdb.*twice"):
        names(folder / "run.sh", folder / "data" / "in.pdb", folder / "run" / "in.pdb")


def test_a_file_where_a_folder_is_needed_is_refused():
    with pytest.raises(BadBundle, match=r"“in” is a file, so “in/x” cannot be in it"):
        gather({"run.sh": b"", "in": b"", "in/x": b""})


def test_without_the_entry_script_the_error_names_what_there_is(folder):
    with pytest.raises(BadBundle, match=r"no run\.sh: .* only “in\.pdb”"):
        names(folder / "data" / "in.pdb")


def test_nothing_is_refused(tmp_path):
    nothing: tuple[Files, ...] = (tmp_path, {}, [])
    for files in nothing:
        with pytest.raises(BadBundle, match="nothing to send"):
            gather(files)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(BadBundle, match=r"gone\.txt: No such file"):
        gather(tmp_path / "gone.txt")


UNSAFE = ["../run.sh", "/run.sh", "a\\b", "a\nb", "a//b", "a/", "", ".", "a/./b", "a/..", "\udc80"]


@each("name", UNSAFE)
def test_unsafe_names_are_refused(name):
    with pytest.raises(BadBundle, match="cannot be in a bundle"):
        gather({"run.sh": b"", name: b""})


@given(st.text("ab.:/\\\n\x7f\udc80é ", max_size=6))
def test_a_name_that_the_client_refuses_no_server_takes(name):
    try:
        gather({"run.sh": b"", name: b""})
    except BadBundle:
        with pytest.raises(UnsafeName):
            safe_path(name)


@each("name", ["chr1:1000-2000.bed", "aux.h", "RUN.sh", "...", ".x", "a..b"])
def test_names_that_only_other_systems_mind_are_left_to_the_server(name):
    assert name in {part.name for part in gather({"run.sh": b"", name: b""})}


def test_pipes_and_sockets_are_refused_without_opening_them(folder):
    os.mkfifo(folder / "pipe")
    with pytest.raises(BadBundle, match="pipe is a named pipe"):
        gather(folder)
    (folder / "pipe").unlink()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(folder / "s"))
        with pytest.raises(BadBundle, match="s is a socket"):
            gather(folder)


def test_a_link_to_a_file_inside_is_sent_as_that_file(folder):
    (folder / "again.pdb").symlink_to("data/in.pdb")
    part = next(part for part in gather(folder) if part.name == "again.pdb")
    assert part.size == 5


def test_links_out_to_folders_and_to_nowhere_are_refused(folder, tmp_path):
    (tmp_path / "secret").write_text("s")
    link = folder / "link"
    for target, why in [
        ("../secret", "out of the folder"),
        ("data", "folder"),
        ("gone", "nowhere"),
    ]:
        link.symlink_to(target)
        with pytest.raises(BadBundle, match=f"link is a symbolic link .*{why}"):
            gather(folder)
        link.unlink()


def test_a_link_in_a_circle_is_refused(folder):
    (folder / "a").symlink_to("b")
    (folder / "b").symlink_to("a")
    with pytest.raises(BadBundle, match="nowhere"):
        gather(folder)


@each("name", ["b.zip", "b.tar", "b.tar.gz", "B.TGZ"])
def test_one_archive_is_sent_as_it_is(tmp_path, name):
    path = tmp_path / name
    if name.endswith("zip"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("top/run.sh", "true\n")
    else:
        path.write_bytes(b"the server looks into it")
    (part,) = gather(path)
    assert (part.field, part.name, part.source) == ("bundle", name, path)


def test_a_zip_without_the_script_or_none_at_all_is_refused(tmp_path):
    path = tmp_path / "b.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/run.sh", "")
        archive.writestr("b/x", "")
    with pytest.raises(BadBundle, match=r"no run\.sh"):
        gather(path)
    path.write_bytes(b"no zip")
    with pytest.raises(BadBundle, match="not a ZIP"):
        gather(path)


def test_an_archive_beside_a_script_is_a_file_of_the_bundle(folder, tmp_path):
    (tmp_path / "data.zip").write_bytes(b"opaque")
    parts = gather([folder / "run.sh", tmp_path / "data.zip"])
    assert [(part.field, part.name) for part in parts] == [("file", "data.zip"), ("file", "run.sh")]
