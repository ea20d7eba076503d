from __future__ import annotations

from pathlib import Path

import pytest

from client_agent.app import sandbox_settings
from client_agent.sandbox.base import SandboxSettings
from client_agent.settings.agent import AgentSection, load
from client_agent.settings.grants import GrantSettings, SandboxingSection
from shared.settings.base import SettingsError

A, B, C = "a" * 20, "b" * 20, "c" * 20


@pytest.fixture
def loaded(monkeypatch, tmp_path):
    """Loads settings from exactly this environment, file and flags."""
    for name in ("PORT", "DB_PATH", "DATA_PATH", "MAX_AGE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))

    def load_from(
        env: dict[str, str] | None = None, toml: str | None = None, **flags: object
    ) -> AgentSection:
        for name, value in (env or {}).items():
            monkeypatch.setenv(name, value)
        file = None
        if toml is not None:
            file = tmp_path / "ferryman.toml"
            file.write_text(toml)
        return load(file, flags)

    return load_from


def test_with_nothing_given_it_is_a_local_agent(loaded, tmp_path):
    settings = loaded()
    assert (settings.host, settings.port, settings.sandbox) == ("127.0.0.1", 9000, "bubblewrap")
    assert settings.data_dir == tmp_path / "data" / "ferryman" / "agent"
    assert settings.slots >= 1
    assert (settings.services, settings.all_tokens()) == (None, [])
    assert settings.name


def test_flags_override_variables_and_those_override_the_file(loaded):
    toml = "[agent]\nport = 1\nslots = 1\nname = 'file'\n"
    env = {"FERRYMAN_AGENT__PORT": "2", "FERRYMAN_AGENT__SLOTS": "2"}
    settings = loaded(env, toml, port=3)
    assert (settings.port, settings.slots, settings.name) == (3, 2, "file")


def test_variables_of_job_orchestrator_are_read_and_ferrymans_override_them(loaded, tmp_path):
    env = {"PORT": "9001", "DATA_PATH": str(tmp_path / "d"), "DB_PATH": "x.db", "MAX_AGE": "60"}
    settings = loaded(env, "[agent]\nport = 1\nretention = '1h'\n")
    assert (settings.port, settings.retention) == (9001, 60)
    assert settings.data_dir == tmp_path / "d"
    assert settings.database == Path("x.db").absolute()
    assert loaded({"FERRYMAN_AGENT__PORT": "9002"}).port == 9002


@pytest.mark.parametrize("key", ["data_dir", "database", "identity_secret"])
@pytest.mark.parametrize("shown", ["/usr", "/lib", "read_only"])
def test_data_of_the_agent_cannot_be_where_jobs_can_read(loaded, tmp_path, key, shown):
    """An unprivileged agent's jobs have its uid, so no mode keeps them out."""
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "own").write_text("x" * 16)
    (tmp_path / "link").symlink_to(shared)
    place = tmp_path / "link" if shown == "read_only" else Path(shown)
    value = f"'{place}/own'"
    if key == "identity_secret":
        if shown != "read_only":
            return  # there is no such file
        value = f"{{ file = {value} }}"
    toml = f"[agent]\n{key} = {value}\n"
    if shown == "read_only":
        toml += f"[agent.sandboxing]\nread_only = ['{shared}:/data']\n"
    with pytest.raises(SettingsError, match=f"would show jobs the agent's own data, {key} "):
        loaded(toml=toml)


