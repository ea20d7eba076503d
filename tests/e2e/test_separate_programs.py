"""``ferryman server`` and ``ferryman agent``, each alone, as on two machines."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ferryman import Client, JobState, NotAllowed
from tests.kit.dev_program import environment


class Program:
    """One of the two, started with what ``ferryman`` passes on."""

    def __init__(self, name: str, folder: Path, *words: str, port: int = 0) -> None:
        folder.mkdir(exist_ok=True)
        read, write = os.pipe()
        with (folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "ferryman", name, "--port", str(port)),
                    *("--data-dir", str(folder / "data"), "--ready-fd", str(write), *words),
                ],
                env=environment(),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(write,),
            )
        os.close(write)
        with os.fdopen(read) as ready:
            line = ready.readline()
        assert line, (folder / "log").read_text()
        self.port = int(line)
        self.url = f"http://127.0.0.1:{self.port}"

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """The process is the program itself, so signals and exit codes are its own."""
        self.process.send_signal(number)
        return self.process.wait(60)


@contextmanager
def running(*words: object, **options: int) -> Iterator[Program]:
    name, folder, *others = words
    program = Program(str(name), Path(str(folder)), *map(str, others), **options)
    try:
        yield program
    finally:
        if program.process.poll() is None:
            assert program.stop() == 0


async def test_following_a_job_survives_a_kill_9_of_the_server(tmp_path):
    with ExitStack() as stack:
        agent = stack.enter_context(running("agent", tmp_path / "agent", "--name", "far-away"))
        words = ("server", tmp_path / "server", "--agent-url", agent.url)
        server = stack.enter_context(running(*words))
        async with Client(server.url, user="ada", retry_for=30) as client:
            job = await client.submit(
                {"run.sh": b"sleep 2; echo kept > kept.txt"}, service="example"
            )
            seen = []
            async for event in client.events(job.id):
                seen.append(event.status)
                if event.status is JobState.RUNNING:
                    assert server.stop(signal.SIGKILL) == -signal.SIGKILL
                    again = running(*words, port=server.port)
                    await asyncio.to_thread(stack.enter_context, again)
            assert seen[0] is JobState.QUEUED
            assert seen[-1] is JobState.COMPLETED
            assert seen.count(JobState.RUNNING) == 1
            ended = await client.status(job.id)
            assert ended.attempt == 1
            done = await client.download(job.id, tmp_path)
            assert done.checked
    assert b"far-away" in (tmp_path / "agent" / "log").read_bytes()


async def test_tokens_and_a_file_of_settings(tmp_path):
    file = tmp_path / "ferryman.toml"
    with ExitStack() as stack:
        file.write_text('[agent]\ntokens = ["for-the-agent-only"]\nservices = ["dock"]\n')
        agent = stack.enter_context(running("agent", tmp_path / "agent", "--config", file))
        file.write_text(
            file.read_text()
            + '[server]\ntokens = ["for-the-server-only"]\n[services.dock]\n[services.fold]\n'
            + f'[agents.near]\nurl = "{agent.url}"\ntoken = "for-the-agent-only"\n'
        )
        server = stack.enter_context(running("server", tmp_path / "server", "--config", file))
        async with Client(server.url, user="ada") as unauthenticated:
            assert (await unauthenticated.health()).status == "ok"
            for call in (unauthenticated.status(1), unauthenticated.services()):
                with pytest.raises(NotAllowed):
                    await call
            with pytest.raises(NotAllowed):
                await unauthenticated.submit({"run.sh": b""}, service="dock")
        async with Client(server.url, user="ada", token="for-the-server-only") as client:
            job = await client.submit({"run.sh": b"true"}, service="dock")
            ended = await client.wait(job.id, timeout=60)
            assert (ended.status, ended.agent) == (JobState.COMPLETED, "near")
            # Nobody offers this one: it waits, and says why.
            waiting = await client.submit({"run.sh": b"true"}, service="fold")
            queue = (await client.status(waiting.id)).queue
            assert queue is not None
            assert "fold" in queue.reason
            assert (await client.cancel(waiting.id)).status is JobState.CANCELLED
