"""The pages for operators."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_AGENTS: Final = "tests/contract/test_operators_agents_pages.py::test_"
_SERVICES: Final = "tests/contract/test_operators_services_pages.py::test_"
_STATUS: Final = "tests/contract/test_operators_status_pages.py::test_"
_SANDBOX: Final = "tests/unit/server/web/test_operators_sandbox.py::test_"


def of(protection: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant("operators' pages", protection, f"server/web/operators/{file}", old, new, tests)


MUTANTS: Final = (
    of(
        "an agent's name leads to its page, whatever characters it has",
        "agents.py",
        "{quote(name, safe='')}",
        "{name}",
        f"{_AGENTS}an_agent_may_be_called_anything_in_the_settings",
    ),
    of(
        "what an agent says without end is cut",
        "agents.py",
        "value[:_LONGEST] if isinstance(value, str)",
        "value if isinstance(value, str)",
        f"{_SANDBOX}what_makes_no_sense_is_left_out[said5]",
    ),
    of(
        "a form about services is for operators",
        "services.py",
        'PageRoute("POST", f"{_NAME}/{action}", Area.SERVICES, _decide(action))',
        'PageRoute("POST", f"{_NAME}/{action}", Area.STATUS, _decide(action))',
        f"{_SERVICES}users_see_services_and_their_own_numbers_and_change_nothing",
    ),
    of(
        "the list of users is for operators",
        "users.py",
        'PageRoute("GET", "/users", Area.AGENTS',
        'PageRoute("GET", "/users", Area.STATUS',
        f"{_STATUS}the_pages_are_for_operators",
    ),
    Mutant(
        "operators' pages",
        "a user does not learn its group",
        "server/api/server_status.py",
        "is_operator = request[PRINCIPAL].role is Role.OPERATOR",
        "is_operator = True",
        (f"{_STATUS}a_user_does_not_see_its_group",),
    ),
    Mutant(
        "operators' pages",
        "the list of users costs the same however many jobs there are",
        "server/store/users.py",
        "FROM found WHERE user_id IS NOT NULL AND n < :most\n    )\n    SELECT user_id FROM found "
        'WHERE user_id IS NOT NULL ORDER BY user_id\n"""\n_NEXT',
        "FROM found WHERE user_id IS NOT NULL\n    )\n    SELECT user_id FROM found "
        'WHERE user_id IS NOT NULL ORDER BY user_id\n"""\n_NEXT',
        ("tests/contract/store/test_users.py::test_users_are_listed_by_name_from_one_on",),
    ),
)
