"""Examples run as by hand: bash, in a copy of their folder, nothing of ours."""

from __future__ import annotations

import csv
import json
import math
import shutil
import statistics
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from tests.kit.dev_program import EXAMPLES
from tests.kit.each import each

REAL_DATA = Path(__file__).parents[1] / "data"
HELICES = (EXAMPLES / "contacts" / "helices.pdb").read_text()


@pytest.fixture
def run_example(tmp_path: Path):
    """``run_example(name, {file: other text, or None: left out})``, in ``tmp_path / "job"``."""

    def run(name, changes=None):
        job = tmp_path / "job"
        shutil.rmtree(job, ignore_errors=True)
        shutil.copytree(EXAMPLES / name, job)
        for file, text in (changes or {}).items():
            (job / file).unlink(missing_ok=True)
            if text is not None:
                (job / file).write_text(text, encoding="utf-8", newline="")
        return subprocess.run(
            ["bash", "run.sh"],
            cwd=job,
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=60,
            check=False,
        )

    return run


def test_the_generator_makes_exactly_the_inputs_that_are_shipped(tmp_path):
    made = ("contacts/helices.pdb", "csv-stats/measurements.csv")
    for name in made:
        (tmp_path / name).parent.mkdir()
    shutil.copy(EXAMPLES / "make_inputs.py", tmp_path)
    subprocess.run([sys.executable, "make_inputs.py"], cwd=tmp_path, check=True)
    for name in made:
        assert (tmp_path / name).read_bytes() == (EXAMPLES / name).read_bytes()


# ---------------------------------------------------------------------------- contacts


def atom(
    chain: str, number: int, x: float, *, name: str = "CA", element: str = "C", alt: str = " "
):
    return (
        f"ATOM      1  {name:<3}{alt}ALA {chain}{number:4d}    "
        f"{x:8.3f}{0:8.3f}{0:8.3f}  1.00  0.00          {element:>2}\n"
    )


def touching_by_brute_force(*texts: str) -> dict[tuple[str, str], tuple[float, int]]:
    """Every atom of one chain against every atom of the other, in floating point."""
    atoms: dict[str, list[tuple[str, tuple[float, ...]]]] = {}
    for line in "".join(texts).splitlines():
        if line.startswith("ATOM"):
            where = tuple(float(line[at : at + 8]) for at in (30, 38, 46))
            atoms.setdefault(line[21], []).append((line[22:27].strip(), where))
    (_, left), (_, right) = sorted(atoms.items())
    found: dict[tuple[str, str], tuple[float, int]] = {}
    for one, here in left:
        for other, there in right:
            distance = math.dist(here, there)
            if distance < 5.0:
                closest, pairs = found.get((one, other), (math.inf, 0))
                found[one, other] = min(closest, distance), pairs + 1
    return found


def written(job: Path) -> dict[tuple[str, str], tuple[float, int]]:
    with (job / "contacts.csv").open(newline="") as file:
        return {
            (row["number_1"], row["number_2"]): (
                float(row["closest_angstrom"]),
                int(row["atom_pairs"]),
            )
            for row in csv.DictReader(file)
        }


def assert_same(found, expected) -> None:
    assert found.keys() == expected.keys()
    for key, (closest, pairs) in expected.items():
        assert found[key] == (pytest.approx(closest, abs=0.0005), pairs)


def test_the_contacts_of_the_shipped_helices_are_those_of_a_brute_force_search(
    run_example, tmp_path
):
    ended = run_example("contacts")
    assert ended.returncode == 0, ended.stderr
    expected = touching_by_brute_force(HELICES)
    assert len(expected) > 10
    assert_same(written(tmp_path / "job"), expected)
    pairs = sum(pairs for _, pairs in expected.values())
    summary = (tmp_path / "job" / "summary.txt").read_text(encoding="utf-8")
    assert f"{len(expected)} residue pairs, {pairs} atom pairs" in summary
    assert f"::output name=residue_pairs::{len(expected)}\n" in ended.stdout
    assert "::progress value=140,total=140::" in ended.stdout


def test_two_files_with_a_chain_each_work_on_a_real_structure(run_example, tmp_path):
    texts = [(REAL_DATA / f"2oob_{chain}.pdb").read_text() for chain in "AB"]
    files = dict(zip(("a.pdb", "b.pdb"), texts, strict=True))
    ended = run_example("contacts", {"helices.pdb": None, **files})
    assert ended.returncode == 0, ended.stderr
    assert_same(written(tmp_path / "job"), touching_by_brute_force(*texts))


def test_no_contacts_are_five_angstrom_hydrogens_other_models_and_second_locations(
    run_example, tmp_path
):
    near = atom("A", 1, 0.0) + atom("B", 1, 5.0) + atom("B", 2, -4.999)
    other = atom("B", 1, 1.0, name="H", element="H") + atom("B", 2, 4.0, alt="A")
    other = atom("A", 1, 0.0) + other + atom("B", 2, 2.0, alt="B") + "ENDMDL\n"
    for text, closest in ((near, 4.999), (other + atom("B", 3, 0.5), 4.0)):
        assert run_example("contacts", {"helices.pdb": text}).returncode == 0
        assert written(tmp_path / "job") == {("1", "2"): (closest, 1)}


# ---------------------------------------------------------------------------- what is refused

