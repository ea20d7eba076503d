from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_the_generator_makes_exactly_the_inputs_that_are_shipped(tmp_path):
    made = ("contacts/helices.pdb", "csv-stats/measurements.csv")
    for name in made:
        (tmp_path / name).parent.mkdir()
    shutil.copy(EXAMPLES / "make_inputs.py", tmp_path)
    subprocess.run([sys.executable, "make_inputs.py"], cwd=tmp_path, check=True)
    for name in made:
        assert (tmp_path / name).read_bytes() == (EXAMPLES / name).read_bytes()
