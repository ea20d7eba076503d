"""What programs leave out while they start, and what they have back when they are ready."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.dev_program import environment

BEGUN = """
import gc, json, sys
from shared import fast_imports
fast_imports.begin()
import {module}
without = [gc.isenabled(), "rich" in sys.modules]
fast_imports.end()
import rich.console
print(json.dumps([*without, gc.isenabled(), gc.get_freeze_count() > 50_000]))
"""


@pytest.mark.parametrize("module", ["server.__main__", "client_agent.__main__"])
def test_imports_look_for_no_garbage_and_load_no_rich(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", BEGUN.format(module=module)],
        env=environment(),
        capture_output=True,
        timeout=50,
        check=True,
    )
    assert json.loads(done.stdout) == [False, False, True, True]
