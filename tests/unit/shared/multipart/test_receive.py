from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.files.bundles import reader
from shared.multipart.parser import FormLimits, FormRefused
from shared.multipart.receive import receive
from shared.multipart.sinks import RawSink
from tests.kit.raw_archives import (
    BOUNDARY,
    FORM,
    file_part,
    form_of,
    in_pieces,
    part,
    tarred,
    text_part,
    trees,
    unpacked,
    without_folder,
    write_bundle,
    zipped,
)

LIMITS = FormLimits(max_bytes=256 << 20)
HELLO = {"run.sh": b"echo hello\n", "data/in.txt": b"1 2 3\n"}


def parts_of(files) -> list[bytes]:
    return [file_part(name, content) for name, content in files.items()]


# ---------------------------------------------------------------------------- what comes out


@given(files=trees(), piece=st.integers(1, 700), declared=st.booleans())
async def test_what_is_sent_is_what_is_unpacked_however_it_is_cut(
    tmp_path_factory, files, piece, declared
):
    folder = tmp_path_factory.mktemp("form")
    delimiter = b"\r\n--" + BOUNDARY.encode()
    files = {name: content.replace(delimiter, b"-") for name, content in files.items()}
    body = form_of(text_part("user_id", "7"), *parts_of(files), text_part("service", "é"))
    received = await receive(
        in_pieces(body, piece),
        FORM,
        len(body) if declared else None,
        staging=folder / "staged",
        limits=LIMITS,
    )
    assert received.fields == {"user_id": "7", "service": "é"}
    assert received.bundle == write_bundle(folder / "direct", files)
    assert unpacked(folder / "staged", folder / "out") == without_folder(files)


async def test_a_delimiter_is_found_wherever_chunks_are_cut(tmp_path):
    almost = f"\r\n--{BOUNDARY[:-1]}".encode()
    files = {"run.sh": b"a" * 300, "data": b"b" * 90 + almost + b"\r" + almost * 2 + b"c" * 99}
    body = form_of(*(file_part(name, content) for name, content in files.items()))
    first = body.index(b"b" * 90) + 50
    for cut in range(first, len(body)):

        async def chunks(cut: int = cut):
            for piece in (body[: first - 10], body[first - 10 : cut], body[cut:]):
                yield piece

        staging = tmp_path / f"s{cut}"
        await receive(chunks(), FORM, len(body), staging=staging, limits=LIMITS)
        assert unpacked(staging, tmp_path / f"out{cut}") == files


@given(
    names=st.lists(st.text(max_size=12), min_size=1, max_size=4),
    junk=st.binary(max_size=40),
    piece=st.integers(1, 300),
)
async def test_any_names_and_bytes_are_stored_whole_or_refused_with_nothing_left(
    tmp_path_factory, names, junk, piece
):
    folder = tmp_path_factory.mktemp("junk")
    sent = [name.replace('"', "%22").encode("utf-8", "replace") for name in names]
    files = [part(b'name="f"; filename="%s"' % name, junk) for name in sent]
    body = form_of(file_part("run.sh"), *files) + junk
    try:
        received = await receive(
            in_pieces(body, piece), FORM, None, staging=folder / "staged", limits=LIMITS
        )
    except FormRefused as problem:
        problem.message.encode()
        assert list(folder.iterdir()) == []
    else:
        assert len(unpacked(folder / "staged", folder / "out")) == received.bundle.files


@given(data=st.data())
async def test_a_damaged_form_is_refused_or_read_but_breaks_nothing(tmp_path_factory, data):
    body = bytearray(form_of(text_part("user_id", "7"), *parts_of(HELLO)))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body) - 1))
        if data.draw(st.booleans()):
            body[at] = data.draw(st.integers(0, 255))
        else:
            del body[at : at + data.draw(st.integers(1, 20))]
    folder = tmp_path_factory.mktemp("damaged")
    chunks = in_pieces(bytes(body), data.draw(st.integers(1, 300)))
    try:
        await receive(chunks, FORM, None, staging=folder / "staged", limits=LIMITS)
    except FormRefused:
        assert list(folder.iterdir()) == []
    else:
        assert [path.name for path in folder.iterdir()] == ["staged"]


async def test_a_file_is_whatever_has_a_file_name_in_any_field(tmp_path):
    body = form_of(
        part('name="a"; filename="run.sh"', b"1"),
        part('name="file[]"; filename="x"', b"2"),
        part('name=""; filename="y"', b"3"),
        part('name="left_alone"; filename=""'),
        part('name="text"', b"4", b"Content-Type: text/plain; charset=utf-8"),
    )
    received = await receive(in_pieces(body), FORM, None, staging=tmp_path / "s", limits=LIMITS)
    assert received.fields == {"text": "4"}
    assert unpacked(tmp_path / "s", tmp_path / "out") == {"run.sh": b"1", "x": b"2", "y": b"3"}


async def test_a_dropped_folder_loses_its_own_name(tmp_path):
    files = {f"my job/{name}": content for name, content in HELLO.items()}
    body = form_of(*parts_of(files))
    await receive(in_pieces(body), FORM, None, staging=tmp_path / "s", limits=LIMITS)
    assert unpacked(tmp_path / "s", tmp_path / "out") == HELLO


async def test_a_job_orchestrator_server_names_its_parts_by_path(tmp_path):
    body = form_of(
        part('name="run.sh"; filename="run.sh"', b"1"),
        part("name*=utf-8''data%2Fin.pdb; filename=\"in.pdb\"", b"2"),
        part('name="bundle"; filename="x.zip"', b"not expanded"),
    )
    await receive(
        in_pieces(body),
        FORM,
        None,
        staging=tmp_path / "s",
        limits=LIMITS,
        naming="part",
        archives=False,
    )
    assert unpacked(tmp_path / "s", tmp_path / "out") == {
        "run.sh": b"1",
        "data/in.pdb": b"2",
        "bundle": b"not expanded",
    }