PDB, CSV = "helices.pdb", "measurements.csv"


@each(
    "name, changes, complaint",
    [
        ("contacts", {PDB: None}, "no PDB file here"),
        ("contacts", {PDB: atom("A", 1, 0.0)}, "two chains are needed; found: A"),
        ("contacts", {PDB: "".join(atom(c, 1, 0.0) for c in "ABC")}, "found: A, B, C"),
        ("contacts", {PDB: "ATOM  nonsense\n"}, "helices.pdb:1: not an ATOM record"),
        ("csv-stats", {CSV: None}, "no CSV file here"),
        ("csv-stats", {CSV: "a,b\n1,2\n3\n"}, f"{CSV}:3: 1 cells, but 2 column names\n"),
    ],
)
def test_input_that_cannot_be_used_is_explained(run_example, name, changes, complaint):
    ended = run_example(name, changes)
    assert ended.returncode == 2
    assert complaint in ended.stderr
    assert "Traceback" not in ended.stderr


# ---------------------------------------------------------------------------- csv-stats


def table(path: Path) -> dict[str, dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return {row["column"]: row for row in csv.DictReader(file)}


def test_the_statistics_of_the_shipped_file_are_those_of_the_statistics_module(
    run_example, tmp_path
):
    ended = run_example("csv-stats")
    assert ended.returncode == 0, ended.stderr
    found = table(tmp_path / "job" / "measurements.stats.csv")
    with (EXAMPLES / "csv-stats" / "measurements.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(found) == list(rows[0])
    for column in ("sample", "temperature_K", "yield"):
        numbers = [float(row[column]) for row in rows if row[column] not in ("", "NA")]
        line = found[column]
        assert int(line["count"]) == len(numbers)
        assert int(line["missing"]) == len(rows) - len(numbers)
        assert float(line["mean"]) == pytest.approx(statistics.mean(numbers), rel=1e-9)
        assert float(line["sd"]) == pytest.approx(statistics.stdev(numbers), rel=1e-9)
        assert float(line["min"]) == min(numbers)
        assert float(line["max"]) == max(numbers)
    assert int(found["temperature_K"]["missing"]) > 0
    assert int(found["note"]["text"]) == sum(1 for row in rows if row["note"])
    assert found["note"]["mean"] == ""


def test_quotes_line_ends_of_windows_blank_lines_and_a_byte_order_mark_are_read(
    run_example, tmp_path
):
    text = '\ufeffplain,"with, comma","a ""quote"""\r\n1,-2e3,x\r\n\r\n 3 ,NaN,"1,5"\r\n'
    assert run_example("csv-stats", {"measurements.csv": text}).returncode == 0
    found = table(tmp_path / "job" / "measurements.stats.csv")
    assert list(found) == ["plain", "with, comma", 'a "quote"']
    assert list(found["plain"].values())[1:] == ["2", "0", "0", "2", "1.414213562", "1", "3"]
    assert list(found["with, comma"].values())[1:] == ["1", "1", "0", "-2000", "", "-2000", "-2000"]
    assert list(found['a "quote"'].values())[1:] == ["0", "0", "2", "", "", "", ""]


def test_a_small_spread_around_a_large_mean_is_not_cancelled_away(run_example, tmp_path):
    text = "x\n" + "\n".join(f"{10**9 + offset}" for offset in (4, 7, 13, 16)) + "\n"
    assert run_example("csv-stats", {"measurements.csv": text}).returncode == 0
    found = table(tmp_path / "job" / "measurements.stats.csv")["x"]
    assert float(found["sd"]) == pytest.approx(statistics.stdev([4, 7, 13, 16]), rel=1e-9)


def test_every_file_gets_its_own_statistics(run_example, tmp_path):
    ended = run_example("csv-stats", {"other.csv": "y\n1\n2\n"})
    assert ended.returncode == 0
    assert table(tmp_path / "job" / "other.stats.csv")["y"]["mean"] == "1.5"
    assert ended.stdout.splitlines()[-1] == "::progress value=2,total=2::other.csv"


# ---------------------------------------------------------------------------- others


def test_it_names_every_problem_with_its_line_and_its_remedy_and_keeps_what_was_right(
    run_example, tmp_path
):
    ended = run_example("fails-instructively")
    assert ended.returncode == 3
    complaints = [line for line in ended.stderr.splitlines() if line.startswith("parameters.txt:")]
    assert [line.split(": ")[0] for line in complaints] == [
        "parameters.txt:3",
        "parameters.txt:4",
        "parameters.txt:5",
    ]
    assert ended.stderr.count("    to fix it: ") == 3
    assert "3 of the parameters cannot be used" in ended.stderr.splitlines()[-1]
    assert (tmp_path / "job" / "accepted.txt").read_text() == "steps = 5000\n"
    assert not (tmp_path / "job" / "plan.txt").exists()


def test_it_succeeds_once_its_advice_is_followed(run_example, tmp_path):
    mended = "steps = 10000\ntemperature=310\nstructure = protein.pdb"
    ended = run_example("fails-instructively", {"parameters.txt": mended, "protein.pdb": "ATOM\n"})
    assert (ended.returncode, ended.stderr) == (0, "")
    assert (tmp_path / "job" / "plan.txt").read_text() == "would simulate 10000 steps at 310 K\n"


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
