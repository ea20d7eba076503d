"""The Dockerfiles and the compose file: their own checkers, and what their steps make."""

import os
import re
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from server.settings import load
from tests.kit.dev_program import ROOT, ended
from tests.kit.installed import program

DOCKER = ROOT / "deploy/docker"
COMPOSE = YAML(typ="safe").load(DOCKER / "compose.yaml")
IMAGES = ("server", "agent")


def test_hadolint_and_the_schema_of_compose_find_no_fault():
    lint = [program("hadolint"), "--no-color"]
    schema = [program("check-jsonschema"), "--builtin-schema", "vendor.compose-spec"]
    for words, files in (
        (lint, [DOCKER / f"{image}.Dockerfile" for image in IMAGES]),
        (schema, sorted(DOCKER.glob("compose*.yaml"))),
    ):
        for file in files:
            ended(*words, file)


def _environment(service: str, **given: str) -> dict[str, str]:
    """What compose gives the container, with ``${NAME:-default}`` filled in from ``given``."""

    def filled(text: str) -> str:
        return re.sub(r"\$\{(\w+):-([^}]*)\}", lambda m: given.get(m[1], m[2]), text)

    table = COMPOSE["services"][service]["environment"]
    return {**given, **{name: filled(str(value)) for name, value in table.items()}}


def test_the_compose_file_gives_the_server_what_it_reads(tmp_path, monkeypatch):
    given = {"PORT": "5050", "MAX_AGE": "60", "SERVICE_DOCK_MAX_RUNS": "3"}
    for suffix in ("UPLOAD", "DOWNLOAD", "TERMINATE"):
        given[f"SERVICE_DOCK_{suffix}_URL"] = f"http://old-client:9000/{suffix.lower()}"
    (tmp_path / "token").write_text("a-token-of-twenty-characters\n")
    variables = _environment("server", **given)
    for name, value in variables.items():
        if name.endswith("_FILE"):  # a secret that compose mounts
            value = str(tmp_path / "token")
        monkeypatch.setenv(name, value)
    found = load.read(None, {}, {**os.environ})
    assert (found.server.port, str(found.server.data_dir)) == (5050, "/data")
    assert found.services["dock"].max_runs == 3
    assert found.services["dock"].expires_after == 60
    assert found.agents["compute"].url == "http://agent:9000"
    assert found.agents["dock"].upload_url == "http://old-client:9000/upload"


def test_every_secret_and_volume_that_is_used_is_declared():
    for service in COMPOSE["services"].values():
        assert set(service["secrets"]) <= set(COMPOSE["secrets"])
        assert {line.split(":")[0] for line in service["volumes"]} <= set(COMPOSE["volumes"])
        for name, value in service["environment"].items():
            if name.endswith("_FILE"):
                assert Path(value).name in service["secrets"]


@pytest.mark.slow
@pytest.mark.parametrize("image", IMAGES)
def test_the_steps_of_the_image_make_a_program_that_runs(image, tmp_path):
    """The build stage's COPY and RUN lines, in a folder instead of a container."""
    text = (DOCKER / f"{image}.Dockerfile").read_text().replace("\\\n", " ")
    build = text.split("\nFROM ")[1]
    source = tmp_path / "source"
    source.mkdir()
    places = {"/opt/ferryman": tmp_path / "opt", "/build": tmp_path / "b"}
    places["/wheels"] = tmp_path / "wheels"
    for line in build.splitlines():
        if line.startswith("COPY "):
            *names, target = line.split()[1:]
            folder = source / target
            for name in names:
                into = folder / Path(name).name if target.endswith("/") else folder
                into.parent.mkdir(parents=True, exist_ok=True)
                ended("cp", "-rT", ROOT / name, into)
        elif line.startswith("RUN "):
            step = line.removeprefix("RUN ").replace("python -m venv", f"{sys.executable} -m venv")
            for place, there in places.items():
                step = re.sub(rf"(?<![\w/]){place}\b", str(there), step)
            ended("bash", "-euc", step, cwd=source)
    shown = ended(places["/opt/ferryman"] / "bin/ferryman", image, "--help", cwd=tmp_path)
    assert "--data-dir" in shown.stdout
