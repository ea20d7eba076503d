"""The quotes of docs/troubleshooting.md, and the tests that provoke them.

A quote is a fenced block ``text NAME``; ``…`` stands for anything. A test says with
``symptoms`` which it provokes, and with ``said`` the messages that it got.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

from tests.docs.conftest import blocks

DOCUMENT = "docs/troubleshooting.md"


def quotes() -> dict[str, str]:
    found: dict[str, str] = {}
    for block in blocks(DOCUMENT):
        words = block.kind.split()
        if words[:1] == ["text"] and len(words) == 2:
            assert words[1] not in found, f"{words[1]} is quoted twice"
            found[words[1]] = block.text.strip()
    return found


def pattern(quote: str) -> re.Pattern[str]:
    """The quote, wherever lines are broken."""
    words = [re.escape(word).replace("…", ".*?") for word in quote.split()]
    return re.compile(r"\s+".join(words), re.DOTALL)


def said(name: str, text: str) -> None:
    """Fails if the page quotes it otherwise."""
    if to := os.environ.get("SYMPTOMS"):  # to write the page from
        with Path(to).open("a") as file:
            file.write(f"== {name}\n{text}\n")
        return
    quote = quotes()[name]
    assert pattern(quote).search(text), f"{DOCUMENT} quotes {name} as\n{quote}\nbut it is\n{text}"


def provoked() -> Iterator[str]:
    """Names in all calls of ``said`` of this folder."""
    for path in Path(__file__).parent.glob("test_troubleshooting_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(ast.Name("said"), [ast.Constant(str(name)), *_]):
                    yield name
