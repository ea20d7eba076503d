"""The page about log events names what the programs log: events, levels and fields."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from shared.log_folding import NEVER, SUBJECTS
from tests.support.dev_program import ROOT

PAGE = (ROOT / "docs/log-events.md").read_text()
LEVELS = {"debug", "info", "warning", "error", "exception"}
EVENT = re.compile(r"[a-z]+\.[a-z_]+")
ROW = re.compile(r"^\| (`[a-z][^|]*`) \| ([^|]+) \| ([^|]*) \| ([^|]+) \|$", re.MULTILINE)


@dataclass
class Event:
    levels: set[str] = field(default_factory=set)
    fields: set[str] = field(default_factory=set)


def keys_in(node: ast.AST) -> set[str]:
    """Of the dict literals and ``dict(…)`` calls in an expression."""
    found = set()
    for one in ast.walk(node):
        if isinstance(one, ast.Dict):
            found |= {key.value for key in one.keys if isinstance(key, ast.Constant)}
            if any(isinstance(key, ast.Attribute) for key in one.keys):  # RequestLog's id_field
                found |= {"job_id", "payload_id"}
    return {str(key) for key in found}


def fields_of(call: ast.Call, scope: ast.AST) -> set[str]:
    found: set[str] = set()
    for keyword in call.keywords:
        if keyword.arg is not None:
            found.add(keyword.arg)
            continue
        found |= keys_in(keyword.value)
        names = {one.id for one in ast.walk(keyword.value) if isinstance(one, ast.Name)}
        for node in ast.walk(scope):
            if isinstance(node, ast.Assign):
                targets = {one.id for one in node.targets if isinstance(one, ast.Name)}
                if targets & names:
                    found |= keys_in(node.value)
    return found - {"exc_info"}


def logged() -> dict[str, Event]:
    """What each call that logs says."""
    found: dict[str, Event] = defaultdict(Event)
    for package in ("server", "client_agent", "shared"):
        for path in (ROOT / package).rglob("*.py"):
            for function in ast.walk(ast.parse(path.read_text())):
                if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                    for event, level, fields in calls_in(function):
                        found[event].levels.add(level)
                        found[event].fields |= fields
    return found


def calls_in(function: ast.AST) -> Iterator[tuple[str, str, set[str]]]:
    for node in ast.walk(function):
        match node:
            case ast.Call(
                ast.Attribute(ast.Name("log") | ast.Attribute(attr="_log"), level), [event, *_]
            ) if level in LEVELS:
                fields = fields_of(node, function)
                texts = [part for part in ast.walk(event) if isinstance(part, ast.Constant)]
                for text in texts:
                    yield str(text.value), level.replace("exception", "error"), fields
            case ast.Call(ast.Subscript(ast.Name("AgentTasks")), [ast.Constant(text)]):
                yield str(text), "error", {"key"}


def documented() -> dict[str, Event]:
    found: dict[str, Event] = defaultdict(Event)
    for names, levels, fields, meaning in ROW.findall(PAGE):
        assert meaning.strip()
        for name in EVENT.findall(names):
            assert name not in found, f"{name} is there twice"
            found[name] = Event(set(levels.split(", ")), set(re.findall(r"`([^`]+)`", fields)))
    return found


def test_every_event_is_documented_with_its_level_and_its_fields() -> None:
    known, shown = logged(), documented()
    for event in known:
        assert EVENT.fullmatch(event), f"{event} is not a noun and a verb"
    assert set(shown) == set(known)
    differing = {one: (shown[one], known[one]) for one in known if shown[one] != known[one]}
    assert differing == {}
    assert len(known) > 50


def test_what_is_folded_is_logged_and_has_the_fields_that_it_is_folded_by() -> None:
    known = logged()
    assert set(known) >= NEVER
    for event, subject in SUBJECTS.items():
        assert known[event].fields >= set(subject), event
