"""Services of a running server: who changes them, what is shown, and what a pause stops."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_HTTP: Final = "tests/contract/test_services_http.py::test_"
_STORE: Final = "tests/contract/store/test_services.py::test_"
_UPLOAD: Final = "tests/contract/test_upload_http.py::test_"
_RELOAD: Final = "tests/unit/server/test_reload.py::test_"
_GONE: Final = "tests/contract/test_reload_http.py::test_jobs_of_a_service_that_was_renamed_"
_SERVICES: Final = "server/stages/services.py"


def of(protection: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant("services", protection, file, old, new, tests)


MUTANTS: Final = (
    of(
        "only operators change services",
        "server/domain/access.py",
        "Area.SERVICES: frozenset({Role.OPERATOR})",
        "Area.SERVICES: frozenset(Role)",
        f"{_HTTP}only_operators_change_services_or_see_what_is_in_them",
    ),
    of(
        "only operators move jobs to another service",
        "server/api/bulk.py",
        "    if action is BulkAction.MOVE:\n        check_area(",
        "    if action is None:\n        check_area(",
        "tests/contract/test_bulk_http.py::test_what_somebody_may_not_see_is_not_there",
    ),
    of(
        "jobs of a service that is gone are shown",
        "server/stages/services.py",
        "names - services.keys()",
        "set[str]()",
        f"{_GONE}are_said_everywhere_and_moved_by_one_command",
    ),
    of(
        "only operators see a service's settings and the names of its secrets",
        "server/http/service_documents.py",
        "if principal.role is Role.OPERATOR:",
        "if True:",
        f"{_HTTP}only_operators_change_services_or_see_what_is_in_them",
    ),
    of(
        "the file of a secret is not read for a caller",
        "server/api/services.py",
        "or not all(isinstance(one, str) for one in given.values())",
        "",
        f"{_HTTP}wrong_settings_are_refused_by_name_and_change_nothing[body8-env-an object of "
        "texts]",
    ),
    of(
        "the settings file wins",
        _SERVICES,
        "            if in_file is not None:\n",
        "            if in_file is not None and record.settings is None:\n",
        f"{_HTTP}the_file_wins",
    ),
    of(
        "a service of the file is not changed through the API",
        _SERVICES,
        "if name in self._in_file:",
        "if False:",
        f"{_HTTP}the_file_wins",
    ),
    of(
        "a retired service takes no uploads",
        "server/domain/upload_fields.py",
        "value not in services or services[value].retired",
        "value not in services",
        f"{_HTTP}a_retired_service_takes_no_uploads_and_finishes_what_it_has",
    ),
    of(
        "a claim sees a pause that another server made",
        "server/store/claims.py",
        'None if rows[0]["paused"] else str',
        "str",
        f"{_STORE}nothing_of_a_paused_service_is_claimed_whatever_the_caller_knows",
    ),
    of(
        "a row that cannot be read takes no jobs",
        _SERVICES,
        "paused_message=_UNREADABLE, retired=True",
        "paused_message=_UNREADABLE, retired=False",
        f"{_HTTP}what_another_server_decided_is_taken_up",
    ),
    of(
        "what goes through the services goes on with what was there",
        _SERVICES,
        "        return self._now.values()\n",
        "        return ValuesView(self)\n",
        f"{_HTTP}what_another_server_decided_is_taken_up",
    ),
    of(
        "Ferryman's own variables cannot be set",
        "server/settings/tables.py",
        "if name in _RESERVED or name.startswith(_RESERVED_PREFIX):",
        "if name in _RESERVED:",
        f"{_HTTP}wrong_settings_are_refused_by_name_and_change_nothing[body4-env-FERRYMAN_JOB_ID "
        "is reserved]",
    ),
    of(
        "what needs a restart is not said to be applied",
        "server/reload.py",
        'waits = table == "server" and key in waiting',
        "waits = False",
        f"{_RELOAD}what_needs_a_restart_is_said_at_each_reload_and_the_rest_once",
    ),
    of(
        "settings that cannot be read change nothing",
        "server/reload.py",
        "        new, old = await asyncio.to_thread(self._read), self.settings\n",
        "        new = old = self.settings\n",
        f"{_RELOAD}settings_that_cannot_be_read_change_nothing",
    ),
    of(
        "the log of a reload shows no secret",
        "shared/settings/effective.py",
        "    if has_secret(value):\n        return HIDDEN\n",
        "",
        f"{_RELOAD}what_needs_a_restart_is_said_at_each_reload_and_the_rest_once",
    ),
    of(
        "Windows line endings of run.sh are noticed, not those of other files",
        "shared/files/bundles/writer.py",
        'if f"{root}{ENTRY}" in self._crlf:',
        "if self._crlf:",
        f"{_UPLOAD}windows_line_endings_of_run_sh_are_taken_with_a_warning",
    ),
    of(
        "who set a limit is said as it is",
        "server/domain/ending.py",
        "if own == most:",
        "if True:",
        "tests/unit/server/domain/test_attempt_end.py::test_who_set_a_limit_that_was_hit_is_said",
    ),
)
