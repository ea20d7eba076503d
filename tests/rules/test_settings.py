"""Settings of the server, job-orchestrator's variables among them: what they mean, what is none."""

from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from server.domain.allowances import Allowance
from server.domain.retry import BackoffKind
from server.settings import load
from server.settings.tables import ServerSettings, ServiceTable, allowances
from shared.settings.base import SettingsError
from shared.settings.limits import LimitsTable
from shared.units.rates import Rate
from tests.kit.each import each

URLS = {
    f"SERVICE_HADDOCK_{kind}_URL": f"http://node:1/{kind.lower()}"
    for kind in ("UPLOAD", "DOWNLOAD", "TERMINATE")
}
TOKEN = "x" * 16
Read = Callable[[str], ServerSettings]


def of_variables(**environ: str) -> ServerSettings:
    return load.read(None, {}, environ)


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """What a file says that has this text."""

    def read(text: str) -> ServerSettings:
        file = tmp_path / "ferryman.toml"
        file.write_text(text)
        return load.read(file, {}, {})

    return read


# -- job-orchestrator's variables


def test_its_variables_make_services_and_their_agents() -> None:
    other = {name.replace("HADDOCK", "OTHER"): url for name, url in URLS.items()}
    of_haddock = {"SERVICE_HADDOCK_RUNS_PER_USER": "2", "SERVICE_HADDOCK_MAX_RUNS": "3"}
    found = of_variables(**URLS, **other, **of_haddock, MAX_AGE="60")
    assert found.services.keys() == found.agents.keys() == {"haddock", "other"}
    service, agent = found.services["haddock"], found.agents["haddock"]
    assert (service.runs_per_user, service.max_runs) == (2, 3)
    assert [one.expires_after for one in found.services.values()] == [60.0, 60.0]
    assert (agent.services, agent.url) == (("haddock",), None)
    addresses = [agent.upload_url, agent.download_url, agent.terminate_url]
    assert addresses == list(URLS.values())
    assert of_variables(MAX_AGE="60").services["example"].expires_after == 60.0


def test_its_port_and_folders_are_ours_and_variables_that_are_only_like_it_mean_nothing() -> None:
    found = of_variables(PORT="5001", DB_PATH="/d/x.sqlite", DATA_PATH="/d/data").server
    assert (found.port, found.db_path) == (5001, Path("/d/x.sqlite"))
    assert found.data_dir == Path("/d/data")
    others = of_variables(SERVICE_ACCOUNT="x", MY_SERVICE_X_MAX_RUNS="7", THE_PORT="1")
    assert ([*others.services], others.server.port) == (["example"], 5000)


@each(
    "wrong, said",
    [
        *(
            ({name: "many"}, f"{name}: 'many' is not a whole number")
            for name in ("PORT", "MAX_AGE", "SERVICE_HADDOCK_MAX_RUNS")
        ),
        ({"SERVICE_HADDOCK_TERMINATE_URL": ""}, r"agents\.haddock: give url, or else"),
    ],
)
def test_its_numbers_are_numbers_and_its_addresses_three(wrong: dict[str, str], said: str) -> None:
    given = {name: value for name, value in (URLS | wrong).items() if value}
    with pytest.raises(SettingsError, match=said):
        of_variables(**given)


def test_what_is_wrong_is_said_with_the_file_or_variable_that_it_stands_in(tmp_path, monkeypatch):
    file = tmp_path / "server.toml"
    file.write_text('[server]\nport = 99999\n[services.a]\nmax_run = "5m"\n')
    monkeypatch.setenv("FERRYMAN_SERVER__MAX_FILES", "none")
    with pytest.raises(SettingsError) as refusal:
        load.read(file, {})
    said = f"\n{refusal.value}"
    assert f"\n{file}: server.port: " in said
    assert f"\n{file}: services.a.max_run: no such setting" in said
    assert "\nFERRYMAN_SERVER__MAX_FILES: server.max_files: " in said
    monkeypatch.setenv("FERRYMAN_SERVR__PORT", "1")
    with pytest.raises(SettingsError, match=r"^FERRYMAN_SERVR__PORT: no such.*FERRYMAN_SERVER"):
        load.read(None, {})


