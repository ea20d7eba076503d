"""The command line, as a process of its own beside a server in this one."""

from __future__ import annotations

import asyncio
import subprocess
import sys

from tests.support.dev_program import environment


async def ferryman(*words: str, **variables: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "ferryman", *words),
        env={**environment(), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()
