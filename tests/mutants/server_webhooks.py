"""Webhooks: where they may go, whose they are, and how often they are sent."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_CLIENT: Final = "tests/unit/server/webhooks/test_client.py::test_"
_RULES: Final = "tests/unit/server/domain/test_webhooks.py::test_"
_STAGE: Final = "tests/unit/server/stages/test_webhooks.py::test_"
_COST: Final = "tests/contract/test_store_cost.py::test_"


def of(protection: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant("webhooks", protection, file, old, new, tests)


MUTANTS: Final = (
    of(
        "a receiver that does not answer makes no look for webhooks longer",
        "server/store/webhooks.py",
        "next_at <= :now\n            ORDER BY next_at LIMIT :looked_at",
        "next_at <= :now\n            ORDER BY next_at LIMIT :looked_at * 1000",
        f"{_COST}a_dead_receiver_makes_no_look_for_webhooks_longer",
    ),
    of(
        "webhooks that can be sent are found behind those that cannot",
        "server/store/webhooks.py",
        "if len(found) < limit and len(rows) == _LOOKED_AT:",
        "if False:",
        f"{_COST}a_receiver_is_found_however_many_others_have_to_wait",
    ),
    of(
        "of very many receivers each comes in turn",
        "server/store/webhooks.py",
        '            self._walked = rows[-1]["principal"], rows[-1]["target"]\n',
        "            pass\n",
        f"{_COST}a_receiver_is_found_however_many_others_have_to_wait",
    ),
    of(
        "the address that is connected to is checked",
        "server/webhooks/client.py",
        "        if refusal is not None:\n            raise Refused(refusal)\n",
        "",
        f"{_CLIENT}a_name_that_leads_elsewhere_a_moment_later_is_not_followed",
        f"{_CLIENT}this_machine_is_not_reached",
    ),
    of(
        "redirects are not followed",
        "server/webhooks/client.py",
        "allow_redirects=False",
        "allow_redirects=True",
        f"{_CLIENT}redirects_are_not_followed",
    ),
    of(
        "each receiver has a secret of its own",
        "server/domain/webhooks.py",
        'f"webhooks of principal {principal}"',
        '"webhooks"',
        f"{_RULES}signatures_are_those_of_standard_webhooks",
    ),
    of(
        "two servers do not send the same",
        "server/store/webhooks.py",
        "WHERE id = :id AND tries = :tries AND next_at = :seen RETURNING *",
        "WHERE id = :id RETURNING *",
        f"{_STAGE}two_servers_do_not_send_the_same_twice",
    ),
    of(
        "a slow host has its share only",
        "server/stages/webhooks.py",
        "targets[target] < _PER_TARGET and ",
        "",
        f"{_STAGE}a_slow_host_keeps_neither_others_waiting_nor_more_than_its_share",
    ),
    of(
        "a stream ends with its token",
        "server/http/context.py",
        "return self.accepts(request)",
        "return True",
        "tests/contract/test_polling_http.py::test_a_stream_and_a_wait_end_with_their_token",
    ),
)
