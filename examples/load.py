"""Send jobs to a server, so many at a time, and say how long they took and what they waited for.

    python examples/load.py --service example --jobs 200 --at-once 16 --sleep 2 --size 1000000

FERRYMAN_URL and FERRYMAN_TOKEN say which server. Times are counted here, from before the upload.
The jobs have a tag, which is said first, and are deleted at the end. After Ctrl-C
``ferryman delete --all --tag TAG`` deletes them.
"""

import argparse
import asyncio
import os
import secrets
import sys
import time
from collections import Counter
from collections.abc import Sequence

from ferryman import Client, FerrymanError, JobDoc, TryLater, WaitedTooLong

LOOK_S = 1.0
RAISE = {
    "agents_busy": "slots of [agent], while its host has CPU and memory left; else add agents",
    "user_quota": "runs_per_user of the service: with few users it bounds the whole",
    "service_quota": "max_runs of the service, at least to the slots of its agents",
    "no_agent": "nothing yet: look at the agents first (ferryman agents)",
    "paused": "nothing yet: resume the service first",
    "next": "nothing: the server sends jobs no faster; agents on other hosts, arrays",
    "rate_limited": "rate_limit of [server], or of the user",
    "queue_full": "queued_per_user of the service, or send less",
    "too_many_uploads": "uploads_per_user of [server]",
}
"""Code of a wait or of a refusal -> what to raise."""


class Load:
    """What was measured so far."""

    def __init__(self, client: Client, tag: str, options: argparse.Namespace) -> None:
        self.client, self.tag, self.options = client, tag, options
        self.uploads: list[float] = []
        self.starts: list[float] = []
        self.totals: list[float] = []
        self.waits: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()
        self.left = options.jobs

    async def client_loop(self) -> None:
        """One of those that work at once: a job after the other."""
        while self.left > 0:
            self.left -= 1
            await self.job()

    async def job(self) -> None:
        files = {
            "run.sh": f"sleep {self.options.sleep}\n".encode(),
            "data": os.urandom(self.options.size),
        }
        begun = time.monotonic()
        job_id = await self.accepted(files)
        self.uploads.append(time.monotonic() - begun)
        job = await self.ended(job_id)
        self.totals.append(time.monotonic() - begun)
        if job.started_at is not None:
            self.starts.append((job.started_at - job.created_at).total_seconds())
        self.ends[job.reason or job.status] += 1

    async def accepted(self, files: dict[str, bytes]) -> int:
        service, user = self.options.service, self.options.user
        while True:
            try:
                job = await self.client.submit(files, service=service, user=user, tags=self.tag)
                return job.id
            except TryLater as refusal:
                self.waits[refusal.code or "refused"] += 1
                await asyncio.sleep(refusal.retry_after or LOOK_S)

    async def ended(self, job_id: int) -> JobDoc:
        while True:
            try:
                return await self.client.wait(job_id, timeout=LOOK_S)
            except WaitedTooLong as waited:
                queue = waited.job.queue
                if queue is not None and queue.code is not None:
                    self.waits[queue.code] += 1

    def say(self, seconds: float) -> None:
        """The figures, and what to raise."""
        done = len(self.totals)
        print(f"{done} jobs in {seconds:.1f} s, {done / seconds:.2f} a second; ends:", end=" ")
        print(", ".join(f"{count} {end}" for end, count in self.ends.most_common()))
        print(f"{'':<24}{'p50':>10}{'p99':>10}")
        show("upload", self.uploads)
        show("accepted until started", self.starts)
        show("upload until ended", self.totals)
        if self.waits:
            code, count = self.waits.most_common(1)[0]
            print(f"warning: jobs waited most for {code} (seen {count} times)", file=sys.stderr)
            print(f"to raise: {RAISE.get(code, 'see the code in the docs')}", file=sys.stderr)


def show(what: str, times: Sequence[float]) -> None:
    if times:
        rank = sorted(times)
        p50, p99 = (rank[min(len(rank) - 1, int(len(rank) * share))] for share in (0.5, 0.99))
        print(f"{what:<24}{p50:>9.3f}s{p99:>9.3f}s")


async def main(options: argparse.Namespace) -> None:
    tag = f"load-{secrets.token_hex(4)}"
    print(f"tag: {tag}")
    url, token = os.environ.get("FERRYMAN_URL"), os.environ.get("FERRYMAN_TOKEN")
    async with Client(url or "http://127.0.0.1:5000", token=token) as client:
        load, begun = Load(client, tag, options), time.monotonic()
        await asyncio.gather(*(load.client_loop() for _ in range(options.at_once)))
        load.say(time.monotonic() - begun)
        async for _ in client.bulk("delete", where={"tag": tag}):
            pass


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--service", required=True, help="which kind of work")
    parser.add_argument("--user", default="load", help="whose jobs")
    parser.add_argument("--jobs", type=int, default=50, help="how many")
    parser.add_argument("--at-once", type=int, default=4, help="how many at a time")
    parser.add_argument("--size", type=int, default=1000, help="bytes of a bundle")
    parser.add_argument("--sleep", type=float, default=0, help="seconds that run.sh takes")
    try:
        asyncio.run(main(parser.parse_args()))
    except FerrymanError as problem:
        sys.exit(f"load: {problem}")
