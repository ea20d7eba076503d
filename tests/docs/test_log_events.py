"""The page about log events names what the programs log."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

from tests.support.dev_program import ROOT

PAGE = (ROOT / "docs/log-events.md").read_text()
LEVELS = {"debug", "info", "warning", "error", "exception"}
EVENT = re.compile(r"[a-z]+\.[a-z_]+")


def logged() -> Iterator[tuple[str, str]]:
    """Event and level of each call that logs."""
    for package in ("server", "client_agent", "shared"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                match node:
                    case ast.Call(ast.Attribute(ast.Name("log"), level), [event, *_]) if (
                        level in LEVELS
                    ):
                        texts = [part for part in ast.walk(event) if isinstance(part, ast.Constant)]
                        for text in texts:
                            yield str(text.value), level.replace("exception", "error")
                    case ast.Call(ast.Subscript(ast.Name("AgentTasks")), [ast.Constant(text)]):
                        yield str(text), "error"


def documented() -> Iterator[tuple[str, str]]:
    for names, levels in re.findall(r"^\| (`[a-z][^|]*`) \| ([^|]+) \|", PAGE, re.MULTILINE):
        for name in EVENT.findall(names):
            for level in levels.split(", "):
                yield name, level


def test_every_event_is_documented_with_its_level() -> None:
    known: dict[str, set[str]] = defaultdict(set)
    for event, level in logged():
        assert EVENT.fullmatch(event), f"{event} is not a noun and a verb"
        known[event].add(level)
    shown: dict[str, set[str]] = defaultdict(set)
    for event, level in documented():
        shown[event].add(level)
    assert shown == known
    assert len(known) > 50
