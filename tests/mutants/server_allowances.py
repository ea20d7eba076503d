"""What each user may have, and who may see it."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_STORE: Final = "tests/contract/store/test_jobs.py::test_"
_CLAIMS: Final = "tests/contract/store/test_claims.py::test_"
_UPLOADS: Final = "tests/contract/test_upload_http.py::test_"
_USAGE: Final = "tests/contract/test_usage_http.py::test_"
_TODAY: Final = "a_user_who_has_uploaded_enough_today_is_told_what_is_left_and_until_when"


def of(protection: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant("allowances", protection, file, old, new, tests)


MUTANTS: Final = (
    of(
        "requests of one caller are limited",
        "shared/http/middleware.py",
        "                self._rates.take(request[PRINCIPAL])\n",
        "                pass\n",
        "tests/contract/test_rate_limits.py::test_each_user_and_portal_has_a_limit_of_its_own",
    ),
    of(
        "buckets of callers do not fill the memory",
        "shared/http/rate_limits.py",
        "            if len(self._buckets) > _REMEMBERED:\n",
        "            if False:\n",
        "tests/unit/shared/http/test_rate_limits.py::test_only_so_many_callers_are_remembered",
    ),
    of(
        "bytes of a day are counted in the transaction of the insert",
        "server/store/inserts.py",
        "        await users.count_upload(tx, new.user_id, new.bundle.size, new.created_at)\n",
        "        pass\n",
        f"{_STORE}of_fifty_at_once_as_many_are_taken_as_may_be_uploaded_in_a_day",
    ),
    of(
        "an upload is refused that is above the day's",
        "server/domain/allowances.py",
        "    if not most or used + size <= most:",
        "    if True:",
        f"{_UPLOADS}{_TODAY}",
    ),
    of(
        "users who may run more do",
        "server/store/claims.py",
        "        if count < each or most <= each:",
        "        if True:",
        f"{_CLAIMS}some_users_may_run_more_or_less_than_others",
    ),
    of(
        "a reload changes at once what a user may run",
        "server/stages/services.py",
        "        self._in_file, self._allowances = in_file, allowances\n"
        "        self._replace({one.name for one in self._known})\n",
        "        self._in_file = in_file\n"
        "        self._replace({one.name for one in self._known})\n"
        "        self._allowances = allowances\n",
        "tests/contract/test_reload_keys.py::test_a_users_new_limit_holds_for_the_next_claim",
    ),
    of(
        "a portal sees what its own users use, and no others",
        "server/domain/access.py",
        '    user = user_id or own or ""\n    if principal.role is Role.PORTAL and not',
        '    user = user_id or own or ""\n    if False and not',
        f"{_USAGE}nobody_sees_what_is_not_theirs",
    ),
    of(
        "a user sees its own usage only",
        "server/domain/access.py",
        "    if own not in (None, user_id or own):",
        "    if False:",
        f"{_USAGE}nobody_sees_what_is_not_theirs",
    ),
)
