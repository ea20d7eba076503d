"""Whatever can be set, called or typed is in the documentation; a new one fails here first."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import BaseModel
from typer.main import get_command

from client_agent.reload import RESTART as OF_AGENT
from client_agent.settings.agent import AgentSettings
from ferryman import SyncClient, errors
from ferryman.cli import exits
from ferryman.cli.app import app
from ferryman.client_options import ClientOptions
from server.api.openapi_document import codes_of
from server.api.routes import ROUTES
from server.settings.reloading import RESTART
from server.settings.tables import ServerSettings
from server.web.routes import ROUTES as PAGES
from shared.units.durations import parse_duration
from shared.units.sizes import parse_size
from shared.wire import JobState, Reason, WaitReason
from tests.support import forked_programs
from tests.support.dev_program import ROOT, environment

OPERATOR = (ROOT / "docs/operator-guide.md").read_text()
API = (ROOT / "docs/api.md").read_text()
SCRIPTS = (ROOT / "docs/scripts.md").read_text()
SDK = (ROOT / "docs/sdk.md").read_text()
USER = (ROOT / "docs/user-guide.md").read_text()
LIFECYCLE = (ROOT / "docs/lifecycle.md").read_text()


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    for inner in (annotation, *get_args(annotation)):
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield inner


def keys(model: type[BaseModel], path: str = "") -> Iterator[str]:
    """Every key of a settings model, below its table."""
    for name, info in model.model_fields.items():
        inner = list(models_in(info.annotation))
        yield f"{path}{name}"
        for found in inner:
            yield from keys(found, f"{path}{name}.")


def section(title: str) -> str:
    """A chapter of the operator guide, without the next one of the same level."""
    start = OPERATOR.index(f"### `{title}`")
    found = re.search(r"^##", OPERATOR[start + 4 :], re.MULTILINE)
    return OPERATOR[start : start + 4 + (found.start() if found else len(OPERATOR))]


def documented(table: str, key: str) -> bool:
    return re.search(rf"`{re.escape(key)}`", section(table)) is not None


def settings() -> list[tuple[str, str]]:
    found = []
    titles = {"server": "[server]"}
    for name in ("services", "agents", "users", "groups"):
        titles[name] = f"[{name}.NAME]"
    for name, title in titles.items():
        (model,) = _tables(ServerSettings, name)
        found += [(title, key) for key in keys(model)]
    (agent,) = _tables(AgentSettings, "agent")
    for key in keys(agent):
        if key.startswith("sandboxing.services."):
            table = "[agent.sandboxing.services.NAME]"
            found.append((table, key.removeprefix("sandboxing.services.")))
        elif key.startswith("sandboxing."):
            found.append(("[agent.sandboxing]", key.removeprefix("sandboxing.")))
        elif key != "sandboxing":
            found.append(("[agent]", key))
    return found


def _tables(model: type[BaseModel], name: str) -> Iterator[type[BaseModel]]:
    return models_in(model.model_fields[name].annotation)


def test_every_setting_is_documented():
    missing = [f"{key} under {table}" for table, key in settings() if not documented(table, key)]
    assert missing == [], "missing in docs/operator-guide.md"


def test_no_setting_is_documented_that_is_not_there():
    known = {key for _, key in settings()}
    for table in {table for table, _ in settings()}:
        for row in re.findall(r"^\| (`[^|]*`) \|", section(table), re.MULTILINE):
            for key in re.findall(r"`([^`]+)`", row):
                assert key in known, f"{key} under {table} is no setting"


def test_the_guide_lists_what_waits_for_a_restart():
    chapter = OPERATOR[OPERATOR.index("#### Changing settings") :]
    said = chapter[chapter.index("wait for a restart: ") : chapter.index("- Quotas hold")]
    assert set(re.findall(r"`(\w+)`", said)) == RESTART.keys()
    agents = chapter[chapter.index("wait for its restart:") : chapter.index("- With fewer `slots`")]
    assert set(re.findall(r"`(\w+)`", agents)) == OF_AGENT.keys()


def readings(text: str) -> Iterator[float]:
    """What a value of a settings file can mean."""
    for read in (float, parse_duration, parse_size):
        with contextlib.suppress(ValueError):
            yield read(text)


def test_documented_defaults_are_the_defaults():
    checked = 0
    for title, model in (
        ("[server]", next(_tables(ServerSettings, "server"))),
        ("[services.NAME]", next(_tables(ServerSettings, "services"))),
        ("[agent]", next(_tables(AgentSettings, "agent"))),
    ):
        for key, default in re.findall(
            r"^\| `(\w+)` \| `([^`]+)` \|", section(title), re.MULTILINE
        ):
            actual = model.model_fields[key].get_default(call_default_factory=False)
            if isinstance(actual, bool) or not isinstance(actual, int | float):
                continue
            text = default.strip('"')
            assert actual in readings(text), f"{title} {key}: documented {default}, is {actual}"
            checked += 1
    assert checked > 20


def test_every_route_is_documented():
    assert [one for one in ROUTES if f"`{one.method} {one.path}`" not in API] == []


def test_every_parameter_is_documented():
    missing = []
    for route in ROUTES:
        if route.query:
            start = API.index(f"`{route.method} {route.path}`")
            chapter = API[start : API.find("\n### ", start)]
            names = [name for name in route.query if not re.search(rf"\b{name}\b", chapter)]
            missing += [f"{name} of {route.method} {route.path}" for name in names]
    assert missing == []


def test_every_status_of_a_refusal_is_explained():
    said = set(
        re.findall(r"^\| ([45]\d\d) \|", API[: API.index("## Who may do what")], re.MULTILINE)
    )
    sent = {str(status) for route in ROUTES for status in codes_of(route)}
    assert said == sent | {"405"}  # no route's own: there is none with this method


def test_routes_that_are_documented_exist():
    known = {f"{route.method} {route.path}" for route in ROUTES}
    known |= {f"{page.method} {page.path}" for page in PAGES}
    server_part = API[: API.index("## The agent's routes")]
    for line in re.findall(r"^###? (.*)$", server_part, re.MULTILINE):
        for route in re.findall(r"`((?:GET|POST|PUT|DELETE) [^`]+)`", line):
            assert route in known


def commands() -> list[tuple[str, str]]:
    """Each command of the command line with each of its options."""
    found = []
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", {}).values()
        for parameter in [one for part in (command, *inner) for one in part.params]:
            found += [(name, option) for option in parameter.opts if option.startswith("--")]
    return found


def test_every_option_is_documented():
    missing = []
    for command, option in commands():
        start = SCRIPTS.index(f"## `ferryman {command}")
        chapter = SCRIPTS[start : SCRIPTS.find("\n## ", start + 1)]
        if option != "--help" and f"`{option}`" not in chapter:
            missing.append(f"{command} {option}")
    assert missing == []


@pytest.mark.parametrize(
    "name",
    [
        "server",
        "agent",
        "backup",
        "restore",
        *(f"admin {one}" for one in ("verify", "recount", "vacuum", "upgrade", "rollback")),
    ],
)
def test_every_option_of_the_programs_is_documented(name, tmp_path):
    module = {"server": "server", "agent": "client_agent"}.get(name, "server.maintenance")
    words = [] if name in ("server", "agent") else name.split()
    done = forked_programs.run(
        module, [*words, "--help"], {**environment(), "COLUMNS": "200"}, cwd=tmp_path
    )
    assert done.returncode == 0
    said = done.stdout
    assert "<" not in said  # a type of Python's in place of a word
    assert said.startswith(f"Usage: ferryman {name} [OPTIONS]")
    options = set(re.findall(r"(--[a-z][a-z-]+)", said)) - {"--help", "--config"}
    assert len(options) >= 2
    title = {"agent": "server"}.get(name, "admin verify" if " " in name else name)
    start = SCRIPTS.index(f"## `ferryman {title}")
    chapter = SCRIPTS[start : SCRIPTS.find("\n## ", start + 1)]
    for option in options:
        assert f"`{option}`" in chapter


def test_every_exit_code_is_documented():
    for name, code in vars(exits).items():
        if name.isupper() and not name.startswith("_") and name != "TYPE_CHECKING":
            assert re.search(rf"^\| {code} \|", SCRIPTS, re.MULTILINE), name


def sdk_row(method: str) -> str:
    """What the table says of a method."""
    return next((row for row in SDK.splitlines() if f"`{method}(" in row), "")


def test_every_method_and_parameter_of_the_sdk_is_documented():
    missing = []
    for name, value in vars(SyncClient).items():
        if name.startswith("_"):
            continue
        if isinstance(value, property):
            there = f"`client.{name}`" in SDK
        elif name == "close":
            there = "`close()`" in SDK
        else:
            row = sdk_row(name)
            there = bool(row)
            for parameter in list(inspect.signature(value).parameters)[1:]:
                short = "id" if parameter.endswith("_id") else parameter
                if not re.search(rf"\b({parameter}|{short})\b", row):
                    missing.append(f"{parameter} of {name}")
        if not there:
            missing.append(name)
    assert missing == []


def test_every_option_and_error_of_the_sdk_is_documented():
    for option in ClientOptions.__annotations__:
        assert re.search(rf"^\| [^|]*`{option}`", SDK, re.MULTILINE), option
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.FerrymanError):
            assert f"`{name}`" in SDK, name


def test_every_state_is_explained_to_users():
    for state in JobState:
        assert f"| `{state}` |" in USER


def test_reasons_to_wait_are_those_of_the_code():
    code = "".join(
        (ROOT / path).read_text()
        for path in ("server/stages/waiting.py", "server/agents/registry.py")
    )
    said = re.sub(r"\{[^{}]*\}", "8", code)
    chapter = OPERATOR[OPERATOR.index("## Why a job waits") :].partition("\n## ")[0]
    beginnings = re.findall(r"^\| `([^`]+)`", chapter, re.MULTILINE)[1:]
    assert len(beginnings) == 17
    codes = re.findall(r"^\| [^|]*\| `(\w+)` \|", chapter, re.MULTILINE)[1:]
    assert set(codes) == set(WaitReason)
    for words in beginnings:
        assert f'"{words}'.replace("NAME", "8").removesuffix("…") in said, words


LATER = {Reason.PIDS_LIMIT}
"""Reserved on the wire; no job fails for it yet."""


def test_every_reason_is_explained_to_users():
    for reason in set(Reason) - LATER:
        assert f"`{reason}`" in USER, reason
        assert f"`{reason}`" in LIFECYCLE, reason


def test_users_find_every_code_of_a_job_that_waits():
    for code in WaitReason:
        assert f"`{code}`" in USER, code
        assert f"`{code}`" in LIFECYCLE, code


def test_links_lead_somewhere():
    for document in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        text = document.read_text()
        for target, anchor in re.findall(r"\]\(([^)#:]*)(#[^)]*)?\)", text):
            path = (document.parent / target).resolve() if target else document
            assert path.exists(), f"{document.name}: {target}"
            if anchor:
                heads = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
                anchors = {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in heads}
                assert anchor[1:] in anchors, f"{document.name}: {target}{anchor}"