@pytest.mark.parametrize(
    ("name", "archive"),
    [
        ("b.zip", zipped(HELLO)),
        ("B.ZIP", zipped({f"top/{name}": content for name, content in HELLO.items()})),
        ("b.tar", tarred(HELLO)),
        ("b.tar.gz", tarred(HELLO, "w:gz")),
        ("b.tgz", tarred(HELLO, "w:gz")),
        ("misnamed.tar", zipped(HELLO)),
    ],
)
@pytest.mark.parametrize("piece", [50, 1 << 16])
async def test_one_archive_named_bundle_is_expanded(tmp_path, name, archive, piece):
    body = form_of(text_part("user_id", "7"), file_part(name, archive, "bundle"))
    await receive(in_pieces(body, piece), FORM, None, staging=tmp_path / "s", limits=LIMITS)
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
    assert unpacked(tmp_path / "s", tmp_path / "out") == HELLO


async def test_an_archive_among_other_files_stays_an_archive(tmp_path):
    archive = zipped({"x": b""})
    body = form_of(file_part("run.sh"), file_part("in.zip", archive, "data"))
    await receive(in_pieces(body), FORM, None, staging=tmp_path / "s", limits=LIMITS)
    assert unpacked(tmp_path / "s", tmp_path / "out") == {"run.sh": b"", "in.zip": archive}


async def test_several_plain_files_may_come_in_the_field_bundle(tmp_path):
    body = form_of(*[file_part(name, content, "bundle") for name, content in HELLO.items()])
    await receive(in_pieces(body), FORM, None, staging=tmp_path / "s", limits=LIMITS)
    assert unpacked(tmp_path / "s", tmp_path / "out") == HELLO


# ---------------------------------------------------------------------------- a sealed bundle


async def raw(folder: Path, body: bytes, piece: int = 1 << 16, max_bytes: int = 1 << 20):
    chosen = []

    def on_first_file(fields):
        chosen.append(dict(fields))
        return RawSink(folder / "staged", max_bytes=max_bytes)

    return await receive(
        in_pieces(body, piece),
        FORM,
        len(body),
        staging=folder / "staged",
        limits=LIMITS,
        on_first_file=on_first_file,
    ), chosen


@pytest.mark.parametrize("piece", [7, 1 << 16])
async def test_a_sealed_bundle_is_stored_byte_for_byte(tmp_path, piece, monkeypatch):
    sealed = write_bundle(tmp_path / "sent", HELLO)
    sent = (tmp_path / "sent").read_bytes()
    body = form_of(text_part("order", "{}"), file_part("bundle.zip", sent, "bundle"))
    real, synced = os.fsync, []

    def fsync(fd: int) -> None:
        real(fd)
        synced.append(os.fstat(fd).st_size)

    monkeypatch.setattr(os, "fsync", fsync)
    received, chosen = await raw(tmp_path, body, piece)
    assert synced == [len(sent)]
    assert received.fields == {"order": "{}"}
    assert received.bundle == sealed
    assert chosen == [{"order": "{}"}]
    assert (tmp_path / "staged").read_bytes() == sent


@pytest.mark.parametrize("piece", [7, 1 << 16])
async def test_a_sealed_bundle_that_came_whole_is_not_read_again(tmp_path, piece, monkeypatch):
    files = {**HELLO, "empty": b"", "big": bytes(300_000)}
    sealed = write_bundle(tmp_path / "sent", files)
    body = form_of(file_part("bundle.zip", (tmp_path / "sent").read_bytes(), "bundle"))
    read = []

    def read_content(_, entry):
        read.append(entry.name)
        return iter(())

    monkeypatch.setattr(reader, "read_content", read_content)
    received, _ = await raw(tmp_path, body, piece)
    assert received.bundle == sealed
    assert read == []


@pytest.mark.parametrize(
    ("parts", "status", "code"),
    [
        ([file_part("b.zip", zipped(HELLO), "bundle")], 400, "not_sealed"),
        ([file_part("b.zip", b"nonsense", "bundle")], 400, "truncated"),
        ([file_part("b.zip", b"", "bundle")], 400, "truncated"),
        ([file_part("b.zip", bytes(2 << 20), "bundle")], 413, "too_large"),
        ([file_part("b.zip", b"x", "other")], 400, "unexpected_file"),
        ([file_part("b.zip", b"x", "bundle")] * 2, 400, "unexpected_file"),
        ([], 400, "no_file"),
    ],
)
async def test_what_is_no_sealed_bundle_is_not_stored(tmp_path, parts, status, code):
    with pytest.raises(FormRefused) as caught:
        await raw(tmp_path, form_of(text_part("order", "{}"), *parts))
    assert (caught.value.status, caught.value.code) == (status, code)
    assert list(tmp_path.iterdir()) == []


async def test_a_damaged_sealed_bundle_is_not_stored(tmp_path):
    write_bundle(tmp_path / "sent", HELLO)
    sent = (tmp_path / "sent").read_bytes().replace(b"echo hello", b"echo jello")
    (tmp_path / "sent").unlink()
    with pytest.raises(FormRefused) as caught:
        await raw(tmp_path, form_of(file_part("bundle.zip", sent, "bundle")))
    assert (caught.value.code, caught.value.part) == ("bad_checksum", "run.sh")
    assert list(tmp_path.iterdir()) == []
