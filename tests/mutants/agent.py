"""The agent around the sandbox: submits, shortages, its store and its API."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, of

_AGENT: Final = "tests/contract/test_agent_server.py::test_"
_TROUBLES: Final = "tests/unit/client_agent/run/test_runner_troubles.py::test_"
_SNAPSHOTS: Final = "tests/unit/client_agent/api/test_snapshots.py::test_"
_RUNNER: Final = "tests/unit/client_agent/run/test_runner.py::test_"
_PERMIT: Final = "tests/unit/client_agent/run/test_start_permit.py::test_"
_METER: Final = "tests/unit/client_agent/sandbox/limits/test_meter.py::test_"

_ENDING: Final = "tests/contract/test_agent_ending.py::test_"
_BULK: Final = "tests/contract/test_agent_bulk.py::test_"
_PAYLOADS: Final = "tests/contract/test_agent_payloads.py::test_"
_ORDERS: Final = "tests/contract/test_agent_orders.py::test_"
_LEASES: Final = "tests/contract/test_agent_leases.py::test_"

MUTANTS: Final[tuple[Mutant, ...]] = (
    of(
        "agent",
        "an attempt that is put back is begun by one worker",
        "run/runner.py",
        "            await self._context.clock.sleep(RETRY_S)\n            again = ",
        "            self.enqueue(payload)\n            await self._context.clock.sleep(RETRY_S)\n"
        "            again = False and ",
        f"{_TROUBLES}an_attempt_that_is_put_back_is_handled_by_one_worker_and_can_be_killed",
    ),
    of(
        "agent",
        "an attempt that was killed is not put back",
        "run/runner.py",
        "again = not attempt.start_prevented",
        "again = True",
        f"{_TROUBLES}an_attempt_that_is_killed_before_it_is_put_back_is_not_tried_again",
    ),
    of(
        "agent",
        "an agent keeps its id",
        "payloads/store.py",
        '        if rows:\n            return str(rows[0]["value"])\n',
        "",
        f"{_LEASES}an_agent_keeps_the_id_of_its_first_start_under_every_name",
    ),
    of(
        "agent",
        "a lease that was taken over starts, ends and forgets nothing",
        "payloads/attempt_keys.py",
        "    if token < seen:\n",
        "    if False:\n",
        f"{_LEASES}a_lower_lease_than_was_seen_starts_ends_and_forgets_nothing",
        f"{_LEASES}a_large_repeat_under_a_stale_lease_is_refused_before_it_has_come",
    ),
    of(
        "agent",
        "the highest lease is remembered",
        "payloads/attempt_keys.py",
        "    if token > seen:\n",
        "    if not rows:\n",
        f"{_LEASES}a_lower_lease_than_was_seen_starts_ends_and_forgets_nothing",
    ),
    of(
        "agent",
        "a kill and an acknowledgement are about one attempt",
        "payloads/attempt_keys.py",
        'caller.key is not None and caller.key != rows[0]["key"]',
        "False",
        f"{_LEASES}a_kill_or_an_acknowledgement_of_another_attempt_is_of_an_unknown_payload",
    ),
    of(
        "agent",
        "a restored server has a lease of its own",
        "payloads/attempt_keys.py",
        'caller.server or rows[0]["server"]',
        'rows[0]["server"]',
        f"{_LEASES}a_restored_server_speaks_under_its_own_name_for_the_one_before",
    ),
    of(
        "agent",
        "a key stands for one bundle",
        "payloads/attempt_keys.py",
        "if payload is not None and payload.bundle_digest != digest:",
        "if False:",
        f"{_AGENT}a_key_that_is_known_with_another_bundle_gets_nothing_of_it",
    ),
    of(
        "agent",
        "a submit that is being stored is not refused",
        "api/routes.py",
        "            await self._intake.wait_for_submission(server, key)",
        "            pass",
        f"{_AGENT}settling_does_not_refuse_a_submit_that_is_being_stored",
        f"{_AGENT}settling_waits_for_a_submit_that_ends_meanwhile",
    ),
    of(
        "agent",
        "a submit that has stalled is refused",
        "intake/submission.py",
        "return self.complete or now < self.last_data_at + STALLED_S",
        "return True",
        f"{_AGENT}settling_refuses_a_submit_that_has_stalled",
    ),
    of(
        "agent",
        "no more files are accepted than can be unpacked",
        "intake/submit.py",
        "max_files=MAX_FILES,",
        "max_files=1_000_000,",
        f"{_AGENT}more_files_than_a_bundle_may_have_are_refused_before_they_are_stored",
    ),
    Mutant(
        "agent",
        "a bundle that arrived complete is not read again",
        "shared/multipart/sinks.py",
        "bundle.summary(self._digests)",
        "bundle.summary()",
        (
            "tests/unit/shared/multipart/test_receive.py::test_a_sealed_bundle_that_came_whole_is_not_"
            "read_again",
        ),
    ),
    Mutant(
        "agent",
        "what arrived is compared with what the bundle lists",
        "shared/files/bundles/stream_digests.py",
        "(size, crc) == (entry.size, entry.crc)",
        "size == entry.size",
        (
            "tests/unit/shared/multipart/test_receive.py::test_a_damaged_sealed_bundle_is_not_stored",
            "tests/unit/shared/files/bundles/test_stream_digests.py::test_a_file_whose_bytes_are_not_as_listed_"
            "is_to_be_read",
        ),
    ),
    of(
        "agent",
        "a look that fails does not end the watch",
        "sandbox/limits/meter.py",
        "                except Exception as problem:  # noqa: BLE001 - the next poll may succeed\n",
        "                except ZeroDivisionError as problem:\n",
        f"{_METER}a_poll_that_fails_does_not_stop_other_gauges_or_later_polls",
    ),
    of(
        "agent",
        "a last reading that fails is taken again",
        "sandbox/limits/meter.py",
        "        for _ in range(FINAL_READ_TRIES):",
        "        for _ in range(1):",
        f"{_METER}a_final_reading_that_fails_is_repeated",
    ),
    of(
        "agent",
        "a shortage costs no result",
        "run/attempt.py",
        "if tries == PACK_TRIES or problem.errno not in SHORTAGE_ERRNOS:",
        "if True:",
        f"{_TROUBLES}a_shortage_of_descriptors_costs_no_result_and_no_file_of_it",
    ),
    of(
        "agent",
        "and no file of it",
        "collect/pack.py",
        "            raise_if_shortage(problem)\n            self.contents.skip(shown",
        "            self.contents.skip(shown",
        f"{_TROUBLES}a_shortage_of_descriptors_costs_no_result_and_no_file_of_it[precious]",
    ),
    of(
        "agent",
        "more files than a job's disk can hold are its limit, and no fault of the agent",
        "run/unpack.py",
        "    if names > most:",
        "    if False:",
        f"{_RUNNER}more_files_than_its_own_disk_can_hold_fail_by_that_limit",
    ),
    of(
        "agent",
        "a job's own disk that is full is its limit, too",
        "run/unpack.py",
        "if own_disk and problem.errno in DISK_FULL_ERRNOS:",
        "if False:",
        f"{_RUNNER}a_disk_that_is_full_is_the_bundles_fault_only_where_it_is_its_own",
    ),
    of(
        "agent",
        "few snapshots exist at once",
        "api/routes.py",
        "        if self._count >= MAX_SNAPSHOTS:",
        "        if False:",
        f"{_SNAPSHOTS}no_more_exist_at_once_than_allowed",
    ),
    of(
        "agent",
        "a snapshot leaves the space that must stay free",
        "api/routes.py",
        "            self._admission.check_space(size)\n",
        "            pass\n",
        f"{_SNAPSHOTS}it_leaves_the_space_that_must_stay_free_before_and_while_it_is_written",
    ),
    of(
        "agent",
        "a snapshot without readers is not finished",
        "api/routes.py",
        "            if task is not None and task.cancelling():\n                raise",
        "            if False:\n                raise",
        f"{_SNAPSHOTS}one_that_nobody_waits_for_any_more_is_not_finished",
    ),
    of(
        "agent",
        "the list of payloads is sent in pages",
        "api/routes.py",
        "len(page) < len(rows) or len(rows) == BATCH",
        "len(page) < len(rows)",
        f"{_AGENT}the_list_is_sent_in_pages_and_has_what_changes_meanwhile",
    ),
    of(
        "agent",
        "an order does not use another server's bundle",
        "intake/many.py",
        "content = order.server, order.bundle_digest\n        with",
        'content = "server-one", order.bundle_digest\n        with',
        f"{_BULK}each_order_is_judged_by_itself",
    ),
    of(
        "agent",
        "bundles that come together are those that were ordered",
        "intake/orders.py",
        "if summary.digest != order.bundle_digest:",
        "if False:",
        f"{_PAYLOADS}half_of_them_may_be_refused",
    ),
    of(
        "agent",
        "bundles that come together are as long as is said",
        "intake/orders.py",
        "if sum(head.sizes) != len(body) - at:",
        "if False:",
        f"{_PAYLOADS}lying_lengths_and_nonsense_are_refused",
    ),
    of(
        "agent",
        "what came twice is stored once",
        "intake/many.py",
        "        if not created:\n            self._folders.remove_file(self._folders.bundle(file))\n",
        "        if not created:\n",
        f"{_PAYLOADS}the_same_key_twice_is_one_payload",
    ),
    of(
        "agent",
        "an acknowledgement that comes with orders needs the lease",
        "payloads/attempt_keys.py",
        "        await check(tx, server, caller.lease)\n    refused",
        "        pass\n    refused",
        f"{_PAYLOADS}what_is_acknowledged_with_orders_is_forgotten",
    ),
    of(
        "agent",
        "a shared bundle is kept while a payload uses it",
        "storage/shared_bundles.py",
        "return bool(self.users or self.pins)",
        "return False",
        f"{_BULK}what_waits_for_a_kept_bundle_runs_after_a_restart",
    ),
    of(
        "agent",
        "the variables of an ended payload are forgotten",
        "payloads/store.py",
        "json_remove(given, '$.env', '$.meta')",
        "given",
        f"{_ORDERS}variables_of_the_operator_are_set_and_written_nowhere_else",
    ),
    of(
        "agent",
        "what is killed while its sandbox comes up never starts",
        "run/attempt.py",
        "        elif self._cancelled:\n",
        "        elif False:\n",
        f"{_PERMIT}what_is_killed_while_its_sandbox_comes_up_never_starts",
    ),
    of(
        "agent",
        "a gate stays closed until its row says Running",
        "run/attempt.py",
        "            return await self._storing\n        if",
        "            return self._payload\n        if",
        f"{_PERMIT}its_gate_stays_closed_until_it_is_stored_as_running",
    ),
    of(
        "agent",
        "a stopping agent waits for what is to continue",
        "run/attempt.py",
        'return runs and self.payload.on_shutdown == "continue"',
        "return False",
        f"{_ENDING}an_attempt_that_is_to_continue_is_waited_for",
    ),
    of(
        "agent",
        "a draining agent takes nothing more",
        "intake/admission.py",
        "        if self.draining:\n",
        "        if False:\n",
        f"{_ENDING}a_drained_agent_finishes_what_it_has_and_waits_for_servers",
    ),
    of(
        "agent",
        "a drained agent waits until servers have fetched",
        "run/runner.py",
        "await payloads.held_for_servers()",
        "False",
        f"{_ENDING}a_drained_agent_finishes_what_it_has_and_waits_for_servers",
    ),
    of(
        "agent",
        "a new database loses no result of an earlier one",
        "run/retention.py",
        "await payloads.highest_id()",
        "2**62",
        "tests/unit/client_agent/run/test_recovery.py::"
        "test_a_new_database_loses_no_result_that_an_earlier_one_knew",
    ),
)
