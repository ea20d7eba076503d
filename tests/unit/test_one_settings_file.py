"""Server and agent may share one settings file: each ignores the tables of the other."""

from __future__ import annotations

from client_agent.settings import agent
from client_agent.settings.agent import AgentSettings
from server.settings import load
from server.settings.tables import ServerSettings

FILE = """
[server]
port = 1

[services.s]

[agents.node]
url = "http://node:9000"

[users.ada]
uploads_per_user = 3

[groups.lab]
members = ["grace"]

[agent]
port = 2
"""


def test_both_read_a_file_with_every_table(tmp_path):
    file = tmp_path / "ferryman.toml"
    file.write_text(FILE)
    environ = {"FERRYMAN_USERS__ADA__RUNS_PER_USER": "7", "FERRYMAN_USER": "ada"}
    assert agent.load(file, {}, environ).port == 2
    assert load.read(file, {}, environ).server.port == 1
    tables = {*ServerSettings.model_fields, *AgentSettings.model_fields}
    assert {
        line.strip("[]").partition(".")[0] for line in FILE.splitlines() if line[:1] == "["
    } == (tables)
