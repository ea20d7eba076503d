"""Makes the data folders beside it, with the code of commit 37d84c0 (schema 1 of both programs).

Run in a checkout of that commit, as root, with its dependencies: ``python make.py FOLDER``. Server
and agent are killed while two jobs run and two wait; what they leave on the disk is the fixture.
"""

from __future__ import annotations

import re
import shutil
import signal
import sqlite3
import sys
import tempfile
from pathlib import Path
from urllib.request import Request, urlopen

from tests.support.program_pair import Pair
from tests.support.programs import until

SETTINGS = """
[services.example]
runs_per_user = 2
expires_after = "36500d"
limits = { disk = "32MiB", memory = "64MiB" }
"""
SLEEPS = "if [ $FERRYMAN_ATTEMPT = 1 ]; then sleep 9999; fi; echo second > out.txt"


def payloads(pair: Pair) -> str:
    with urlopen(f"{pair.agent.url}/payloads", timeout=60) as answer:
        return str(answer.read())


def main(to: Path) -> None:
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    pair = Pair(folder, SETTINGS)
    pair.agent.start()
    pair.server.start()
    done = pair.submit("echo first > out.txt")
    pair.until(done, "Completed")
    failed = pair.submit("exit 3")
    pair.until(failed, "Failed")
    cancelled = pair.submit("sleep 9999")
    pair.until(cancelled, "Running")
    urlopen(Request(f"{pair.server.url}/terminate/{cancelled}", method="POST"), timeout=60).close()
    running = pair.submit(SLEEPS)
    pair.until(running, "Running")
    fetched_later = pair.submit("sleep 2; echo unfetched > out.txt")
    pair.until(fetched_later, "Running")
    for _ in range(2):
        pair.submit("echo waited > out.txt")
    pair.server.kill(signal.SIGKILL)
    until(lambda: '"Completed"' in payloads(pair), "it does not end")
    pair.agent.kill(signal.SIGKILL)
    for program, kinds in (
        (pair.server, ("bundles", "results")),
        (pair.agent, ("bundles", "results")),
    ):
        target = to / program.name
        for kind in kinds:
            if (program.data / kind).is_dir():
                shutil.copytree(program.data / kind, target / kind)
        name = "ferryman.sqlite" if program is pair.server else "agent.sqlite"
        with sqlite3.connect(program.data / name) as database:
            text = "\n".join(database.iterdump()) + "\n"
        text = re.sub(re.escape(str(folder)), "/var/lib/ferryman", text)
        (target / f"{name}.sql").write_text(text)


main(Path(sys.argv[1]))
