"""Settings of the server, job-orchestrator's variables among them, and what becomes of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from server.domain.allowances import Allowance
from server.domain.retry_policy import BackoffKind, RetryPolicy
from server.domain.service import Service
from server.settings import load
from server.settings.agents import AgentTable
from server.settings.tables import ServerSettings
from server.settings.users import allowances
from shared.settings.base import SettingsError
from shared.units.rates import Rate
from shared.wire import Limits

URLS = {
    f"SERVICE_HADDOCK_{kind}_URL": f"http://node:1/{kind.lower()}"
    for kind in ("UPLOAD", "DOWNLOAD", "TERMINATE")
}


def read(text: str = "", folder: Any = None, **environ: str) -> ServerSettings:
    file = None
    if folder is not None:
        file = folder / "ferryman.toml"
        file.write_text(text)
    return load.read(file, {}, environ)


# -- job-orchestrator's variables


def test_its_variables_make_services_and_their_agents() -> None:
    found = read(**URLS, SERVICE_HADDOCK_RUNS_PER_USER="2", SERVICE_HADDOCK_MAX_RUNS="3")
    assert found.services.keys() == found.agents.keys() == {"haddock"}
    service, agent = found.services["haddock"], found.agents["haddock"]
    assert (service.runs_per_user, service.max_runs) == (2, 3)
    assert agent.services == ("haddock",)
    assert (agent.url, agent.upload_url) == (None, "http://node:1/upload")
    assert agent.download_url == "http://node:1/download"
    assert agent.terminate_url == "http://node:1/terminate"


def test_its_port_and_folders_are_ours() -> None:
    found = read(PORT="5001", DB_PATH="/d/x.sqlite", DATA_PATH="/d/data").server
    assert (found.port, found.db_path) == (5001, Path("/d/x.sqlite"))
    assert found.data_dir == Path("/d/data")


def test_its_max_age_is_when_results_of_every_service_expire() -> None:
    other = {name.replace("HADDOCK", "OTHER"): url for name, url in URLS.items()}
    found = read(**URLS, **other, MAX_AGE="60")
    assert {name: one.expires_after for name, one in found.services.items()} == {
        "haddock": 60.0,
        "other": 60.0,
    }
    assert read(MAX_AGE="60").services["example"].expires_after == 60.0


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        ("", False),
        ("host = 'localhost'", False),
        ("host = '0.0.0.0'", True),
        (f"tokens = ['{'x' * 16}']", True),
        ("auth = 'token'", True),
        ("auth = 'none'", False),
    ],
)
def test_whether_a_token_is_needed(tmp_path, text, needed):
    file = tmp_path / "ferryman.toml"
    file.write_text(f"[server]\n{text}\n")
    assert load.read(file, {}, {}).server.needs_token is needed


def test_tokens_that_nobody_asks_for_are_a_mistake(tmp_path):
    file = tmp_path / "ferryman.toml"
    file.write_text(f"[server]\nauth = 'none'\ntokens = ['{'x' * 16}']\n")
    with pytest.raises(SettingsError, match="yet tokens are set: remove one of them"):
        load.read(file, {}, {})


@pytest.mark.parametrize("name", ["PORT", "MAX_AGE", "SERVICE_HADDOCK_MAX_RUNS"])
def test_its_numbers_are_numbers(name) -> None:
    with pytest.raises(SettingsError, match=f"{name}: 'many' is not a whole number"):
        read(**URLS, **{name: "many"})


def test_a_service_without_all_three_addresses_is_refused() -> None:
    del (urls := dict(URLS))["SERVICE_HADDOCK_TERMINATE_URL"]
    with pytest.raises(SettingsError, match=r"agents\.haddock: give url, or else"):
        read(**urls)


def test_variables_like_it_that_are_not_its_own_mean_nothing() -> None:
    found = read(SERVICE_ACCOUNT="x", MY_SERVICE_X_MAX_RUNS="7", THE_PORT="1")
    assert found.services.keys() == {"example"}
    assert found.server.port == 5000


@pytest.mark.parametrize("text", [b"\xff\xfe", b"a = " + b"[" * 50_000, b"a = " + b"9" * 5_000])
def test_a_file_that_cannot_be_read_is_refused_by_its_name(tmp_path, text) -> None:
    file = tmp_path / "ferryman.toml"
    file.write_bytes(text)
    with pytest.raises(SettingsError, match=r"ferryman\.toml: not valid TOML: "):
        load.read(file, {}, {})


# -- services


def test_every_setting_of_a_service_reaches_it(tmp_path) -> None:
    text = """
    [services.dock]
    runs_per_user = 2
    max_runs = 3
    queued_per_user = 4
    timeout = "5s"
    queue_timeout = "6s"
    expires_after = "7s"
    retries = 8
    retry_delays = ["9s", "10s"]
    retry_on = ["exit:11", "timeout"]
    no_retry_on = ["exit:12"]
    infra_retries = 12
    heartbeat_timeout = "13s"
    backoff = "linear"
    retry_delay = "14s"
    max_retry_delay = "15s"
    max_retries = 16
    retry_later_delay = "17s"
    retry_later_limit = 18
    on_shutdown = "resubmit"
    dead_letter = true
    dead_letter_expires_after = "19s"
    max_children = 20
    [services.dock.limits]
    cpus = 1.5
    memory = "1MiB"
    pids = 3
    disk = "2MiB"
    log = "3MiB"
    results = "4MiB"
    network = true
    """
    limits = Limits(
        cpus=1.5,
        memory=1 << 20,
        pids=3,
        disk=2 << 20,
        log=3 << 20,
        results=4 << 20,
        network=True,
    )
    found = read(text, tmp_path).services["dock"].service("dock")
    assert {"timeout", "limits.network", "retry_on"} < found.given
    assert replace(found, given=frozenset()) == Service(
        "dock",
        runs_per_user=2,
        max_runs=3,
        queued_per_user=4,
        timeout_s=5.0,
        queue_timeout_s=6.0,
        expires_after_s=7.0,
        heartbeat_timeout_s=13.0,
        retry=RetryPolicy(
            8,
            (9.0, 10.0),
            BackoffKind.LINEAR,
            14.0,
            15.0,
            frozenset({"exit:11", "timeout"}),
            frozenset({"exit:12"}),
        ),
        max_retries=16,
        infra_retries=12,
        retry_later_delay_s=17.0,
        retry_later_limit=18,
        on_shutdown="resubmit",
        dead_letter=True,
        dead_letter_expires_after_s=19.0,
        max_children=20,
        limits=limits,
    )


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        (
            'retry_on = ["exit:x"]',
            "neither an exit code from exit:1 to exit:255",
        ),
        ('retry_on = ["exit:0"]', "neither an exit code"),
        (
            'retry_on = ["exit:"]',
            "neither an exit code from exit:1 to exit:255",
        ),
        (
            'retry_on = ["code:3"]',
            "neither an exit code from exit:1 to exit:255",
        ),
        ('retry_on = ["tired"]', "'tired' is neither"),
        ("runs_per_user = 0", "services.s.runs_per_user"),
        ("max_runs = 0", "services.s.max_runs"),
        ("queued_per_user = -1", "services.s.queued_per_user"),
        ("retries = -1", "services.s.retries"),
        ("infra_retries = -1", "services.s.infra_retries"),
        ('timeout = "-1s"', "services.s.timeout"),
        ('queue_timeout = "-1s"', "services.s.queue_timeout"),
        ('retry_delays = ["soon"]', "services.s.retry_delays"),
        ("limits = { cpus = 0 }", "services.s.limits.cpus"),
        ("limits = { cpus = inf }", "services.s.limits.cpus"),
        ("limits = { pids = 0 }", "services.s.limits.pids"),
        ('limits = { memory = "0" }', "services.s.limits.memory"),
        ("max_run = 1", "did you mean max_runs?"),
    ],
)
def test_a_service_that_makes_no_sense_is_refused_by_its_setting(tmp_path, setting, said) -> None:
    with pytest.raises(SettingsError) as caught:
        read(f"[services.s]\n{setting}\n", tmp_path)
    assert said in str(caught.value)


@pytest.mark.parametrize("name", ['"a b"', '""', '"-x"', f'"{"x" * 65}"'])
def test_a_service_has_a_name_that_fits_into_an_address(tmp_path, name) -> None:
    with pytest.raises(SettingsError, match="a name is up to 64"):
        read(f"[services.{name}]\n", tmp_path)
    assert read(f"[services.{'x' * 64}]\n", tmp_path).services.keys() == {"x" * 64}


# -- agents


def agent(tmp_path: Path, *settings_: str) -> AgentTable:
    return read("\n".join(["[agents.a]", *settings_]), tmp_path).agents["a"]


def test_an_agents_token_comes_from_a_file_or_from_the_settings(tmp_path) -> None:
    (tmp_path / "token").write_text("\n  from-the-file and more\n")
    url, file = 'url = "http://node:9000"', f'token = {{ file = "{tmp_path / "token"}" }}'
    assert agent(tmp_path, url).secret() is None
    assert agent(tmp_path, url, file).secret() == "from-the-file"
    assert agent(tmp_path, url, 'token = "given"').secret() == "given"
    assert agent(tmp_path, url, 'token = ""').secret() is None


@pytest.mark.parametrize(
    ("content", "said"), [(" \n", "there is nothing in it"), (None, "No such")]
)
def test_a_token_file_that_holds_none_is_refused_at_the_start(tmp_path, content, said) -> None:
    if content is not None:
        (tmp_path / "token").write_text(content)
    with pytest.raises(SettingsError, match=said):
        agent(tmp_path, 'url = "http://node:9000"', f'token = {{ file = "{tmp_path / "token"}" }}')


@pytest.mark.parametrize(
    "addresses",
    [
        (),
        ('upload_url = "http://n/u"', 'download_url = "http://n/d"'),
        (
            'url = "http://n"',
            'upload_url = "http://n/u"',
            'download_url = "http://n/d"',
            'terminate_url = "http://n/t"',
        ),
    ],
)
def test_an_agent_is_one_of_ours_or_a_job_orchestrator_client(tmp_path, addresses) -> None:
    with pytest.raises(SettingsError, match="give url, or else"):
        agent(tmp_path, *addresses)


@pytest.mark.parametrize(
    "url",
    [
        "node:9000",
        "ftp://node",
        "/run/agent",
        "",
        "http://node:90OO",
        "http://node:70000",
        "http://",
    ],
)
def test_an_agents_address_is_http(tmp_path, url) -> None:
    with pytest.raises(SettingsError, match="is not an http:// or https:// address"):
        agent(tmp_path, f'url = "{url}"')
    with pytest.raises(SettingsError, match=r"--agent-url: .* is not an http"):
        load.agent_at(url)


def test_an_agents_address_shows_no_password_where_it_is_wrong(tmp_path) -> None:
    with pytest.raises(SettingsError) as refused:
        agent(tmp_path, 'url = "ftp://ann:pass/word@x@node"')
    assert "word" not in str(refused.value)


def test_an_agents_token_fits_into_a_header(tmp_path) -> None:
    for token in ("a\\nX-Other: b", "a\\u007f"):
        with pytest.raises(SettingsError, match="no header can have") as refused:
            agent(tmp_path, 'url = "http://node:9000"', f'token = "{token}"')
        assert "X-Other" not in str(refused.value)


def test_an_agent_offers_services_that_there_are(tmp_path) -> None:
    url = 'url = "https://node:9000"'
    assert agent(tmp_path, url, 'services = ["example"]').services == ("example",)
    with pytest.raises(SettingsError, match="there is no service 'nonsense'"):
        agent(tmp_path, url, 'services = ["nonsense"]')
    assert agent(tmp_path, url, "max_runs = {example = 1}").max_runs == {"example": 1}
    for wrong, why in (("nonsense = 1", "there is no service 'nonsense'"), ("example = 0", "than")):
        with pytest.raises(SettingsError, match=why):
            agent(tmp_path, url, f"max_runs = {{{wrong}}}")


# -- the server


@pytest.mark.parametrize(
    "setting",
    [
        "port = 65536",
        "port = -1",
        'max_upload = "0"',
        "max_files = 0",
        'min_free = "-1"',
        'sender_interval = "0s"',
        'getter_interval = "0s"',
        'cleaner_interval = "0s"',
        'agent_timeout = "0s"',
        'agent_lost_after = "0s"',
        'log_level = "loud"',
        'log_format = "xml"',
        'names = "any"',
        'public_url = "ferry"',
        'public_url = "/fer ry"',
        'public_url = "https://jobs.example.org?x=1"',
        'public_url = "//jobs.example.org"',
    ],
)
def test_a_setting_out_of_its_bounds_is_refused_by_its_name(tmp_path, setting) -> None:
    with pytest.raises(SettingsError) as caught:
        read(f"[server]\n{setting}\n", tmp_path)
    assert f"server.{setting.split()[0]}" in str(caught.value)


def test_flags_are_stronger_than_variables_and_these_than_the_file(tmp_path, monkeypatch) -> None:
    file = tmp_path / "ferryman.toml"
    file.write_text("[server]\nport = 1\nmax_files = 1\nlog_level = 'error'\n[agent]\nslots = 3\n")
    monkeypatch.setenv("FERRYMAN_SERVER__PORT", "2")
    monkeypatch.setenv("FERRYMAN_SERVER__MAX_FILES", "2")
    found = load.read(file, {"server": {"port": 3, "max_files": None}}).server
    assert (found.port, found.max_files, found.log_level) == (3, 2, "error")


def test_what_is_wrong_is_said_with_the_file_or_variable_that_it_stands_in(tmp_path, monkeypatch):
    file = tmp_path / "server.toml"
    file.write_text('[server]\nport = 99999\n[services.a]\nmax_run = "5m"\n')
    monkeypatch.setenv("FERRYMAN_SERVER__MAX_FILES", "none")
    with pytest.raises(SettingsError) as refusal:
        load.read(file, {})
    lines = str(refusal.value).splitlines()
    assert any(line.startswith(f"{file}: server.port: ") for line in lines), lines
    assert any(line.startswith(f"{file}: services.a.max_run: no such setting") for line in lines)
    assert any(line.startswith("FERRYMAN_SERVER__MAX_FILES: server.max_files: ") for line in lines)


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


def test_users_have_what_their_table_says_and_else_what_everybody_has(tmp_path):
    file = tmp_path / "ferryman.toml"
    file.write_text(USERS)
    settings = load.read(file, {}, {})
    allowed = allowances(settings.server, settings.users)
    users = ("ann", "lab-7", "eve", "cy", "lab", "portal")
    found = {user: replace(allowed.of(user), group="") for user in users}
    assert found["cy"] == found["lab"] == Allowance(stored=10**9, rate=Rate(50, "s"))
    assert found["ann"] == replace(found["cy"], stored=5 * 10**9, runs={"": 7}, queued={"s": 9})
    assert found["lab-7"] == found["ann"]
    assert found["eve"] == replace(found["cy"], stored=0, rate=Rate(), queued={"": 3})
    assert found["portal"] == replace(found["cy"], rate=Rate(1_000, "m"))
    assert [allowed.of(user).group for user in ("ann", "lab-7", "eve")] == ["lab", "lab", ""]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[groups.a]", "groups: no such setting"),
        ("[users.a]\nmembers = ['x']\n[users.b]\nmembers = ['x']", "in users.a and in users.b"),
        ("[users.a]\nmembers = ['x']\n[users.x]", "'x' is in users.a and in users.x"),
        ("[users.a]\nmembers = ['x1']\n[users.b]\nmembers = ['x*']", "'x1' is in users.b and in"),
        (
            "[users.a]\nmembers = ['x*']\n[users.b]\nmembers = ['xy*']",
            r"'xy\*' is in users.a and in",
        ),
        ("[users.a]\nmembers = ['x**']", r"'x\*\*' is no user"),
        ("[users.'a*']", r"'a\*' is no user"),
        ("[users.'a b']\n", "'a b' is no user"),
        ("[users.a]\nuploads_per_user = 0", "users.a.uploads_per_user"),
        ("[users.a]\nrate_limit = '5'", "users.a.rate_limit.*50/s"),
        ("[users.a]\nstored_per_usr = 5", "did you mean stored_per_user"),
        ("[users.a.services.s]\nmax_runs = 5", "no such setting"),
        ("[server]\nrate_limit = 5", "server.rate_limit"),
    ],
)
def test_wrong_exceptions_are_named(tmp_path, text, words):
    file = tmp_path / "ferryman.toml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=words):
        load.read(file, {}, {})