def test_every_file_with_tokens_is_hidden_from_jobs(loaded, tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    for file in (shared / "first", tmp_path / "last"):
        file.write_text(file.name * 16)
    files = ", ".join(f"{{ file = '{file}' }}" for file in (shared / "first", tmp_path / "last"))
    toml = f"[agent]\ntokens = [{files}]\n"
    toml += f"[agent.sandboxing]\nread_only = ['{shared}:/data']\n"
    with pytest.raises(SettingsError, match=r"own data, tokens .*first"):
        loaded(toml=toml)


def test_without_a_sandbox_data_may_be_anywhere(loaded):
    toml = "[agent]\nsandbox = 'none'\ndata_dir = '/usr/local/ferryman'\n"
    assert loaded(toml=toml).data_dir == Path("/usr/local/ferryman")


def test_the_settings_file_is_hidden_from_jobs_too(loaded, tmp_path):
    with pytest.raises(SettingsError, match="own data, config "):
        loaded(
            toml=f"[agent]\ndata_dir = '/var/lib/x'\n"
            f"[agent.sandboxing]\nread_only = ['{tmp_path}:/data']\n"
        )


@pytest.mark.parametrize("text", ["http", "9000.5", "-1", "١"])
def test_a_bad_number_in_a_variable_of_job_orchestrator_is_refused_with_its_name(loaded, text):
    with pytest.raises(SettingsError, match=r"PORT: .* is not a whole number"):
        loaded({"PORT": text})


def test_lists_may_be_written_with_commas(loaded):
    env = {"FERRYMAN_AGENT__SERVICES": "docking, example", "FERRYMAN_AGENT__TOKENS": f"{A},{B}"}
    settings = loaded(env)
    assert settings.services == ("docking", "example")
    assert settings.all_tokens() == [A, B]
    assert loaded(services="one").services == ("one",)
    assert loaded({"FERRYMAN_AGENT__SERVICES": '["x", "y"]'}).services == ("x", "y")


def test_tokens_come_from_a_file_too_and_are_never_shown(loaded, tmp_path):
    (tmp_path / "tokens").write_text(f"{A}\n\n{B}\n")
    settings = loaded(toml=f"[agent]\ntokens = ['{C}', {{ file = '{tmp_path}/tokens' }}]\n")
    assert settings.all_tokens() == [C, A, B]
    assert C not in repr(settings)


def test_durations_and_sizes_are_written_as_people_write_them(loaded):
    settings = loaded(
        toml="[agent]\nretention = '3d'\ngrace = '1m30s'\nmin_free = '2GiB'\n"
        "sandboxing = { scratch = '1GiB' }\n"
    )
    assert (settings.retention, settings.grace, settings.min_free) == (259_200, 90, 2 << 30)
    assert settings.sandboxing.settings(settings.min_free).scratch == 1 << 30
    assert settings.sandboxing.settings(settings.min_free).free_floor == 2 << 30


def test_tables_of_the_server_are_ignored(loaded):
    assert loaded(toml="[server]\nx = 1\n[services.a]\ny = 2\n[agents.b]\nz = 3\n").port == 9000


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("[agent]\nslotz = 1\n", "agent.slotz: no such setting; did you mean slots?"),
        ("[agent]\nslots = 0\n", "agent.slots"),
        ("[agent]\nslots = 'four'\n", "agent.slots: 'four' is not a whole number"),
        ("[agent]\nport = 70000\n", "agent.port"),
        ("[agent]\nservices = []\n", "leave it out to offer any service"),
        ("[agent]\nname = 'two words'\n", "agent.name"),
        ("[agent]\ngrace = 'soon'\n", "'soon' is not a duration"),
        ("[agent]\nsandboxing = { scratc = '1MB' }\n", "did you mean scratch?"),
        ("[agent]\ntokens = { file = '/does/not/exist' }\n", "/does/not/exist"),
        ("[agnt]\n", "did you mean agent?"),
    ],
)
def test_a_mistake_is_reported_with_the_key_and_what_would_be_right(loaded, toml, message):
    with pytest.raises(SettingsError) as refusal:
        loaded(toml=toml)
    assert message in str(refusal.value)


def test_every_setting_here_is_one_of_the_sandbox():
    grants = set(GrantSettings.model_fields) - {"scratch"}
    here = set(SandboxingSection.model_fields) - grants - {"uid_count", "services"}
    assert here <= SandboxSettings.__dataclass_fields__.keys()


@pytest.mark.parametrize(("slots", "images"), [(1, 4), (4, 4), (12, 12)])
def test_a_disk_is_ready_for_each_slot(loaded, slots, images):
    assert sandbox_settings(loaded(slots=slots), 2, None).spare_images == images
