"""The page on sizing: its settings are settings, and its arithmetic is right."""

from __future__ import annotations

import ast
import operator
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

import client_agent.settings.agent
import server.settings.load
from tests.docs.conftest import blocks
from tests.support.each import each

NAME: Final = "docs/sizing.md"
_OPERATORS: Final[dict[type[ast.operator], Callable[[float, float], float]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def value(node: ast.expr) -> float:
    """Of an expression of numbers."""
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](value(node.left), value(node.right))
    assert isinstance(node, ast.Constant)
    assert isinstance(node.value, int | float)
    return node.value


def sums() -> list[tuple[str, str]]:
    """Expression and result of each line that calculates."""
    text = "\n".join(block.text for block in blocks(NAME) if block.kind == "text")
    found = [re.fullmatch(r".+: (.+) = ([0-9._]+)", line) for line in text.splitlines()]
    return [(one[1], one[2]) for one in found if one is not None]


@each(("expression", "result"), sums())
def test_each_sum_is_right(expression: str, result: str) -> None:
    exact = value(ast.parse(expression, mode="eval").body)
    assert float(result) == pytest.approx(exact, rel=0.02)


def test_there_are_sums_for_each_example() -> None:
    assert len(sums()) >= 15


def test_settings_on_the_page_are_settings(tmp_path: Path) -> None:
    examples = [block for block in blocks(NAME) if block.kind == "toml test"]
    assert len(examples) == 4
    for block in examples:
        file = tmp_path / "example.toml"
        file.write_text(block.text)
        assert "agent" in tomllib.loads(block.text)
        client_agent.settings.agent.load(file, {}, {})
        found = server.settings.load.read(file, {}, {})
        assert found.services
        assert found.agents
