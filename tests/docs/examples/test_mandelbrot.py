from __future__ import annotations

import json
import struct
import zlib


def decode(png: bytes) -> tuple[int, int, list[list[bytes]]]:
    """Width, height and pixels of an 8-bit RGB PNG with unfiltered lines; checks every CRC."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    chunks: dict[bytes, bytes] = {}
    at = 8
    while at < len(png):
        size, kind = struct.unpack_from(">I4s", png, at)
        data = png[at + 8 : at + 8 + size]
        assert struct.unpack_from(">I", png, at + 8 + size) == (zlib.crc32(kind + data),)
        chunks[kind] = data
        at += 12 + size
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    width, height, *rest = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert rest == [8, 2, 0, 0, 0]
    raw = zlib.decompress(chunks[b"IDAT"])
    assert len(raw) == height * (1 + 3 * width)
    lines = [raw[y * (1 + 3 * width) : (y + 1) * (1 + 3 * width)] for y in range(height)]
    assert {line[0] for line in lines} == {0}
    return width, height, [[line[x : x + 3] for x in range(1, len(line), 3)] for line in lines]


def stays_bounded(c: complex, iterations: int) -> bool:
    z = 0j
    for _ in range(iterations):
        z = z**2 + c
        if abs(z) > 2:
            return False
    return True


def test_black_are_the_pixels_that_stay_bounded_and_no_others(run_example, tmp_path):
    view = {"centre": [-0.53, 0.04], "width": 3.1, "pixels": [48, 30], "iterations": 40}
    ended = run_example("mandelbrot", {"view.json": json.dumps(view)})
    assert ended.returncode == 0, ended.stderr
    width, height, pixels = decode((tmp_path / "job" / "mandelbrot.png").read_bytes())
    assert (width, height) == (48, 30)
    side = 3.1 / 48
    inside = [
        [
            stays_bounded(complex(-0.53 + (x - 24) * side, 0.04 - (y - 15) * side), 40)
            for x in range(48)
        ]
        for y in range(30)
    ]
    assert [[pixel == b"\0\0\0" for pixel in line] for line in pixels] == inside
    assert 100 < sum(map(sum, inside)) < 1000
    colours = {pixel for line in pixels for pixel in line}
    assert len(colours) > 50
    assert ended.stdout.splitlines()[-1] == "::progress value=30,total=30::row 30 of 30"


def test_the_shipped_view_shows_both_the_set_and_its_surroundings(run_example, tmp_path):
    assert run_example("mandelbrot").returncode == 0
    width, height, pixels = decode((tmp_path / "job" / "mandelbrot.png").read_bytes())
    assert (width, height) == (320, 240)
    black = sum(line.count(b"\0\0\0") for line in pixels)
    assert 0 < black < width * height / 2
