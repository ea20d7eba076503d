"""job-orchestrator's own variables, so that its compose file works unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from shared.settings.base import SettingsError

_URLS: Final = ("UPLOAD_URL", "DOWNLOAD_URL", "TERMINATE_URL")
_NUMBERS: Final = {"RUNS_PER_USER": "runs_per_user", "MAX_RUNS": "max_runs"}


def tables(environ: Mapping[str, str]) -> dict[str, Any]:
    """job-orchestrator's own variables as tables of the settings.

    Raises:
        SettingsError: not a number, or a service without all three addresses.
    """
    server: dict[str, Any] = {}
    if "PORT" in environ:
        server["port"] = _number(environ, "PORT")
    if "DB_PATH" in environ:
        server["db_path"] = environ["DB_PATH"]
    if "DATA_PATH" in environ:
        server["data_dir"] = environ["DATA_PATH"]
    services: dict[str, dict[str, Any]] = {}
    addresses: dict[str, dict[str, str]] = {}
    for name in environ:
        for suffix in (*_URLS, *_NUMBERS):
            if not (name.startswith("SERVICE_") and name.endswith(f"_{suffix}")):
                continue
            service = name.removeprefix("SERVICE_").removesuffix(f"_{suffix}").lower()
            table = services.setdefault(service, {})
            if suffix in _NUMBERS:
                table[_NUMBERS[suffix]] = _number(environ, name)
            else:
                addresses.setdefault(service, {})[suffix.lower()] = environ[name]
    if "MAX_AGE" in environ:
        for table in services.values() or [services.setdefault("example", {})]:
            table["expires_after"] = _number(environ, "MAX_AGE")
    tables: dict[str, Any] = {"server": server} if server else {}
    if services:
        tables["services"] = services
    if addresses:
        tables["agents"] = {
            service: {**urls, "services": [service]} for service, urls in addresses.items()
        }
    return tables


def _number(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except ValueError:
        raise SettingsError(f"{name}: {environ[name]!r} is not a whole number") from None
