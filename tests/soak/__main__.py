"""``python -m tests.soak [--seconds 3600] [--seed N]``."""

import argparse
import re
import signal
import sqlite3
import sys
import time
import traceback
import uuid
from collections import Counter
from contextlib import closing
from random import Random

from tests.soak.disturbing import Disturbing
from tests.soak.model import FORGOTTEN_S, Model, pause
from tests.soak.system import System
from tests.soak.users import Nuisance, User
from tests.soak.watching import Watching, markdown, usage

ROWS = ("jobs", "attempts", "events", "bundles", "batches")
USERS = 5
SERVER_STAYS = 2 / 3
"""Of the time: from then on the server is not ended, so that its memory is seen over a while."""


def errors(system: System) -> Counter[str]:
    """Log lines of level error and tracebacks, by program and event."""
    found: Counter[str] = Counter()
    for name, program in system.programs().items():
        for line in program._log.open(errors="replace"):
            if line.startswith("Traceback"):
                found[f"{name}: traceback"] += 1
            elif re.search(r'"level": ?"(?:error|critical)"', line):
                event = re.search(r'"event": ?"([^"]*)', line)
                found[f"{name}: {event[1] if event else line}"] += 1
    return found


def rows(system: System) -> dict[str, int]:
    with closing(sqlite3.connect(system.server.data / "ferryman.sqlite")) as database:
        return {
            table: database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ROWS
        }


def drain(system: System, model: Model, users: list[User], disturbing: Disturbing) -> None:
    """Everything ends, expires and is forgotten; then nothing may be left."""
    disturbing.calm()
    for user in users:
        user.stop.set()
    end = time.monotonic() + 400
    for user in users:
        user.join(max(1.0, end - time.monotonic()))
    for known in list(model.jobs.values()):
        if not known.ended:
            model.report(f"{known.name} has not ended")
    end = time.monotonic() + FORGOTTEN_S + 120
    while rows(system)["jobs"] and time.monotonic() < end:
        pause(1)
    if left := {table: count for table, count in rows(system).items() if count}:
        model.report(f"rows are left: {left}")


def remains(system: System, model: Model) -> None:
    for again in (False, True):  # what others may use is kept until the next start
        if again:
            system.start()
            pause(3)
        for program in system.programs().values():
            system.stop(program)
    for one in system.left():
        model.report(f"left behind: {one}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=uuid.uuid4().int % 100_000)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the programs, too
    print(f"seed {given.seed}", flush=True)
    mark, model, begun = uuid.uuid4().hex, Model(), time.monotonic()
    system = System(mark)
    print(f"in {system.folder}", flush=True)
    watching = Watching(model, mark)
    disturbing = Disturbing(system, model, mark, given.seed)
    random, warm = Random(given.seed + 1), dict[str, tuple[int, float, int]]()
    try:
        system.start()
        url = system.server.url
        seeds = [random.randrange(1 << 30) for _ in range(USERS + 2)]
        users = [User(f"user{n}", url, model, mark, seeds[n], 5) for n in range(USERS)]
        nuisances = [Nuisance(url, model, seed) for seed in seeds[-2:]]
        for thread in (watching, *users, *nuisances):
            thread.start()
        while (passed := time.monotonic() - begun) < given.seconds and len(model.wrong) < 50:
            pause(random.uniform(1, 9))
            server_stays = passed > given.seconds * SERVER_STAYS
            if server_stays and not warm:
                warm = usage(system.programs())
            try:
                disturbing.one(server_stays=server_stays)
            except Exception:  # noqa: BLE001 - what it expected did not happen
                model.report(f"disturbance {disturbing.last}: {traceback.format_exc()}")
                for program in system.programs().values():
                    if not program.runs:
                        program.start()
        for name, (pid, mib, descriptors) in usage(system.programs()).items():
            if name in warm and warm[name][0] == pid:
                grown = f"{warm[name][1]:.1f} → {mib:.1f} MiB"
                print(f"{name}: {grown}, {warm[name][2]} → {descriptors} descriptors")
        for nuisance in nuisances:
            nuisance.stop.set()
        drain(system, model, users, disturbing)
        watching.stop.set()
        remains(system, model)
    except BaseException:
        model.report(f"the soak broke off: {traceback.format_exc()}")
        raise
    finally:
        for program in system.programs().values():
            if program.runs:
                program.kill()
        print(f"errors in the logs: {dict(errors(system))}")
        print(markdown(model, watching.looks))
    if model.wrong:
        print(f"{len(model.wrong)} wrong; seed {given.seed}; logs in {system.folder}")
        return 1
    system.remove()
    return 0


sys.exit(main())
