"""Each setting, command, route and state is in the documentation, and each link leads somewhere."""

import ast
import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from typer.main import get_command

from client_agent.settings.agent import AgentSettings
from ferryman.cli.app import app
from scripts import states
from server.api.routes import ROUTES
from server.settings.tables import ServerSettings
from shared.units.durations import parse_duration
from shared.units.sizes import parse_size
from tests.kit.dev_program import ROOT

OPERATOR = (ROOT / "docs/operate.md").read_text()
API = (ROOT / "docs/api.md").read_text()
COMMANDS = (ROOT / "docs/cli.md").read_text()


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    for inner in (annotation, *get_args(annotation)):
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield inner


def keys(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, object]]:
    """Every key of a settings model with its default, below its table."""
    for name, info in model.model_fields.items():
        yield f"{path}{name}", info.default
        for inner in models_in(info.annotation):
            yield from keys(inner, f"{path}{name}.")


def settings() -> Iterator[tuple[str, str, object]]:
    """The heading under which a key belongs, the key, its default."""
    for name, info in ServerSettings.model_fields.items():
        for model in models_in(info.annotation):
            title = "[server]" if name == "server" else f"[{name}.NAME]"
            yield from ((title, key, default) for key, default in keys(model))
    (agent,) = models_in(AgentSettings.model_fields["agent"].annotation)
    for key, default in keys(agent):
        if key.startswith("sandboxing.services."):
            title = "[agent.sandboxing.services.NAME]"
            yield title, key.removeprefix("sandboxing.services."), default
        elif key.startswith("sandboxing."):
            yield "[agent.sandboxing]", key.removeprefix("sandboxing."), default
        elif key != "sandboxing":
            yield "[agent]", key, default


def section(title: str) -> str:
    """A chapter of the operator's page, without the next one of the same level."""
    found = re.search(rf"(?ms)^### `{re.escape(title)}`.*?(?=^##|\Z)", OPERATOR)
    assert found, f"{title} has no chapter"
    return found[0]


def readings(text: str) -> Iterator[float]:
    """What a value of a settings file can mean."""
    for read in (float, parse_duration, parse_size):
        with contextlib.suppress(ValueError):
            yield read(text)


def test_every_setting_has_a_row_with_its_default_and_no_row_is_about_another_one() -> None:
    wrong, known = [], {(title, key): default for title, key, default in settings()}
    for (title, key), default in known.items():
        if f"`{key}`" not in section(title):
            wrong.append(f"{title} {key} is missing")
        row = re.search(rf"^\| `{re.escape(key)}` \| `([^`]+)` \|", section(title), re.MULTILINE)
        if not row or isinstance(default, bool) or not isinstance(default, int | float):
            continue
        if default not in readings(row[1].strip('"')):
            wrong.append(f"{title} {key}: documented {row[1]}, is {default}")
    for title in {title for title, _ in known}:
        for cell in re.findall(r"^\| (`[^|]*`) \|", section(title), re.MULTILINE):
            keys = re.findall(r"`([^`]+)`", cell)
            wrong += [f"{key} under {title} is none" for key in keys if (title, key) not in known]
    assert wrong == []


def test_every_command_and_every_route_is_documented() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    assert [one for one in commands if not re.search(rf"`(ferryman )?{one}\b", COMMANDS)] == []
    assert [f"{one.method} {one.path}" for one in ROUTES if one.path not in API] == []


def said_in(path: Path) -> Iterator[str]:
    """Texts for people: of a program its strings, whole where they are written in parts."""
    if path.suffix != ".py":
        yield path.read_text()
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            parts = [part for part in node.values if isinstance(part, ast.Constant)]
            yield "".join(str(part.value) for part in parts)


def test_every_command_that_is_named_is_there() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    groups = {name: set(getattr(one, "commands", ())) for name, one in commands.items()}
    groups = {name: below for name, below in groups.items() if below}
    groups |= {"server": set(), "agent": {"check"}}
    paths = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    for part in ("server", "client_agent", "shared", "ferryman", "deploy"):
        paths += (ROOT / part).rglob("*")
    word = "([a-z][a-z-]*)"
    named = re.compile(rf"(?<!from )(?<![\w./-])ferryman {word}(?:[ \n]{word}\b(?!\.))?")
    wrong = []
    for path in paths:
        if path.suffix not in (".py", ".html", ".md", ".yml") or path.name == "completion.py":
            continue
        for text in said_in(path):
            for found in named.finditer(text):
                name, below = found.groups()
                if name not in commands or (below and below not in groups.get(name, {below})):
                    wrong.append(f"{path.relative_to(ROOT)}: {found[0]}")
    assert wrong == []


def test_links_lead_somewhere_and_every_picture_is_shown() -> None:
    wrong = []
    pages = (*ROOT.glob("*.md"), *ROOT.glob("examples/*.md"), *ROOT.glob("docs/**/*.md"))
    for page in pages:
        for target, anchor in re.findall(r"\]\(([^)#:]*)(#[^)]*)?\)", page.read_text()):
            path = (page.parent / target).resolve() if target else page
            found = path.exists()
            if found and anchor:
                heads = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
                anchors = {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in heads}
                found = anchor[1:] in anchors
            if not found:
                wrong.append(f"{page.name}: {target}{anchor}")
    assert wrong == []
    texts = [page.read_text() for page in pages]
    shown = {name for text in texts for name in re.findall(r"\(\S*pictures/(\S+)\)", text)}
    assert {path.name for path in (ROOT / "docs" / "pictures").iterdir()} == shown


def test_the_table_of_states_is_generated() -> None:
    assert states.BEGIN in states.PAGE.read_text()
    assert states.PAGE.read_text() == states.page(), "run python -m scripts.states"
