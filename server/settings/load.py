"""Reads the settings: a TOML file, then variables, then flags."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from server.settings import orchestrator
from server.settings.agents import AgentTable
from server.settings.tables import ServerSettings
from shared.settings.base import SettingsError
from shared.settings.load import load


def agent_at(url: str) -> AgentTable:
    """A Ferryman agent.

    Raises:
        SettingsError: no address.
    """
    try:
        return AgentTable(url=url)
    except ValidationError as problem:
        why = problem.errors()[0]["msg"].removeprefix("Value error, ")
        raise SettingsError(f"--agent-url: {why}") from None


def read(
    file: Path | None, flags: Mapping[str, Any], environ: Mapping[str, str] = os.environ
) -> ServerSettings:
    """Read file, variables and flags. Raises SettingsError."""
    return load(
        ServerSettings,
        file=file,
        flags=flags,
        environ=environ,
        ignore=["agent"],
        extra=orchestrator.tables(environ),
    )
