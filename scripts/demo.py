"""`make demo`: runs an example bundle on this machine, in a temporary folder that is removed again.

Starts `ferryman dev` on free ports, uploads examples/contacts, shows the states as they pass,
fetches the ZIP, looks into it, shows how a job fails, and stops everything. Exit code 0 only if all
went well.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import re
import signal
import sys
import tempfile
import time
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from ferryman import Client, EventDoc, FerrymanError, JobDoc, JobState
from ferryman.cli.show import event_line, is_move, since
from ferryman.dev import parent_death_signal
from ferryman.units import say_duration, say_size

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
READY = re.compile(r"ready at (http://\S+)")
PATIENCE_S = 60.0
"""For the start, and for each of the two jobs."""


class DemoFailed(Exception):
    """The text says what went wrong."""


def plain_environment() -> dict[str, str]:
    """The environment without settings of other Ferryman programs, and of job-orchestrator."""
    ours = re.compile(r"FERRYMAN_.*|SERVICE_.*|PORT|DB_PATH|DATA_PATH|MAX_AGE")
    return {key: value for key, value in os.environ.items() if not ours.fullmatch(key)}


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[str]:
    """Server and agent; yields the URL."""
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *parent_death_signal(),
            *(sys.executable, "-P", "-m", "ferryman", "dev"),
            *("--port", "0", "--agent-port", "0", "--data-dir", str(folder / "data")),
            env=plain_environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            process_group=0,  # Ctrl-C stops this program, which then stops that one
        )
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), PATIENCE_S)
        ready = READY.search(line.decode())
        if ready is None:
            await process.wait()
            raise DemoFailed("server and agent did not start:\n" + (folder / "log").read_text())
        yield ready[1]
    except (FerrymanError, TimeoutError) as problem:
        raise DemoFailed(f"{problem}\n" + (folder / "log").read_text()) from problem
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        await process.wait()


async def print_events(client: Client, job_id: int) -> tuple[JobDoc, list[EventDoc]]:
    """Print each change of state as it happens."""
    events = []
    start = (await client.status(job_id)).created_at
    async for event in client.events(job_id):
        print(" ", event_line(event, start))
        events.append(event)
    return await client.wait(job_id, PATIENCE_S), events


def stages(job: JobDoc, events: list[EventDoc]) -> dict[str, float]:
    """Seconds that each stage took."""
    at = {event.status: event.at for event in events if is_move(event)}
    times = [at[state] for state in (JobState.QUEUED, JobState.PROCESSING, JobState.SUBMITTED)]
    times += [at[JobState.RUNNING], at[JobState.COMPLETED]]
    waited, sent, started, ran = (
        since(one, next_one) for one, next_one in itertools.pairwise(times)
    )
    wall = job.usage.wall_s if job.usage is not None else ran
    return {
        "queued, until its turn came": waited,
        "sent to the agent": sent,
        "sandbox made": started,
        "run.sh ran": wall,  # its end is the agent's: no time says when the server had the result
    }


def show_result(path: Path) -> None:
    """What is in the ZIP, and the beginning of what is worth reading."""
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            print(f"  {say_size(entry.file_size):>10}  {entry.filename}")
        receipt = json.loads(archive.read("ferryman.json"))
        print("\nsummary.txt:")
        for line in archive.read("summary.txt").decode().splitlines()[:6]:
            print(f"  {line}")
    print("\nferryman.json, the receipt (some of it):")
    for key in ("job", "attempt", "agent", "exit_code", "limits", "usage"):
        print(f"  {key}: {json.dumps(receipt.get(key))}")


async def succeed(client: Client, folder: Path) -> None:
    begin = time.perf_counter()
    accepted = await client.submit(EXAMPLES / "contacts", service="example", user="demo")
    uploaded = time.perf_counter() - begin
    print(f"\nuploaded examples/contacts: it is job {accepted.id}")
    job, events = await print_events(client, accepted.id)
    if job.status is not JobState.COMPLETED:
        raise DemoFailed(f"job {job.id} {job.status}: {job.message}\n{job.stderr_tail}")
    begin = time.perf_counter()
    result = await client.download(job.id, folder / "result.zip")
    downloaded = time.perf_counter() - begin
    print(f"\nthe result, a ZIP of {say_size(result.size)}, SHA-256 checked:")
    show_result(result.path)
    print("\nhow long each stage took:")
    took = {"uploaded": uploaded, **stages(job, events), "downloaded": downloaded}
    for stage, seconds in took.items():
        print(f"  {seconds * 1000:8.1f} ms  {stage}")


async def fail(client: Client) -> None:
    accepted = await client.submit(EXAMPLES / "fails-instructively", service="example", user="demo")
    job = await client.wait(accepted.id, PATIENCE_S)
    if job.status is not JobState.FAILED or job.exit_code != 3:
        raise DemoFailed(f"job {job.id} should have failed with exit code 3; it is {job.status}")
    first_line = (job.stderr_tail.splitlines() or [""])[0]
    print(f"\na job that fails says why: job {job.id} {job.status} ({job.reason}): {job.message}")
    print(f"  | {first_line}")


async def demo() -> None:
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="ferryman-demo-") as name:
        folder = Path(name)
        print("starting a server and an agent …", flush=True)
        async with running(folder) as url:
            print(f"ready at {url} after {say_duration(time.perf_counter() - begin)}")
            async with Client(url) as client:
                await succeed(client, folder)
                await fail(client)
    print(f"\nall stopped and removed; {say_duration(time.perf_counter() - begin)} in all.")
    print("next: `make serve` keeps a server running; README.md says how to use it.")


def main() -> int:
    try:
        asyncio.run(demo())
    except DemoFailed as problem:
        print(f"demo failed: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
