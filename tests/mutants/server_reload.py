"""Settings that are changed while server and agent run."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_HTTP: Final = "tests/contract/test_reload_http.py::test_"
_AGENT: Final = "tests/contract/test_reload_agent.py::test_"
_KEYS: Final = "tests/contract/test_reload_keys.py::test_"


def of(protection: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant("reload", protection, file, old, new, tests)


MUTANTS: Final = (
    of(
        "a token that was taken out is refused",
        "server/callers.py",
        "self.known.use(found, needed=table.needs_token)",
        "self.known.needed or self.known.use(found, needed=table.needs_token)",
        f"{_HTTP}a_token_that_was_taken_out_is_refused_from_then_on",
    ),
    of(
        "the last token is not taken out by a slip",
        "server/settings/load.py",
        "    if old.needs_token and not new.needs_token:",
        "    if False:",
        f"{_HTTP}a_server_that_asks_nobody_for_a_token_asks_once_there_is_one",
    ),
    of(
        "two reloads do not overlap",
        "server/reload.py",
        "        async with self._one_at_a_time:\n",
        "        if True:\n",
        f"{_HTTP}two_reloads_at_once_follow_each_other",
    ),
    of(
        "the content of a file is part of the settings",
        "shared/settings/effective.py",
        "if file == getattr(new, name) and content != new.contents().get(name):",
        "if False:",
        "tests/process/test_start_and_signals.py::"
        "test_a_hangup_makes_a_program_read_its_certificate_again",
    ),
    of(
        "what waits for a restart is not used before it",
        "server/reload.py",
        "kept = {key: getattr(old.server, key) for key in waiting}",
        "kept: dict[str, object] = {}",
        f"{_KEYS}what_waits_for_a_restart_is_said_each_time[port]",
    ),
    of(
        "an agent refuses a token that was taken out",
        "client_agent/app.py",
        "            gate.use_tokens(new)\n",
        "            gate.use_tokens(settings)\n",
        f"{_AGENT}a_token_that_was_taken_out_is_refused_from_then_on",
    ),
    of(
        "wrong settings change nothing of an agent",
        "client_agent/app.py",
        "                return False\n",
        "                new = AgentSection()\n",
        f"{_AGENT}a_wrong_file_changes_nothing",
    ),
    of(
        "printed settings show no secret",
        "shared/settings/effective.py",
        "    if has_secret(value):\n        return json.dumps(STARS)\n",
        "    if has_secret(value):\n        return json.dumps(value.get_secret_value())\n",
        "tests/unit/server/test_shown_settings.py::test_no_secret_is_printed",
    ),
)
