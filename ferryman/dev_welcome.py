"""What ``ferryman dev`` says when both programs are ready: addresses, and what to do first."""

from __future__ import annotations

import contextlib
import http.client
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

ANSWER_S: Final = 10.0
"""For the server to say what it offers."""


def welcome(
    url: str, service: str, data_dir: Path, dashboard: str, *, asks: bool = False
) -> list[str]:
    """What to do first.

    Args:
        asks: the server asks for tokens.
    """
    shown = ' -H "Authorization: Bearer $FERRYMAN_TOKEN"' if asks else ""
    script = 'echo "hello from job $FERRYMAN_JOB_ID" | tee hello.txt'
    return [
        f"Ferryman is ready at {url}",
        f"  jobs are kept in {data_dir}; Ctrl-C stops server and agent",
        f"  dashboard: {dashboard}",
        "Try it in another terminal"
        + (", with FERRYMAN_TOKEN set to a token of your settings:" if asks else ":"),
        f"  echo '{script}' | curl -sS{shown} -F user_id=1 -F service={service} "
        f"-F 'file=@-;filename=run.sh' {url}/upload",
        "and fetch the result under the id that it answers:",
        f"  curl -sS{shown} -o result.zip '{url}/download/1?wait=30'",
    ]


def a_token(config: Path | None, environ: Mapping[str, str]) -> str | None:
    """One that the settings give the server; None: they give it none."""
    table = settings_table(config)
    tokens = _listed(environ.get("FERRYMAN_SERVER__TOKENS", table.get("tokens")))
    if file := environ.get("FERRYMAN_SERVER__TOKENS_FILE", table.get("tokens_file")):
        with contextlib.suppress(OSError, ValueError, TypeError):
            tokens = tokens or Path(file).read_text().split()
    return next((str(one).strip() for one in tokens), None)


def behind_proxy(dashboard: str, url: str, config: Path | None, environ: Mapping[str, str]) -> str:
    """Where the dashboard is if the settings have it below a path, which a proxy shows and the
    server itself does not know; empty: the address is good as it is.
    """
    public = environ.get("FERRYMAN_SERVER__PUBLIC_URL", settings_table(config).get("public_url"))
    prefix = urlsplit(str(public or "")).path.rstrip("/")
    if not prefix or not dashboard.startswith(f"{url}/"):
        return ""
    path = dashboard.removeprefix(url).removeprefix(prefix)
    return f"at the address of your proxy, {prefix}{path}"


def settings_table(config: Path | None, name: str = "server") -> dict[str, Any]:
    """A table of the file; empty where it has none that can be read."""
    with contextlib.suppress(OSError, ValueError):  # the server says what is wrong with it
        found = tomllib.loads(config.read_text()).get(name, {}) if config else {}
        return found if isinstance(found, dict) else {}
    return {}


def _listed(value: Any) -> list[Any]:
    """As the server reads a list: one of TOML, or in a variable a JSON list or ``a,b``."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        with contextlib.suppress(ValueError):
            return list(json.loads(value))
        return []
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value if isinstance(value, list) else []


def dashboard_of(server: http.client.HTTPConnection, url: str, token: str | None) -> str:
    """Its address; where a login is needed, one that logs in once."""
    link = None if token is None else _answer(server, "POST", "/api/v1/login-links", token)
    return str(link["url"]) if isinstance(link, dict) and "url" in link else f"{url}/"


def first_service(server: http.client.HTTPConnection, token: str | None) -> str:
    """A service that the server offers; a configuration file may define other ones."""
    offered = _answer(server, "GET", "/api/v1/services", token)
    with contextlib.suppress(LookupError, TypeError):
        return str(offered["items"][0]["name"])
    return "example"  # it needs a token, or answers otherwise


def _answer(server: http.client.HTTPConnection, method: str, path: str, token: str | None) -> Any:
    """A document of the API; None: the server answers otherwise.

    Not by the SDK: to import it takes a fifth of the time until both programs are ready.
    """
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        server.request(method, path, headers=headers)
        answer = server.getresponse()
        body = answer.read()
        return json.loads(body) if answer.status < 300 else None
    except (OSError, http.client.HTTPException, ValueError):
        server.close()  # and connected again by the next request
        return None
