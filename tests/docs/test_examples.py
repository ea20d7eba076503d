"""Examples run as by hand: bash, in a copy of their folder, nothing of ours. Through a server:
tests/journeys/test_jobs.py.
"""

import csv
import itertools
import json
import math
import shutil
import statistics
import sys
import zlib
from pathlib import Path

import pytest

from tests.kit.dev_program import EXAMPLES, ROOT, ended
from tests.kit.each import each


@pytest.fixture
def run_example(tmp_path: Path):
    """``run_example(name, {file: other text, or None: left out})``, in ``tmp_path / "job"``."""

    def run(name, changes=None, status=0):
        job = tmp_path / "job"
        shutil.rmtree(job, ignore_errors=True)
        shutil.copytree(EXAMPLES / name, job)
        for file, text in (changes or {}).items():
            (job / file).unlink(missing_ok=True)
            if text is not None:
                (job / file).write_text(text, encoding="utf-8", newline="")
        env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
        return ended("bash", "run.sh", cwd=job, env=env, encoding="utf-8", status=status)

    return run


def test_the_generator_makes_exactly_the_inputs_that_are_shipped(tmp_path):
    made = ("contacts/helices.pdb", "csv-stats/measurements.csv")
    for name in ("contacts", "csv-stats"):
        (tmp_path / name).mkdir()
    shutil.copy(EXAMPLES / "make_inputs.py", tmp_path)
    ended(sys.executable, "make_inputs.py", cwd=tmp_path)
    for name in made:
        assert (tmp_path / name).read_bytes() == (EXAMPLES / name).read_bytes()


def brute_force(*texts: str) -> dict[tuple[int, int], float]:
    """Residue pairs closer than 5 Å, and how close, every heavy atom against every other."""
    lines = [line for text in texts for line in text.splitlines() if line.startswith("ATOM  ")]
    heavy = [line for line in lines if line[76:78].strip() not in ("H", "D")]
    atoms = [(one, [float(one[at : at + 8]) for at in (30, 38, 46)]) for one in heavy]
    closest: dict[tuple[int, int], float] = {}
    for (one, here), (other, there) in itertools.combinations(atoms, 2):
        if one[21] != other[21] and (distance := math.dist(here, there)) < 5:
            pair = int(one[22:26]), int(other[22:26])
            closest[pair] = min(distance, closest.get(pair, math.inf))
    return closest


def atom(chain: str, number: int, x: float, name: str = "CA", element: str = "C", alt: str = " "):
    at = f"{x:8.3f}{0:8.3f}{0:8.3f}  1.00  0.00          {element:>2}\n"
    return f"ATOM      1  {name:<3}{alt}ALA {chain}{number:4d}    {at}"


PDB, CSV = "helices.pdb", "measurements.csv"
CHAINS = {path.name: path.read_text() for path in (ROOT / "tests/data").glob("2oob_?.pdb")}
NEAR = atom("A", 1, 0.0) + atom("B", 1, 5.0) + atom("B", 2, -4.999)
ODD = atom("A", 1, 0.0) + atom("B", 1, 1.0, name="H", element="H") + atom("B", 2, 4.0, alt="A")
ODD += atom("B", 2, 2.0, alt="B") + "ENDMDL\n" + atom("B", 3, 0.5)


@each(
    "changes, expected",
    [
        ({}, brute_force((EXAMPLES / "contacts" / PDB).read_text())),
        ({PDB: None} | CHAINS, brute_force(*(CHAINS[name] for name in sorted(CHAINS)))),
        ({PDB: NEAR}, {(1, 2): 4.999}),
        ({PDB: ODD}, {(1, 2): 4.0}),
    ],
)
def test_contacts_are_all_pairs_of_heavy_atoms_nearer_than_five_angstrom(
    run_example, tmp_path, changes, expected
):
    """Of the first model and location."""
    said = run_example("contacts", changes).stdout
    with (tmp_path / "job" / "contacts.csv").open(newline="") as file:
        rows = [*csv.DictReader(file)]
    found = {(int(row["number_1"]), int(row["number_2"])): row for row in rows}
    closest = {pair: float(row["closest_angstrom"]) for pair, row in found.items()}
    assert closest == pytest.approx(expected, abs=0.0006)
    pairs = sum(int(row["atom_pairs"]) for row in rows)
    summary = (tmp_path / "job" / "summary.txt").read_text(encoding="utf-8")
    assert f"{len(rows)} residue pairs, {pairs} atom pairs" in summary
    assert f"::output name=residue_pairs::{len(rows)}\n" in said
    assert "::progress value=" in said


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
    said = run_example(name, changes, 2).stderr
    assert complaint in said
    assert "Traceback" not in said


