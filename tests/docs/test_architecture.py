"""The page about the architecture has the layers that the import linter checks."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.support.dev_program import ROOT

PAGE = (ROOT / "docs/architecture.md").read_text()
LINTER = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]


@pytest.mark.parametrize(("name", "package"), [("server", "server"), ("agent", "client_agent")])
def test_the_layers_are_those_of_the_import_linter(name: str, package: str) -> None:
    (contract,) = (one for one in LINTER["contracts"] if one.get("containers") == [package])
    layers = [
        " | ".join(part for part in layer.split(" | ") if not part.startswith("("))  # not there yet
        for layer in contract["layers"]
    ]
    (shown,) = re.findall(rf"^- {name}: `(.*)`$", PAGE, re.MULTILINE)
    assert shown.split(" → ") == layers
