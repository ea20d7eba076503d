"""Contacts between two protein chains: pairs of heavy atoms less than 5 Å apart.

Reads the ATOM records of the first model of each PDB file named, writes ``contacts.csv`` (one line
for each pair of residues that touch) and ``summary.txt``. Where a residue has alternate locations,
the first one counts. Coordinates become whole thousandths of an ångström, so that no rounding
decides at the cut-off.
"""

from __future__ import annotations

import csv
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

CUTOFF = 5_000  # thousandths of an Å


class Residue(NamedTuple):
    chain: str
    number: int
    insertion: str
    name: str

    def __str__(self) -> str:
        return f"{self.chain}/{self.name}{self.number}{self.insertion}"


class Atom(NamedTuple):
    residue: Residue
    name: str
    x: int
    y: int
    z: int


class Touching(NamedTuple):
    """Of two residues: atom pairs within the cut-off, and the least squared distance."""

    pairs: int
    closest: int


def read(path: Path) -> Iterator[Atom]:
    """Heavy atoms of the first model.

    Raises:
        ValueError: a record cannot be read; the text says where and why.
    """
    seen = set()
    for number, line in enumerate(path.read_text("ascii", "replace").splitlines(), 1):
        if line.startswith("ENDMDL"):
            return
        element = line[76:78].strip() or line[12:16].strip().lstrip("0123456789")[:1]
        if not line.startswith("ATOM  ") or element in ("H", "D"):
            continue
        try:
            residue = Residue(line[21], int(line[22:26]), line[26:27].strip(), line[17:20].strip())
            x, y, z = (round(float(line[at : at + 8]) * 1000) for at in (30, 38, 46))
        except (ValueError, IndexError) as problem:
            raise ValueError(f"{path}:{number}: not an ATOM record: {problem}") from problem
        atom = Atom(residue, line[12:16].strip(), x, y, z)
        if (residue[:3], atom.name) not in seen:
            seen.add((residue[:3], atom.name))
            yield atom


def cell(atom: Atom) -> tuple[int, int, int]:
    """The cube, one cut-off wide, that holds an atom: contacts lie in it or the 26 around it."""
    return atom.x // CUTOFF, atom.y // CUTOFF, atom.z // CUTOFF


def contacts(left: list[Atom], right: Iterable[Atom]) -> dict[tuple[Residue, Residue], Touching]:
    """The pairs of residues that touch, in the order of their chains."""
    cells: dict[tuple[int, int, int], list[Atom]] = defaultdict(list)
    for atom in right:
        cells[cell(atom)].append(atom)
    found: dict[tuple[Residue, Residue], Touching] = {}
    for done, one in enumerate(left, 1):
        cx, cy, cz = cell(one)
        for dx, dy, dz in product((-1, 0, 1), repeat=3):
            for other in cells.get((cx + dx, cy + dy, cz + dz), ()):
                squared = (one.x - other.x) ** 2 + (one.y - other.y) ** 2 + (one.z - other.z) ** 2
                if squared < CUTOFF**2:
                    key = one.residue, other.residue
                    before = found.get(key, Touching(0, squared))
                    found[key] = Touching(before.pairs + 1, min(before.closest, squared))
        if done % 100 == 0 or done == len(left):
            print(f"::progress value={done},total={len(left)}::atom {done} of {len(left)}")
    return dict(sorted(found.items()))


def write(found: dict[tuple[Residue, Residue], Touching]) -> None:
    with Path("contacts.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(
            [
                *("chain_1", "residue_1", "number_1"),
                *("chain_2", "residue_2", "number_2"),
                "closest_angstrom",
                "atom_pairs",
            ]
        )
        for (one, other), touching in found.items():
            table.writerow(
                [
                    *(one.chain, one.name, f"{one.number}{one.insertion}"),
                    *(other.chain, other.name, f"{other.number}{other.insertion}"),
                    f"{math.sqrt(touching.closest) / 1000:.3f}",
                    touching.pairs,
                ]
            )


def summarise(chains: dict[str, list[Atom]], found: dict[tuple[Residue, Residue], Touching]) -> str:
    pairs = sum(touching.pairs for touching in found.values())
    lines = [
        f"chain {name}: {len(atoms)} heavy atoms, "
        f"{len({atom.residue for atom in atoms})} residues, "
        f"{len({key[side] for key in found})} of them touch the other chain"
        for side, (name, atoms) in enumerate(chains.items())
    ]
    lines.append(f"closer than {CUTOFF / 1000:g} Å: {len(found)} residue pairs, {pairs} atom pairs")
    if found:
        (one, other), touching = min(found.items(), key=lambda item: item[1].closest)
        lines.append(f"closest: {one} to {other}, {math.sqrt(touching.closest) / 1000:.3f} Å")
    return "\n".join(lines) + "\n"


def main(paths: list[str]) -> int:
    chains: dict[str, list[Atom]] = {}
    try:
        for path in paths:
            for atom in read(Path(path)):
                chains.setdefault(atom.residue.chain, []).append(atom)
    except ValueError as problem:
        print(f"contacts.py: {problem}", file=sys.stderr)
        return 2
    if len(chains) != 2:
        names = ", ".join(sorted(chains)) or "none"
        print(f"contacts.py: two chains are needed; found: {names}", file=sys.stderr)
        return 2
    chains = dict(sorted(chains.items()))
    left, right = chains.values()
    found = contacts(left, right)
    write(found)
    summary = summarise(chains, found)
    Path("summary.txt").write_text(summary, "utf-8")
    print(summary, end="")
    print(f"::output name=residue_pairs::{len(found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