@each("text", [b"\xff\xfe", b"a = " + b"[" * 50_000, b"a = " + b"9" * 5_000])
def test_a_file_that_cannot_be_read_is_refused_by_its_name(tmp_path, text) -> None:
    file = tmp_path / "ferryman.toml"
    file.write_bytes(text)
    with pytest.raises(SettingsError, match=r"ferryman\.toml: not valid TOML: "):
        load.read(file, {}, {})


# -- what they mean

OF_A_SERVICE: tuple[tuple[str, str, Any], ...] = (
    # as it stands in the file, the field of a service, its value
    ("runs_per_user = 2", "runs_per_user", 2),
    ("max_runs = 3", "max_runs", 3),
    ("queued_per_user = 4", "queued_per_user", 4),
    ("timeout = '5s'", "timeout_s", 5.0),
    ("queue_timeout = '6s'", "queue_timeout_s", 6.0),
    ("expires_after = '7s'", "expires_after_s", 7.0),
    ("forget_after = '8s'", "forget_after_s", 8.0),
    ("heartbeat_timeout = '13s'", "heartbeat_timeout_s", 13.0),
    ("retries = 8", "retry.retries", 8),
    ("retry_delays = ['9s', '10s']", "retry.delays_s", (9.0, 10.0)),
    ("backoff = 'linear'", "retry.backoff", BackoffKind.LINEAR),
    ("retry_delay = '14s'", "retry.delay_s", 14.0),
    ("max_retry_delay = '15s'", "retry.max_delay_s", 15.0),
    ("retry_on = ['exit:11', 'timeout']", "retry.retry_on", {"exit:11", "timeout"}),
    ("no_retry_on = ['exit:12']", "retry.no_retry_on", {"exit:12"}),
    ("max_retries = 16", "max_retries", 16),
    ("infra_retries = 12", "infra_retries", 12),
    ("retry_later_delay = '17s'", "retry_later_delay_s", 17.0),
    ("retry_later_limit = 18", "retry_later_limit", 18),
    ("on_shutdown = 'continue'", "on_shutdown", "continue"),
    ("dead_letter = true", "dead_letter", True),
    ("dead_letter_expires_after = '19s'", "dead_letter_expires_after_s", 19.0),
    ("max_children = 20", "max_children", 20),
    ("pack = 21", "pack", 21),
    ("env = { KEY = 'x' }", "env", {"KEY": "x"}),
    ("limits.cpus = 1.5", "limits.cpus", 1.5),
    ("limits.memory = '1MiB'", "limits.memory", 1 << 20),
    ("limits.pids = 3", "limits.pids", 3),
    ("limits.disk = '2MiB'", "limits.disk", 2 << 20),
    ("limits.log = '3MiB'", "limits.log", 3 << 20),
    ("limits.results = '4MiB'", "limits.results", 4 << 20),
    ("limits.network = true", "limits.network", True),
)


def test_every_setting_of_a_service_reaches_it(read: Read) -> None:
    names = {line.partition(" ")[0] for line, _, _ in OF_A_SERVICE}
    limits = {f"limits.{name}" for name in LimitsTable.model_fields}
    assert names == ServiceTable.model_fields.keys() - {"limits"} | limits
    text = "\n".join(["[services.dock]", *(line for line, _, _ in OF_A_SERVICE)])
    found = read(text).services["dock"].service("dock")
    reached = [(line, field, attrgetter(field)(found)) for line, field, _ in OF_A_SERVICE]
    assert reached == [*OF_A_SERVICE]
    assert {"timeout", "limits.network", "retry_on"} < found.given
    once = read("[services.once]\ninfra_retries = 0\n").services["once"].service("once")
    assert once.on_shutdown == "stop", "it could not go on anywhere"


def test_whether_a_token_is_needed(read: Read) -> None:
    here = ("", "host = 'localhost'", "auth = 'none'")
    others = ("host = '0.0.0.0'", f"tokens = ['{TOKEN}']", "auth = 'token'")
    needed = [one for one in (*here, *others) if read(f"[server]\n{one}\n").server.needs_token]
    assert needed == [*others]


