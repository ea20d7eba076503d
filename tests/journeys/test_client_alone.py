"""The client without the rest: nothing of ours beside it, only its own dependencies, any system."""

import sys
import tomllib
import venv
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.kit.dev_program import ROOT, DevProgram, ended, started

ALONE = """
import importlib, pkgutil, sys

ABSENT = {"server", "client_agent", "fcntl", "grp", "pwd", "resource", "termios"}  # and on Windows
ABSENT |= {"aiosqlite", "isal", "pydantic_settings", "python_multipart", "structlog"}
for name in ABSENT:
    sys.modules[name] = None
import ferryman, ferryman.cli
assert not {"aiohttp", "pydantic"} & set(sys.modules), "what help does not need is not imported"
for module in pkgutil.walk_packages(ferryman.__path__, "ferryman."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
for name in ferryman.__all__:
    getattr(ferryman, name)
assert "shared" not in sys.modules
print("all", ferryman.__version__)
"""
JOB = """
import sys
from ferryman import SyncClient

with SyncClient(sys.argv[1], user="ada") as client:
    job = client.submit({"run.sh": b"echo hi > hi.txt"}, service="example")
    print(client.wait(job.id).status, client.download(job.id, "r.zip").path)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's own, with files that are called like packages of ours."""
    for name in ("shared", "server", "client_agent"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('the own {name}.py was run')\n")
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "run.sh").write_text("echo hi\n")
    return tmp_path


def test_no_module_needs_what_only_server_agent_or_linux_have(folder):
    done = ended(sys.executable, "-c", ALONE, cwd=folder)
    assert done.stderr == ""
    assert done.stdout.startswith("all ")


def test_a_program_is_ours_whatever_lies_in_the_current_folder(folder):
    done = ended(sys.executable, "-m", "ferryman", "agent", "-h", cwd=folder)
    assert done.stdout.startswith("Usage: ferryman agent [OPTIONS]")
    assert "--data-dir DIR" in done.stdout
    assert "<" not in done.stdout, "types are no help"


def installed(environment_folder: Path, extra: str = "") -> Path:
    """A virtual environment with the wheel and what it needs; returns its ``bin``."""
    wheels = environment_folder / "wheels"
    build = ["-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)]
    ended(sys.executable, *build, cwd=ROOT)
    venv.create(environment_folder / "venv", with_pip=False, symlinks=True)
    bin_folder = environment_folder / "venv" / "bin"
    install = ["-m", "pip", "--python", str(bin_folder / "python"), "install", "--no-deps"]
    (wheel,) = wheels.iterdir()
    ended(sys.executable, *install, "--no-index", "--quiet", wheel, cwd=ROOT)
    (site,) = environment_folder.glob("venv/lib/python*/site-packages")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = project["dependencies"] + (project["optional-dependencies"][extra] if extra else [])
    for name in closure(needed):
        link(metadata.distribution(name), site)
    return bin_folder


def closure(requirements: list[str]) -> set[str]:
    """These distributions and all that they need."""
    found: set[str] = set()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        one = waiting.pop()
        if one.name not in found and (one.marker is None or one.marker.evaluate({"extra": ""})):
            found.add(one.name)
            waiting += map(Requirement, metadata.requires(one.name) or [])
    return found


def link(distribution: metadata.Distribution, site: Path) -> None:
    tops = {path.parts[0] for path in distribution.files or []} - {"..", "__pycache__"}
    for top in tops:
        if not (site / top).exists():
            (site / top).symlink_to(Path(str(distribution.locate_file(top))))


@pytest.mark.slow
def test_the_wheel_alone_sends_bundles(system: DevProgram, folder, tmp_path_factory):
    """And says what a server needs."""
    programs = installed(tmp_path_factory.mktemp("alone"))
    python, ferryman = programs / "python", programs / "ferryman"
    done = ended(python, "job.py", system.url, cwd=folder)
    assert (done.stdout, done.stderr) == ("Completed r.zip\n", "")
    here = ("submit", "run.sh", "-s", "example", "-u", "ada", "-q", "-o", "x.zip")
    for program in ((ferryman,), (python, "-m", "ferryman")):
        ended(*program, *here, "--url", system.url, cwd=folder)
        for word in ("dev", "server", "agent"):
            done = ended(*program, word, cwd=folder, status=69)
            assert "pip install 'ferryman[server]'" in done.stderr
            assert "aiosqlite" in done.stderr
            assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_with_its_extra_the_wheel_runs_a_system_beside_a_users_files(folder, tmp_path_factory):
    programs = installed(tmp_path_factory.mktemp("extra"), "server")
    with started(folder, program=(str(programs / "ferryman"),)) as system:
        done = ended(programs / "python", "job.py", system.url, cwd=folder)
        assert (done.stdout, done.stderr) == ("Completed r.zip\n", "")
