"""No secret is shown: one of each kind is planted, and searched for everywhere."""

import contextlib
import json
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.kit.dev_program import descendants
from tests.kit.programs import Pair, form
from tests.kit.raw_archives import FORM

SERVICE_SECRET = "planted-service-secret-1"
SETTINGS_TOKEN = "planted-settings-token-2"
SETTINGS = f"""
[server]
tokens = ["{SETTINGS_TOKEN}"]
log_level = "debug"
[agent]
services = ["example"]
[services.example]
env = {{ LICENSE = "{SERVICE_SECRET}" }}
"""
SCRIPT = 'test -n "$LICENSE" && mkfifo gate && cat gate\n'


class Caller:
    def __init__(self, url: str) -> None:
        self._address = urlsplit(url).netloc
        self.answers: list[str] = []
        """Everything that the server has said since the secrets are known."""

    def ask(self, method: str, path: str, token: str, body: Any = None) -> Any:
        """Status and document."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        kind = FORM if data is body else "application/json"
        headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
        with contextlib.closing(HTTPConnection(self._address, timeout=30)) as line:
            line.request(method, path, data, headers)
            answer = line.getresponse()
            text = answer.read().decode("utf-8", "replace")
        self.answers.append(f"{answer.headers}{text}")
        return answer.status, json.loads(text) if text.startswith("{") else {}


def processes(pair: Pair) -> Iterator[tuple[int, str, str]]:
    """Pid, command line and environment of both programs and all that they have started."""
    own = (pair.server.pid, pair.agent.pid)
    for pid in {*own, *(below for one in own for below in descendants(one))}:
        with contextlib.suppress(OSError):
            words, variables = (
                Path(f"/proc/{pid}/{name}").read_bytes().replace(b"\0", b"\n").decode()
                for name in ("cmdline", "environ")
            )
            yield pid, words, variables


@pytest.mark.slow
def test_no_secret_is_in_a_log_an_answer_or_a_list_of_processes(tmp_path: Path) -> None:
    with Pair(tmp_path, SETTINGS).running() as pair:
        look(pair, Caller(pair.server.url))


def look(pair: Pair, caller: Caller) -> None:
    operator = SETTINGS_TOKEN
    _, portal = caller.ask("POST", "/api/v1/tokens", operator, {"name": "p", "role": "portal"})
    rotate = f"/api/v1/tokens/{portal['id']}/rotate"
    _, rotated = caller.ask("POST", rotate, operator, {"overlap": "1h"})
    token = rotated["token"]
    ask = {"user_id": "ann", "service": "example"}
    _, ticket = caller.ask("POST", "/api/v1/tickets", token, ask)
    status, job = caller.ask("POST", "/upload", token, form({"run.sh": SCRIPT}, **ask))
    assert status == 201, job
    _, link = caller.ask("POST", f"/api/v1/jobs/{job['id']}/links", token, {"what": "job"})
    _, hook = caller.ask("GET", "/api/v1/webhook-secret", token)
    seen = "Queued"
    for _ in range(10):
        path = f"/api/v1/jobs/{job['id']}?wait=20&seen={seen}"
        seen = caller.ask("GET", path, token)[1]["status"]
        if seen == "Running":
            break
    assert seen == "Running"
    secrets = {
        "service secret": SERVICE_SECRET,
        "settings token": SETTINGS_TOKEN,
        "token": portal["token"].split("_")[2],
        "rotated token": token.split("_")[2],
        "ticket": ticket["ticket"],
        "link": link["url"].partition("link=")[2],
        "own hook secret": hook["secrets"][0].removeprefix("whsec_"),
    }
    assert all(len(secret) >= 16 for secret in secrets.values())
    caller.answers.clear()

    # Used well, and wrongly: a letter of each is changed, or it is where it does not belong.
    used = form({"run.sh": SCRIPT}, **ask)
    caller.ask("POST", f"/upload?ticket={ticket['ticket']}", operator, used)
    for path in (
        f"/api/v1/jobs/{job['id']}?link={secrets['link']}",
        f"/api/v1/jobs/{job['id']}?link={secrets['link']}x",
        f"/api/v1/jobs/{job['id']}/events?link={secrets['link']}",
        "/api/v1/jobs",
        "/api/v1/events",
        "/api/v1/services",
        "/api/v1/services/example",
        "/api/v1/tokens?ended=1",
        "/api/v1/audit",
        "/api/v1/agents",
        "/api/v1/whoami",
        "/health",
        "/openapi.json",
        f"/jobs/{job['id']}",
        f"/api/v1/jobs/{job['id']}",
        "/api/v1/jobs?limit=x",
    ):
        for who in (operator, token, portal["token"], f"{token[:-1]}!", f"{operator}x"):
            caller.ask("GET", path, who)
    caller.ask("POST", f"/upload?ticket={ticket['ticket']}", operator, used)
    caller.ask("POST", "/api/v1/tokens", token, {"name": "x", "role": "operator"})
    caller.ask("PUT", "/api/v1/services/gpu", operator, {"env": {"A": SERVICE_SECRET}})
    caller.ask("PUT", "/api/v1/services/gpu", operator, {"env": {"A": [SERVICE_SECRET]}})
    caller.ask("DELETE", f"/api/v1/tokens/{portal['id']}", operator)
    caller.ask("GET", "/api/v1/jobs", token)

    places = {f"answer {n}": text for n, text in enumerate(caller.answers)}
    of_job = 0
    for pid, words, variables in processes(pair):
        places[f"command line of {pid}: {words}"] = words
        if f"LICENSE={SERVICE_SECRET}" in variables:
            of_job += 1  # the secret is for the job: its own environment has it
        else:
            places[f"environment of {pid}: {words}"] = variables
    assert of_job >= 1
    places |= {"server's log": pair.server.log, "agent's log": pair.agent.log}
    assert len(pair.server.log) > 1_000
    found = [
        (kind, place)
        for place, text in places.items()
        for kind, secret in secrets.items()
        if secret in text
    ]
    assert found == []
    caller.ask("POST", f"/api/v1/jobs/{job['id']}/cancel", operator)
