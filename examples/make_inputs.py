"""Make the inputs that the example bundles ship with; run it again and the same files come out.

``contacts/helices.pdb``: two ideal α-helices of alanine that cross, so that the example needs
nobody's data. ``csv-stats/measurements.csv``: made-up readings, some of them missing.
"""

from __future__ import annotations

import math
import random
from pathlib import Path

HERE = Path(__file__).parent
HELIX = {
    # atom: radius (Å), angle (degrees), height (Å), relative to the residue's Cα
    "N": (1.55, -27.6, -0.89),
    "CA": (2.28, 0.0, 0.0),
    "C": (1.68, 26.5, 1.13),
    "O": (2.03, 23.9, 2.32),
    "CB": (3.29, 17.8, -0.83),
}
RISE, TURN = 1.5, 100.0  # Å and degrees from one residue to the next


def helix(residues: int, phase: float) -> list[tuple[int, str, float, float, float]]:
    """Residue number, atom name, coordinates in Å; around the z axis, centred on the origin."""
    atoms = []
    for number in range(residues):
        for name, (radius, angle, height) in HELIX.items():
            at = math.radians(phase + TURN * number + angle)
            z = RISE * (number - (residues - 1) / 2) + height
            atoms.append((number + 1, name, radius * math.cos(at), radius * math.sin(at), z))
    return atoms


def pdb(residues: int, distance: float, crossing: float) -> str:
    """Two helices, ``distance`` Å between their axes, which cross at ``crossing`` degrees."""
    tilt = math.radians(crossing)
    lines = ["REMARK   made by examples/make_inputs.py; no measured structure"]
    serial = 0
    for chain in "AB":
        for number, atom, x0, y0, z0 in helix(residues, 180.0 if chain == "B" else 0.0):
            x, y, z = x0, y0, z0
            if chain == "B":
                x = x0 + distance
                y = y0 * math.cos(tilt) - z0 * math.sin(tilt)
                z = y0 * math.sin(tilt) + z0 * math.cos(tilt)
            serial += 1
            lines.append(
                f"ATOM  {serial:5d}  {atom:<3} ALA {chain}{number:4d}    "
                f"{x:8.3f}{y:8.3f}{z:8.3f}  1.00  0.00          {atom[0]:>2}"
            )
        lines.append("TER")
    return "\n".join([*lines, "END"]) + "\n"


def measurements(rows: int, seed: int) -> str:
    """CSV: one text column, three of numbers with a few cells missing."""
    chance = random.Random(seed)
    lines = ["sample,temperature_K,yield,note"]
    for row in range(1, rows + 1):
        temperature = f"{chance.gauss(310, 4):.2f}" if chance.random() > 0.03 else ""
        share = f"{chance.betavariate(5, 2):.4f}" if chance.random() > 0.05 else "NA"
        note = '"repeated, see log"' if chance.random() < 0.04 else ""
        lines.append(f"{row},{temperature},{share},{note}")
    return "\n".join(lines) + "\n"


def main() -> None:
    (HERE / "contacts" / "helices.pdb").write_text(pdb(residues=28, distance=8.2, crossing=20.0))
    (HERE / "csv-stats" / "measurements.csv").write_text(measurements(rows=500, seed=1))


if __name__ == "__main__":
    main()
