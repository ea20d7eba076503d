"""Draw a part of the Mandelbrot set as a PNG, with nothing but the standard library.

The view is a JSON file: ``centre`` [real, imaginary], ``width`` of the picture in the plane,
``pixels`` [across, down], ``iterations`` after which a point counts as inside. Inside is black.
"""

from __future__ import annotations

import json
import math
import struct
import sys
import zlib
from pathlib import Path

BLACK = bytes(3)


def steps_to_escape(c: complex, most: int) -> tuple[int, float]:
    """How often z → z² + c can be applied before |z| > 2, at most ``most`` times; and that |z|."""
    z = 0j
    for step in range(most):
        z = z * z + c
        if z.real * z.real + z.imag * z.imag > 4.0:
            return step, abs(z)
    return most, abs(z)


def colour(step: int, size: float) -> bytes:
    """A shade that runs smoothly with the logarithm of the escape time; never black."""
    smooth = math.log(step + 3 - math.log2(max(math.log(size), 1e-9)))
    return bytes(round(135 + 120 * math.cos(3 * smooth + shift)) for shift in (3.4, 4.0, 4.6))


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(across: int, rows: list[bytes]) -> bytes:
    """An 8-bit RGB picture; ``rows`` from the top, three bytes for each pixel."""
    header = struct.pack(">IIBBBBB", across, len(rows), 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        [chunk(b"IHDR", header), chunk(b"IDAT", pixels), chunk(b"IEND", b"")]
    )


def main(view: Path, picture: Path) -> None:
    wanted = json.loads(view.read_text())
    (real, imaginary), (across, down) = wanted["centre"], wanted["pixels"]
    most, pixel = wanted["iterations"], wanted["width"] / wanted["pixels"][0]
    rows = []
    for y in range(down):
        row = bytearray()
        for x in range(across):
            c = complex(real + (x - across / 2) * pixel, imaginary - (y - down / 2) * pixel)
            step, size = steps_to_escape(c, most)
            row += BLACK if step == most else colour(step, size)
        rows.append(bytes(row))
        if (y + 1) % 20 == 0 or y + 1 == down:
            print(f"::progress value={y + 1},total={down}::row {y + 1} of {down}", flush=True)
    picture.write_bytes(png(across, rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