def test_an_agents_token_comes_from_a_file_or_from_the_settings(read: Read, tmp_path) -> None:
    def secret(setting: str) -> str | None:
        return read(f"[agents.a]\nurl = 'http://node:9000'\n{setting}").agents["a"].secret()

    from_file = f"token = {{ file = '{tmp_path}/token' }}"
    (tmp_path / "token").write_text("\n  from-the-file and more\n")
    given = [secret(setting) for setting in ("", from_file, "token = 'given'", "token = ''")]
    assert given == [None, "from-the-file", "given", None]
    (tmp_path / "token").write_text(" \n")
    with pytest.raises(SettingsError, match="there is nothing in it"):
        secret(from_file)
    (tmp_path / "token").unlink()
    with pytest.raises(SettingsError, match=r"token: file \S+/token: No such file"):
        secret(from_file)


def test_an_agent_offers_services_that_there_are(read: Read) -> None:
    more = "url = 'https://node:9000'\nservices = ['example']\nmax_runs = {example = 1}"
    agent = read(f"[agents.a]\n{more}").agents["a"]
    assert (agent.services, agent.max_runs) == (("example",), {"example": 1})
    assert read(f"[services.{'x' * 64}]\n").services.keys() == {"x" * 64}


USERS = """
[server]
stored_per_user = "1GB"
rate_limit = "50/s"
[users.lab]
members = ["ann", "bob", "lab-*"]
stored_per_user = "5GB"
runs_per_user = 7
[users.lab.services.s]
queued_per_user = 9
[users.eve]
stored_per_user = 0
rate_limit = "off"
queued_per_user = 3
[users.portal]
rate_limit = "1000/m"
[services.s]
"""


def test_users_have_what_their_table_says_and_else_what_everybody_has(read: Read) -> None:
    settings = read(USERS)
    allowed = allowances(settings.server, settings.users)
    users = ("ann", "lab-7", "eve", "cy", "lab", "portal")
    found = {user: replace(allowed.of(user), group="") for user in users}
    assert found["cy"] == found["lab"] == Allowance(stored=10**9, rate=Rate(50, "s"))
    assert found["ann"] == replace(found["cy"], stored=5 * 10**9, runs={"": 7}, queued={"s": 9})
    assert found["lab-7"] == found["ann"]
    assert found["eve"] == replace(found["cy"], stored=0, rate=Rate(), queued={"": 3})
    assert found["portal"] == replace(found["cy"], rate=Rate(1_000, "m"))
    assert [allowed.of(user).group for user in ("ann", "lab-7", "eve")] == ["lab", "lab", ""]


# -- what is refused, by the name of the setting or with what is said


def two(first: str, second: str) -> str:
    return f"[services.s]\n[agents.a]\nurl = '{first}'\n[agents.b]\nurl = '{second}'\n"


