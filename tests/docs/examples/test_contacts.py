from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"
REAL_DATA = Path(__file__).parents[2] / "data"
HELICES = (EXAMPLES / "contacts" / "helices.pdb").read_text()


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


def test_exactly_five_angstrom_is_no_contact_and_a_thousandth_less_is(run_example, tmp_path):
    text = atom("A", 1, 0.0) + atom("B", 1, 5.0) + atom("B", 2, -4.999)
    assert run_example("contacts", {"helices.pdb": text}).returncode == 0
    assert written(tmp_path / "job") == {("1", "2"): (4.999, 1)}


def test_hydrogens_other_models_and_second_locations_do_not_count(run_example, tmp_path):
    text = (
        atom("A", 1, 0.0)
        + atom("B", 1, 1.0, name="H", element="H")
        + atom("B", 2, 4.0, alt="A")
        + atom("B", 2, 2.0, alt="B")
        + "ENDMDL\n"
        + atom("B", 3, 0.5)
    )
    assert run_example("contacts", {"helices.pdb": text}).returncode == 0
    assert written(tmp_path / "job") == {("1", "2"): (4.0, 1)}


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"helices.pdb": None}, "no PDB file here"),
        ({"helices.pdb": atom("A", 1, 0.0)}, "two chains are needed; found: A"),
        ({"helices.pdb": "".join(atom(c, 1, 0.0) for c in "ABC")}, "found: A, B, C"),
        ({"helices.pdb": "ATOM  nonsense\n"}, "helices.pdb:1: not an ATOM record"),
    ],
)
def test_input_that_cannot_be_used_is_explained(run_example, changes, complaint):
    ended = run_example("contacts", changes)
    assert ended.returncode == 2
    assert complaint in ended.stderr
    assert "Traceback" not in ended.stderr
