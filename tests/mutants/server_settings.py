"""Settings of the server, and job-orchestrator's variables."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant


def of(protection: str, old: str, new: str, *tests: str, file: str = "tables") -> Mutant:
    names = tuple(f"tests/unit/server/test_settings.py::test_{test}" for test in tests)
    return Mutant("settings", protection, f"server/settings/{file}.py", old, new, names)


MUTANTS: Final = (
    of(
        "MAX_AGE is obeyed",
        'if "MAX_AGE" in environ:',
        "if False:",
        "its_max_age_is_when_results_of_every_service_expire",
        "its_numbers_are_numbers",
        file="load",
    ),
    of(
        "an agent of job-orchestrator's variables runs its own service only",
        '{**urls, "services": [service]}',
        "urls",
        "its_variables_make_services_and_their_agents",
        file="load",
    ),
    of(
        "PORT is obeyed",
        'server["port"] = _number(environ, "PORT")',
        '_number(environ, "PORT")',
        "its_port_and_folders_are_ours",
        file="load",
    ),
    of(
        "DB_PATH is obeyed",
        'if "DB_PATH" in environ:',
        "if False:",
        "its_port_and_folders_are_ours",
        file="load",
    ),
    of(
        "a token's file is read",
        "return text.split()[0]",
        "return None",
        "an_agents_token_comes_from_a_file_or_from_the_settings",
        file="agents",
    ),
    of(
        "queue_timeout reaches the service",
        "queue_timeout_s=self.queue_timeout,",
        "queue_timeout_s=0.0,",
        "every_setting_of_a_service_reaches_it",
    ),
    of(
        "services of agents are services that there are",
        "                if service not in self.services:",
        "                if False:",
        "an_agent_offers_services_that_there_are",
    ),
    Mutant(
        "settings",
        "a file of a secret with nothing in it is refused",
        "shared/settings/secrets.py",
        "    if not text.strip():\n",
        "    if False:\n",
        (
            "tests/unit/server/test_settings.py"
            "::test_a_token_file_that_holds_none_is_refused_at_the_start",
        ),
    ),
    Mutant(
        "settings",
        "a variable of the command line stops no program",
        "shared/settings/load.py",
        "if head in ignored or name in VARIABLES:",
        "if head in ignored:",
        (
            "tests/unit/test_one_settings_file.py"
            "::test_no_variable_of_the_command_line_disturbs_a_program",
        ),
    ),
)