def table(path: Path) -> dict[str, dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return {row["column"]: row for row in csv.DictReader(file)}


def test_odd_tables_are_read_and_no_figure_is_cancelled_away(run_example, tmp_path):
    """Quotes, line ends of Windows, blank lines, a byte order mark."""
    text = '\ufeffplain,"with, comma","a ""quote"""\r\n1,-2e3,x\r\n\r\n 3 ,NaN,"1,5"\r\n'
    run_example("csv-stats", {"measurements.csv": text})
    found = table(tmp_path / "job" / "measurements.stats.csv")
    assert list(found) == ["plain", "with, comma", 'a "quote"']
    assert list(found["plain"].values())[1:] == ["2", "0", "0", "2", "1.414213562", "1", "3"]
    assert list(found["with, comma"].values())[1:] == ["1", "1", "0", "-2000", "", "-2000", "-2000"]
    assert list(found['a "quote"'].values())[1:] == ["0", "0", "2", "", "", "", ""]
    text = "x\n" + "\n".join(f"{10**9 + offset}" for offset in (4, 7, 13, 16)) + "\n"
    said = run_example("csv-stats", {"other.csv": text}).stdout
    assert said.splitlines()[-1] == "::progress value=2,total=2::other.csv"
    spread = table(tmp_path / "job" / "other.stats.csv")["x"]["sd"]
    assert float(spread) == pytest.approx(statistics.stdev([4, 7, 13, 16]), rel=1e-9)


def test_every_problem_is_named_with_a_remedy_that_helps(run_example, tmp_path):
    said = run_example("fails-instructively", status=3).stderr
    complaints = [line for line in said.splitlines() if line.startswith("parameters.txt:")]
    assert [line.split(": ")[0][-1] for line in complaints] == ["3", "4", "5"]
    assert said.count("    to fix it: ") == 3
    assert "3 of the parameters cannot be used" in said.splitlines()[-1]
    assert (tmp_path / "job" / "accepted.txt").read_text() == "steps = 5000\n"
    assert not (tmp_path / "job" / "plan.txt").exists()
    mended = "steps = 10000\ntemperature=310\nstructure = protein.pdb"
    files = {"parameters.txt": mended, "protein.pdb": "ATOM\n"}
    assert run_example("fails-instructively", files).stderr == ""
    assert (tmp_path / "job" / "plan.txt").read_text() == "would simulate 10000 steps at 310 K\n"


def test_black_are_the_pixels_that_stay_bounded_and_no_others(run_example, tmp_path):
    view = {"centre": [-0.5, 0.0], "width": 4.0, "pixels": [8, 5], "iterations": 40}
    said = run_example("mandelbrot", {"view.json": json.dumps(view)}).stdout
    png = (tmp_path / "job" / "mandelbrot.png").read_bytes()
    at = png.index(b"IDAT")
    data = zlib.decompress(png[at + 4 : at + 4 + int.from_bytes(png[at - 4 : at])])
    lines = [data[start + 1 : start + 25] for start in range(0, len(data), 25)]

    def stays_bounded(c: complex) -> bool:
        z = 0j
        for _ in range(40):
            z = z**2 + c if abs(z) <= 2 else z
        return abs(z) <= 2

    for y, line in enumerate(lines):
        for x in range(8):
            inside = stays_bounded(complex(-0.5 + (x - 4) / 2, (2.5 - y) / 2))
            assert (line[3 * x : 3 * x + 3] == b"\0\0\0") == inside, (x, y)
    assert said.splitlines()[-1] == "::progress value=5,total=5::row 5 of 5"
