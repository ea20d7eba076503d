"""The programs of the soak: a server and three agents, on ports that stay."""

import os
import signal
import tempfile
from contextlib import suppress
from pathlib import Path

from client_agent.storage.remove_tree import remove_tree
from tests.kit.dev_program import FERRYMAN, ended
from tests.kit.programs import Program, left_behind
from tests.soak.model import EXPIRES_S, FORGOTTEN_S, Wrong
from tests.soak.watching import VARIABLE, of_jobs

AGENTS = ("a", "b", "c")
SERVICES = ("example", "second")
LASTING = "c"
"""This agent is never killed or stopped: its memory is looked at over the whole time."""
SERVER = """
[server]
agent_timeout = "5s"
cleaner_interval = "2s"
audit_expires_after = "60s"
"""
SERVICE = """
[services.{name}]
runs_per_user = {runs_per_user}
max_runs = {max_runs}
infra_retries = 100000
retry_later_delay = "{later}"
timeout = "{timeout}"
expires_after = "{expires:.0f}s"
forget_after = "{forgotten:.0f}s"
on_shutdown = "resubmit"
limits = {{ disk = "32MiB", memory = "64MiB", log = "1MiB" }}
env = {{ {variable} = "{mark}" }}
"""
AGENT = """
[agent]
name = "{name}"
slots = 3
grace = "1s"
"""


AT_ONCE = 8
"""Uploads and results that the server may be storing when it is killed."""
DISK_BYTES = 600 << 20
"""Of the file system that holds the server's data, and that is filled up now and then."""
_CLOCK = Path(__file__).parent / "clock"


class System:
    """A server and its agents, in a folder that every uid of this machine can enter.

    Attributes:
        disk: a file system of its own, for the server's data; root only.
        fills: whether that is so.
        server_kills: how often the server was killed. Each time, some files may have been stored
            whose rows never came; the server keeps them for a day.
    """

    def __init__(self, mark: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ferryman-soak-"))
        self.folder.chmod(0o755)
        self.mark, self.config = mark, self.folder / "server.toml"
        self.disk, self._time, self.fills = self.folder / "disk", self.folder / "time", False
        self.server_kills = 0
        self.disk.mkdir()
        self.set_clock(0)
        self._mount()
        self.agents: dict[str, Program] = {}
        for name in AGENTS:
            home = self.folder / name
            home.mkdir()
            (home / "agent.toml").write_text(AGENT.format(name=name))
            flags = ("--config", str(home / "agent.toml"))
            self.agents[name] = Program("client_agent", home, mark, *flags)
        self.server = Program("server", self.disk, mark, "--config", str(self.config))
        self.server.prefix = ("env", f"PYTHONPATH={_CLOCK}", f"SOAK_CLOCK={self._time}")
        self.configure()

    def _mount(self) -> None:
        if os.geteuid() == 0:
            options = f"size={DISK_BYTES},mode=755"
            mount = ("mount", "-t", "tmpfs", "-o", options, "ferryman-soak", self.disk)
            self.fills = ended(*mount, status=None).returncode == 0
        if not self.fills:
            print("not root: that a full disk loses nothing is not proved")

    def set_clock(self, ahead_s: int) -> None:
        """What the server takes for the machine's wall clock."""
        new = self._time.with_suffix(".new")
        new.write_text(f"{ahead_s:+d}\n")
        new.replace(self._time)

    def remove(self) -> None:
        if self.fills:
            ended("umount", "--lazy", self.disk)
        remove_tree(self.folder)

    def programs(self) -> dict[str, Program]:
        return {"server": self.server} | {f"agent {name}": p for name, p in self.agents.items()}

    def configure(
        self, runs_per_user: int = 4, max_runs: int = 8, timeout: str = "60s", later: str = "1s"
    ) -> None:
        given = {"runs_per_user": runs_per_user, "max_runs": max_runs, "timeout": timeout}
        given |= {"later": later, "expires": EXPIRES_S, "forgotten": FORGOTTEN_S}
        given |= {"variable": VARIABLE, "mark": self.mark}
        text = SERVER + "".join(SERVICE.format(name=name, **given) for name in SERVICES)
        for name, agent in self.agents.items():
            text += f'[agents.{name}]\nurl = "{agent.url}"\n'
        self.config.write_text(text)

    def start(self) -> None:
        for program in reversed(self.programs().values()):
            program.start()

    def kill(self, program: Program) -> None:
        program.kill()
        self.server_kills += program is self.server

    def stop(self, program: Program, number: signal.Signals = signal.SIGTERM) -> None:
        """Send the signal, and wait for an end with code 0."""
        program.send(number)
        if code := program.wait(180):
            said = program.log[-3000:]
            raise Wrong(f"{program.name} ended with {code} after {number.name}: {said}")

    def ferryman(self, verb: str, path: str) -> None:
        places = ("--config", self.config, "--data-dir", self.server.data)
        ended(*FERRYMAN, verb, path, *places)

    def left(self) -> list[str]:
        """What the stopped programs must not leave on this machine."""
        found = [f"process of a job {one}" for one in of_jobs(self.mark)]
        for path in Path("/sys/block").glob("loop*/loop/backing_file"):
            with suppress(OSError):  # it was given up at this moment
                if str(self.folder) in path.read_text():
                    found.append(f"loop device {path}")
        for agent in self.agents.values():
            found += left_behind(agent)
            for place in ("bundles", "results", "staging", "logs", "work", "quarantine"):
                found += files(agent.data / place)
        of_server = [files(self.server.data / one) for one in ("staging", "bundles", "results")]
        orphans = of_server[1] + of_server[2]
        return found + of_server[0] + orphans[AT_ONCE * self.server_kills :]


def files(folder: Path) -> list[str]:
    return [f"file {path}" for path in folder.rglob("*") if path.is_file()]
