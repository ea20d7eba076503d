"""What must hold for the repository as a whole."""

import ast
import importlib
import pkgutil
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.kit.dev_program import ROOT, ended
from tests.kit.each import each

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES: list[str] = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
ADRS = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))
HEADINGS = ["Status", "Context", "Decision", "Consequences"]
MAKEFILE = (ROOT / "Makefile").read_text()

# Put together here, so that this file does not hold what it forbids.
REGISTRIES = ["py" + "pi.org", "python" + "hosted.org", "npm" + "js.org", "npm" + "js.com"]
SLEEPS = ("time.sleep", "asyncio.sleep")
LOCAL_PATHS = re.compile(r"(?<![\w.])/(work|opt/wheels|root|home/[a-z]+)/" + r"(?=\w)")


def tracked() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("no checkout: what the repository's files hold is not proved")
    listed = ended("git", "ls-files", "-z", cwd=ROOT).stdout.split("\0")
    files = [ROOT / name for name in listed if name]
    return [path for path in files if path.is_file()]


def targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))


def locked(name: str) -> dict[str, str]:
    """Package -> version."""
    text = (ROOT / "requirements" / name).read_text()
    found = re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", text, re.MULTILINE)
    return {canonicalize_name(package): version for package, version in found}


def wanted(group: str | None) -> list[Requirement]:
    """What pyproject asks for: the application (None), or a group with those it includes."""
    if group is None:
        return [Requirement(line) for line in PROJECT["project"]["dependencies"]]
    found: list[Requirement] = []
    for line in PROJECT["dependency-groups"][group]:
        found += wanted(line["include-group"]) if isinstance(line, dict) else [Requirement(line)]
    return found


@each("lock", LOCKS)
def test_a_lock_pins_and_hashes_everything_and_says_nothing_of_its_origin(lock):
    text = lock.read_text()
    for sign in ("://", "file:", " @ ", "--index-url", "--find-links", "--trusted-host", "/opt/"):
        assert sign not in text
    entries = re.split(r"\n(?=[A-Za-z0-9])", re.sub(r"^(#.*\n)+", "", text))
    assert len(entries) == len(locked(lock.name)) > 0
    for entry in entries:
        assert re.match(r"\S+==\S+", entry), entry
        assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}\b", entry)) >= 1, entry


@each(
    "name, group",
    [("run", None), ("build", "build"), ("dev", None), ("dev", "dev"), ("lock", "lock")],
)
def test_every_dependency_is_locked_in_a_version_that_pyproject_allows(name, group):
    versions = locked(f"{name}.txt")
    requirements = wanted(group)
    assert requirements
    for requirement in requirements:
        assert versions[canonicalize_name(requirement.name)] in requirement.specifier, requirement


def test_what_is_tested_is_what_is_run():
    run, build, dev = locked("run.txt"), locked("build.txt"), locked("dev.txt")
    assert run.items() | build.items() <= dev.items()


def test_what_is_shipped_imports_says_that_it_is_typed_and_has_its_command():
    assert PACKAGES == ["server", "client_agent", "shared", "ferryman"]
    for package in PACKAGES:
        folder = importlib.import_module(package)
        for _, name, _ in pkgutil.walk_packages(folder.__path__, f"{package}."):
            if not name.endswith(".__main__"):
                importlib.import_module(name)
    for package in ("shared", "ferryman"):  # what others import
        assert (ROOT / package / "py.typed").is_file()
    (target,) = PROJECT["project"]["scripts"].values()
    module, function = target.split(":")
    assert callable(getattr(importlib.import_module(module), function))


def test_no_file_names_a_registry_or_a_path_of_somebodys_machine():
    found = []
    for path in tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}: {host}" for host in REGISTRIES if host in text]
        if path != Path(__file__):
            found += [f"{path.relative_to(ROOT)}: {m[0]}" for m in LOCAL_PATHS.finditer(text)]
    assert found == []


def test_every_test_file_has_tests_and_none_sleeps():
    empty, sleepers = [], []
    for path in (ROOT / "tests").rglob("test_*.py"):
        text, name = path.read_text(), path.relative_to(ROOT)
        nodes = list(ast.walk(ast.parse(text)))
        tests = [one for one in nodes if str(getattr(one, "name", "")).startswith("test_")]
        if "RuleBasedStateMachine" not in text and not tests:
            empty.append(name)
        used = [node for node in nodes if isinstance(node, ast.Attribute)]
        sleepers += [f"{name}:{one.lineno}" for one in used if ast.unparse(one) in SLEEPS]
    assert (empty, sleepers) == ([], [])


def test_the_licence_is_apache_2_in_full_and_each_example_has_its_line_in_the_table():
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License\n                           Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert PROJECT["project"]["license"] == "Apache-2.0"
    found = {path.parent.name for path in (ROOT / "examples").glob("*/run.sh")}
    assert found >= {"contacts", "mandelbrot", "csv-stats", "fails-instructively"}
    table = (ROOT / "examples" / "README.md").read_text()
    assert found <= set(re.findall(r"^\| \[`([^`]+)`\]", table, re.MULTILINE))


def test_decisions_are_numbered_without_gaps_have_four_headings_and_fit_on_a_page():
    assert [int(path.name[:4]) for path in ADRS] == list(range(1, len(ADRS) + 1))
    table = (ROOT / "docs" / "adr" / "README.md").read_text()
    wrong = []
    for adr in ADRS:
        text = adr.read_text()
        title = re.match(rf"# {int(adr.name[:4])}\. (\S.*)", text)
        listed = title is not None and f"]({adr.name}) | {title[1]} |\n" in table
        headings = re.findall(r"^## (.+)$", text, re.MULTILINE) == HEADINGS
        if not (listed and headings and len(text.splitlines()) <= 80):
            wrong.append(adr.name)
    assert ADRS
    assert wrong == []


def test_every_make_target_that_a_page_mentions_and_that_ci_runs_exists():
    for page in ("README.md", "CONTRIBUTING.md"):
        text = (ROOT / page).read_text()
        mentioned = set(re.findall(r"(?:`|^)make ([a-z-]+)", text, re.MULTILINE))
        assert "test" in mentioned
        assert mentioned <= targets(), page
    script = (ROOT / ".ci" / "run").read_text()
    (checks,) = re.findall(r'for check in ([a-z ]+) "\$tests";', script)
    assert checks.split() == ["lint", "types", "imports"]
    assert "tests=${1:-test}" in script
    assert {*checks.split(), "test", "test-all"} <= targets()