NO_EXIT_CODE = "neither an exit code from exit:1 to exit:255"
NO_ADDRESS = "is not an http:// or https:// address"
OF_ONE_AGENT = "upload_url = 'http://n/u'\ndownload_url = 'http://n/d'"
REFUSED: dict[str, list[tuple[str, str]]] = {
    "[server]": [
        *(
            (setting, f"server.{setting.partition(' ')[0]}")
            for setting in (
                *("port = 65536", "port = -1", "max_upload = '0'", "max_files = 0"),
                *("min_free = '-1'", "sender_interval = '0s'", "getter_interval = '0s'"),
                *("cleaner_interval = '0s'", "agent_timeout = '0s'", "agent_lost_after = '0s'"),
                *("log_level = 'loud'", "log_format = 'xml'", "names = 'any'", "rate_limit = 5"),
                *("public_url = 'ferry'", "public_url = '/fer ry'"),
                "public_url = 'https://jobs.example.org?x=1'",
                "public_url = '//jobs.example.org'",
            )
        ),
        (f"auth = 'none'\ntokens = ['{TOKEN}']", "yet tokens are set: remove one of them"),
    ],
    "[services.s]": [
        *((f"retry_on = ['{one}']", NO_EXIT_CODE) for one in ("exit:x", "exit:", "code:3")),
        ("retry_on = ['exit:0']", "neither an exit code"),
        ("retry_on = ['tired']", "'tired' is neither"),
        *(
            (setting, f"services.s.{setting.partition(' ')[0]}")
            for setting in (
                *("runs_per_user = 0", "max_runs = 0", "queued_per_user = -1", "retries = -1"),
                *("infra_retries = -1", "timeout = '-1s'", "queue_timeout = '-1s'"),
                *("retry_delays = ['soon']", "limits.cpus = 0", "limits.cpus = inf"),
                *("limits.pids = 0", "limits.memory = '0'"),
            )
        ),
        ("max_run = 1", "did you mean max_runs?"),
    ],
    "[agents.a]": [
        ("", "give url, or else"),
        (OF_ONE_AGENT, "give url, or else"),
        (f"{OF_ONE_AGENT}\nterminate_url = 'http://n/t'\nurl = 'http://n'", "give url, or else"),
        *(
            (f"url = '{url}'", NO_ADDRESS)
            for url in (
                *("node:9000", "ftp://node", "/run/agent", "", "http://"),
                *("http://node:90OO", "http://node:70000", "ftp://ann:pass/word@x@node"),
            )
        ),
        *(
            (f'url = "http://node:9000"\ntoken = "{token}"', "no header can have")
            for token in ("a\\nX-Other: b", "a\\u007f")
        ),
        *(
            (f"url = 'https://node:9000'\n{setting}", said)
            for setting, said in (
                ("services = ['nonsense']", "there is no service 'nonsense'"),
                ("max_runs = {nonsense = 1}", "there is no service 'nonsense'"),
                ("max_runs = {example = 0}", "than"),
            )
        ),
    ],
    "": [
        *(
            (f"[services.{name}]", "a name is up to 64")
            for name in ('"a b"', '""', '"-x"', f'"{"x" * 65}"')
        ),
        # An agent has one table, however its address is written.
        *(
            (two(first, second), "agents.a and agents.b have the same url")
            for first, second in (
                ("http://n:9000", "http://n:9000"),
                ("http://n:9000", "HTTP://user:password@N:9000/"),
                ("http://n", "http://n:80//"),
                ("https://n:443/x", "https://n/./x/"),
            )
        ),
        ("[groups.a]", "groups: no such setting"),
        ("[users.a]\nmembers = ['x']\n[users.b]\nmembers = ['x']", "in users.a and in users.b"),
        ("[users.a]\nmembers = ['x']\n[users.x]", "'x' is in users.a and in users.x"),
        ("[users.a]\nmembers = ['x1']\n[users.b]\nmembers = ['x*']", "'x1' is in users.b and in"),
        ("[users.a]\nmembers = ['x*']\n[users.b]\nmembers = ['xy*']", "'xy*' is in users.a and in"),
        ("[users.a]\nmembers = ['x**']", "'x**' is no user"),
        ("[users.'a*']", "'a*' is no user"),
        ("[users.'a b']\n", "'a b' is no user"),
        ("[users.a]\nuploads_per_user = 0", "users.a.uploads_per_user"),
        ("[users.a]\nrate_limit = '5'", "users.a.rate_limit"),
        ("[users.a]\nstored_per_usr = 5", "did you mean stored_per_user"),
        ("[users.a.services.s]\nmax_runs = 5", "no such setting"),
    ],
}


@each("table, text, said", [(table, *row) for table, rows in REFUSED.items() for row in rows])
def test_what_makes_no_sense_is_refused_by_its_name(read, table, text, said):
    with pytest.raises(SettingsError) as caught:
        read(f"{table}\n{text}\n")
    assert said in str(caught.value)
    for secret in ("pass", "word@", "X-Other"):
        assert secret not in str(caught.value)


def test_an_address_of_the_command_line_is_http_too_and_other_ones_are_other_agents(read) -> None:
    for url in ("node:9000", "ftp://node", "", "http://node:70000"):
        with pytest.raises(SettingsError, match=r"--agent-url: .* is not an http"):
            load.agent_at(url)
    for other in ("https://n:9000", "http://m:9000", "http://n:9001", "http://n:9000/x"):
        assert len(read(two("http://n:9000", other)).agents) == 2
