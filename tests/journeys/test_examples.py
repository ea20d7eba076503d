"""Every example, and real input, through server, agent and sandbox; the content must be true."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import statistics
import struct
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ferryman import Client, JobState, SyncClient
from tests.kit.dev_program import EXAMPLES, ROOT, DevProgram, ended, environment

PDB = ROOT / "tests" / "data"


async def run(system: DevProgram, tmp_path: Path, files) -> tuple[zipfile.ZipFile, dict[str, Any]]:
    """Upload, wait, download."""
    async with Client(system.url, user="ada") as client:
        accepted = await client.submit(files, service="example")
        job = await client.wait(accepted.id, timeout=60)
        assert job.status is JobState.COMPLETED, (job.message, job.stderr_tail)
        done = await client.download(job.id, tmp_path)
    assert done.checked
    archive = zipfile.ZipFile(done.path)
    receipt = json.loads(archive.read("ferryman.json"))
    assert (receipt["job"], receipt["exit_code"]) == (job.id, 0)
    assert receipt["bundle"]["digest"]
    assert receipt["usage"]["wall_s"] > 0
    assert {"stdout.log", "stderr.log"} <= set(archive.namelist())
    return archive, receipt


def heavy(text: str) -> Iterator[tuple[str, int, tuple[float, float, float]]]:
    """Chain, residue number and position of the heavy atoms."""
    for line in text.splitlines():
        if line.startswith("ATOM  ") and line[76:78].strip() not in {"H", "D"}:
            at = tuple(float(line[at : at + 8]) for at in (30, 38, 46))
            yield line[21], int(line[22:26]), (at[0], at[1], at[2])


def brute_force(*texts: str) -> dict[tuple[int, int], float]:
    """Residue pairs closer than 5 Å, and how close, every atom against every other."""
    atoms = [atom for text in texts for atom in heavy(text)]
    closest: dict[tuple[int, int], float] = {}
    for (chain, one, here), (other_chain, other, there) in itertools.combinations(atoms, 2):
        if chain != other_chain and (distance := math.dist(here, there)) < 5:
            closest[one, other] = min(distance, closest.get((one, other), math.inf))
    return closest


def check_contacts(archive: zipfile.ZipFile, expected: dict[tuple[int, int], float]) -> None:
    table = csv.DictReader(io.StringIO(archive.read("contacts.csv").decode()))
    rows = ((int(row["number_1"]), int(row["number_2"]), row) for row in table)
    found = {(one, other): float(row["closest_angstrom"]) for one, other, row in rows}
    assert len(expected) > 5
    assert found == pytest.approx(expected, abs=0.0006)


async def test_contacts_between_chains_of_a_model_and_of_a_real_complex(system, tmp_path):
    source = EXAMPLES / "contacts"
    archive, _ = await run(system, tmp_path, source)
    check_contacts(archive, brute_force((source / "helices.pdb").read_text()))
    chains = {f"input/{path.name}": path for path in sorted(PDB.glob("2oob_?.pdb"))}
    files = {name: source / name for name in ("run.sh", "contacts.py")} | chains
    archive, receipt = await run(system, tmp_path, files)
    check_contacts(archive, brute_force(*(path.read_text() for path in chains.values())))
    assert "input/2oob_A.pdb" in archive.namelist()
    assert receipt["skipped"] == []


async def test_a_mandelbrot_picture(system, tmp_path):
    archive, _ = await run(system, tmp_path, EXAMPLES / "mandelbrot")
    view = json.loads((EXAMPLES / "mandelbrot" / "view.json").read_text())
    png = archive.read("mandelbrot.png")
    assert (png[:8], png[-8:-4]) == (b"\x89PNG\r\n\x1a\n", b"IEND")
    assert [*struct.unpack(">II", png[16:24])] == view["pixels"]


async def test_statistics_of_a_table(system, tmp_path):
    archive, _ = await run(system, tmp_path, EXAMPLES / "csv-stats")
    with (EXAMPLES / "csv-stats" / "measurements.csv").open() as file:
        rows = list(csv.DictReader(file))
    table = csv.DictReader(io.StringIO(archive.read("measurements.stats.csv").decode()))
    by_column = {row["column"]: row for row in table}
    for column in ("temperature_K", "yield"):
        values = [float(row[column]) for row in rows if row[column] not in {"", "NA", "NaN"}]
        row = by_column[column]
        assert int(row["count"]) == len(values)
        assert int(row["missing"]) == len(rows) - len(values)
        assert float(row["mean"]) == pytest.approx(statistics.fmean(values))
        assert float(row["sd"]) == pytest.approx(statistics.stdev(values))
        assert (float(row["min"]), float(row["max"])) == (min(values), max(values))


def test_load_says_how_long_its_jobs_took_and_deletes_them(system):
    words = ("-P", EXAMPLES / "load.py", "--service=example", "--jobs=3")
    done = ended(sys.executable, *words, env=environment() | {"FERRYMAN_URL": system.url})
    assert "3 jobs in" in done.stdout
    assert "3 Completed" in done.stdout
    with SyncClient(system.url) as client:
        tag = done.stdout.splitlines()[0].removeprefix("tag: ")
        assert list(client.jobs(tag=tag)) == []
