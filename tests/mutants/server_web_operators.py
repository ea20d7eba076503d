"""The pages for operators."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_AGENTS: Final = "tests/contract/test_operators_agents_pages.py::test_"
_SANDBOX: Final = "tests/unit/server/web/test_operators_sandbox.py::test_"


def of(protection: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant("operators' pages", protection, f"server/web/operators/{file}", old, new, tests)


MUTANTS: Final = (
    of(
        "who decided what is shown only to whoever may read the audit trail",
        "decisions.py",
        "if not may_use(request[PRINCIPAL], Area.ADMIN):",
        "if False:",
        f"{_AGENTS}who_decided_is_shown_to_whoever_may_read_the_audit_trail",
    ),
    of(
        "an agent's name leads to its page, whatever characters it has",
        "agents.py",
        "{quote(name, safe='')}",
        "{name}",
        f"{_AGENTS}an_agent_may_be_called_anything_in_the_settings",
    ),
    of(
        "what an agent says without end is cut",
        "sandbox.py",
        "value[:_LONGEST] if isinstance(value, str)",
        "value if isinstance(value, str)",
        f"{_SANDBOX}what_makes_no_sense_is_left_out[said5]",
    ),
)
