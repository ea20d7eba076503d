"""What befalls the soak: one disturbance after another, drawn from the seed."""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from random import Random
from typing import Any, TypeVar

from tests.kit.disks import fill
from tests.kit.programs import Program, until
from tests.soak.model import Backup, Model, Wrong, ask, pause
from tests.soak.system import AGENTS, LASTING, System
from tests.soak.watching import of_jobs

T = TypeVar("T")
_MORTAL = tuple(name for name in AGENTS if name != LASTING)


class Disturbing:
    def __init__(self, system: System, model: Model, mark: str, seed: int) -> None:
        self._system, self._model, self._mark, self._random = system, model, mark, Random(seed)
        self.last = ""
        self._backups: list[Backup] = []
        self._number = 0
        server, end = system.server, self._ended
        self._all: dict[str, tuple[Callable[[], None], int, bool]] = {
            "kill server": (lambda: self._killed(server), 4, True),
            "stop server": (lambda: end(server), 3, True),
            "kill all": (self.kill_all, 1, True),
            "restore": (self.restore, 2, True),
            "kill agent": (lambda: self._killed(self._mortal(), self._among(0, 0, 1, 8)), 5, False),
            "stop agent": (lambda: end(self._mortal()), 3, False),
            "drain by signal": (lambda: end(self._mortal(), signal.SIGUSR1), 1, False),
            "kill process": (self.kill_process, 6, False),
            "reload": (self.reload, 5, False),
            "reload wrong": (self.reload_wrong, 3, False),
            "drain": (self.drain, 4, False),
            "retire": (self.retire, 2, False),
            "lose": (self.lose, 2, False),
            "backup": (self.backup, 2, False),
            "jump clock": (self.jump_clock, 3, False),
        }
        """What to do, its weight, whether the server ends by it."""
        if system.fills:
            self._all["fill disk"] = (self.fill_disk, 2, False)

    def one(self, *, server_stays: bool) -> None:
        names = [one for one, (*_, ends) in self._all.items() if not (server_stays and ends)]
        (name,) = self._random.choices(names, [self._all[one][1] for one in names])
        print(f"{time.monotonic():.1f} {name}", flush=True)
        self.last = name
        self._all[name][0]()
        self._model.count(f"disturbance: {name}")

    def _among(self, *choices: T) -> T:
        return self._random.choice(choices)

    def _mortal(self) -> Program:
        return self._system.agents[self._random.choice(_MORTAL)]

    def _killed(self, program: Program, pause_s: float = 0) -> None:
        self._system.kill(program)
        pause(pause_s)
        if self._random.random() < 0.3:  # killed again while it starts
            program.begin()
            pause(self._random.uniform(0.1, 1.5))
            self._system.kill(program)
        program.start()

    def _ended(self, program: Program, number: signal.Signals = signal.SIGTERM) -> None:
        self._system.stop(program, number)
        program.start()

    def kill_all(self) -> None:
        programs = [self._system.server, *(self._system.agents[name] for name in _MORTAL)]
        for program in programs:
            self._system.kill(program)
        for program in programs:
            program.start()

    def kill_process(self) -> None:
        """SIGKILL to a process of a job, whichever."""
        found = of_jobs(self._mark)
        if not found:
            return
        victim = self._random.choice(found)
        self._model.touched.add(victim.job_id)
        try:
            os.kill(victim.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self._model.count("processes of jobs that were killed")

    def reload(self) -> None:
        self._system.configure(
            runs_per_user=self._among(2, 3, 4, 6),
            max_runs=self._among(4, 6, 8, 12),
            timeout=self._among("45s", "60s", "90s"),
            later=self._among("500ms", "1s", "2s"),
        )
        self._hup("settings.reloaded")

    def reload_wrong(self) -> None:
        """A file that is wrong changes nothing."""
        right = self._system.config.read_text()
        wrong = self._among("[services.example\n", "[server]\nprot = 5\n", "\x00")
        self._system.config.write_text(right + wrong if wrong != "\x00" else wrong)
        try:
            self._hup("settings.not_reloaded")
        finally:
            self._system.config.write_text(right)

    def fill_disk(self) -> None:
        """No byte is free below the server's data, for a while; then there is room again."""
        filler = fill(self._system.disk)
        pause(self._random.uniform(0.5, 6))
        filler.unlink()

    def jump_clock(self) -> None:
        """Somebody sets the machine's wall clock, and sets it right a little later."""
        day = 86_400
        self._system.set_clock(self._among(-400 * day, -day, -90, 90, day, 4_000 * day))
        pause(self._random.uniform(0.5, 8))
        self._system.set_clock(0)

    def _hup(self, event: str) -> None:
        server = self._system.server
        size = server._log.stat().st_size
        server.send(signal.SIGHUP)

        def logged() -> bool:
            with server._log.open("rb") as log:
                log.seek(size)
                return f'"{event}"'.encode() in log.read()

        until(logged, f"{event} is not logged", seconds=60)

    def _agent(self, name: str, action: str, *allowed: int) -> tuple[int, Any]:
        """Status and document; without an action it is only read."""
        path, method = f"/api/v1/agents/{name}", "POST" if action else "GET"
        body = json.dumps({"action": action}).encode() if action else b""
        headers = {"Content-Type": "application/json"}
        status, answer = ask(self._system.server.url, method, path, body, headers)
        if status not in (200, *allowed):
            raise Wrong(f"{action} {path}: {status} {answer[:500]!r}")
        return status, json.loads(answer)

    def _known(self, name: str) -> Any:
        return self._agent(name, "")[1]

    def drain(self) -> None:
        name = self._random.choice(AGENTS)
        self._agent(name, "drain")
        pause(self._random.uniform(0.2, 6))
        if self._known(name)["state"] != "draining":
            raise Wrong(f"agent {name} is not draining")
        self._agent(name, "resume")

    def retire(self) -> None:
        """Drain, wait until it has nothing, retire, and use it again."""
        name = self._random.choice(AGENTS)
        self._agent(name, "drain")
        try:
            end = time.monotonic() + 60
            while self._known(name)["jobs"] and time.monotonic() < end:
                pause(0.5)
            self._agent(name, "retire", 409)
            pause(1)
        finally:
            self._agent(name, "resume")

    def lose(self) -> None:
        """The agent is dead, its jobs go elsewhere at once; then it is back."""
        name = self._random.choice(_MORTAL)
        agent = self._system.agents[name]
        agent.kill()
        begun, attempts = time.monotonic(), 0
        while self._agent(name, "lost", 409)[0] != 200 and time.monotonic() < begun + 60:
            attempts += 1
            pause(0.3)
        if attempts:
            self._model.count("an agent that had died was called reachable for a moment")
        pause(self._random.uniform(0.2, 4))
        agent.start()
        until(lambda: self._known(name)["up"], f"agent {name} is not used again", seconds=120)

    def backup(self) -> None:
        self._number += 1
        path = str(self._system.folder / f"backup-{self._number}")
        begun = time.monotonic()
        self._system.ferryman("backup", path)
        self._backups.append(Backup(path, begun, time.monotonic(), self._model.generation))
        for old in self._backups[:-1]:
            shutil.rmtree(old.path, ignore_errors=True)

    def restore(self) -> None:
        """The server is lost; the backup is restored into another folder, under its address."""
        if not self._backups or self._backups[-1].generation != self._model.generation:
            self.backup()
            pause(self._random.uniform(5, 30))
        backup, server = self._backups[-1], self._system.server
        self._system.kill(server)
        former = server.data
        server.data = self._system.disk / f"server-{self._model.generation + 1}"
        self._model.restore(backup)
        self._system.ferryman("restore", backup.path)
        server.start()
        shutil.rmtree(former)
        for name in AGENTS:
            self._agent(name, "resume", 409)

    def calm(self) -> None:
        """All agents are used again."""
        for name in AGENTS:
            self._agent(name, "resume", 409)
        print(json.dumps(self._known(LASTING)), flush=True)
