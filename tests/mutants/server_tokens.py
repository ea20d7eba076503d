"""API tokens, and the audit trail of what was done with them."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_STAGE: Final = "tests/unit/server/stages/test_tokens.py::test_"
_TRAIL: Final = "tests/unit/server/stages/test_audit.py::test_"
_HTTP: Final = "tests/contract/test_audit_http.py::test_"


def tokens(protection: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant("tokens", protection, "server/stages/tokens.py", old, new, tests)


def of(protection: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant("tokens", protection, file, old, new, tests)


MUTANTS: Final = (
    tokens(
        "a revoked token is refused",
        "if record.revoked_at is not None:",
        "if False:",
        f"{_STAGE}a_revoked_token_is_refused_at_once_and_for_good",
    ),
    tokens(
        "an expired token is refused",
        "if not record.live(now):",
        "if False:",
        f"{_STAGE}a_token_expires",
    ),
    tokens(
        "a token needs its secret",
        "if former is None or not hmac.compare_digest(digest, former):",
        "if False:",
        f"{_STAGE}who_has_no_secret_does_not_learn_what_became_of_a_token",
    ),
    tokens(
        "after the overlap a former secret is refused",
        "if record.former_until is None or now >= record.former_until:",
        "if False:",
        f"{_STAGE}after_a_rotation_the_former_secret_is_good_for_the_overlap",
    ),
    tokens(
        "a name is one principal's for good",
        "if (one.role, one.user_id) != (new.role, new.user_id):",
        "if False:",
        f"{_STAGE}a_name_is_one_principals_only",
    ),
    of(
        "a mistyped token is not looked up",
        "server/domain/tokens.py",
        "if _checksum(text[:-_CHECKSUM_LENGTH]) != match[3]:",
        "if False:",
        "tests/unit/server/domain/test_tokens.py::test_a_letter_that_is_wrong_is_noticed",
    ),
    of(
        "a wrong API token is never an operator",
        "shared/http/authentication.py",
        "            return (self._issued_to(given, peer) if bearer else None) or LOCAL\n",
        "            found = self._issued_to(given, peer) if bearer else None\n"
        "            return found if found and found.authenticated else LOCAL\n",
        "tests/contract/test_tokens_http.py::test_without_tokens_a_caller_of_this_machine_is_an_"
        "operator_unless_it_says_who_it_is",
    ),
    of(
        "changes by operators are in the trail before their answer",
        "server/api/audit.py",
        "return self._areas.get((request.method, path)) in _AT_ONCE",
        "return False",
        f"{_HTTP}changes_by_operators_are_in_the_trail_before_their_answer",
    ),
    of(
        "strangers do not fill the trail",
        "server/api/audit.py",
        "if limited else 0",
        "if False else 0",
        f"{_HTTP}refusals_that_anybody_can_cause_do_not_fill_the_trail",
    ),
    of(
        "strangers do not fill the trail, whatever they are answered",
        "server/api/audit.py",
        " or not principal.authenticated\n",
        "\n",
        f"{_HTTP}strangers_fill_neither_trail_nor_log_whatever_the_answer_is",
    ),
    of(
        "whoever waits for an entry waits for whoever writes it",
        "server/stages/audit.py",
        "async with self._writing:",
        "if True:",
        f"{_TRAIL}whoever_waits_for_an_entry_waits_for_the_write_that_has_begun",
    ),
    of(
        "an entry that cannot be kept is not lost",
        "server/stages/audit.py",
        "self._waiting.extendleft(reversed(entries))",
        "pass",
        f"{_TRAIL}what_cannot_be_kept_is_kept_later",
    ),
    of(
        "a service's document counts what its reader may see",
        "server/http/service_documents.py",
        "context.services.load(service.name, _COUNTED, where)",
        "context.services.load(service.name, _COUNTED, Visible())",
        "tests/contract/test_services_http.py::test_a_service_is_counted_for_whoever_asks",
    ),
)
