"""What programs leave out while they start, and what they have back when they are ready."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.kit.dev_program import environment

BEGUN = """
import gc, json, sys
from shared import interpreter
interpreter.starting()
import {module}
without = [gc.isenabled(), "rich" in sys.modules]
interpreter.ready()
import rich.console
now = [gc.isenabled(), gc.get_freeze_count() > 50_000, sys.getswitchinterval()]
print(json.dumps([*without, *now]))
"""


@pytest.mark.parametrize("module", ["server.__main__", "client_agent.__main__"])
def test_imports_load_no_rich_and_look_for_no_garbage_and_then_turns_are_short(
    module: str,
) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", BEGUN.format(module=module)],
        env=environment(),
        capture_output=True,
        timeout=50,
        check=True,
    )
    assert json.loads(done.stdout) == [False, False, True, True, 0.0005]
