"""Several servers over one store: who may do what, and who no longer."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_STORE: Final = "server/store/leases.py"


def _of(protection: str, file: str, old: str, new: str, where: str, *tests: str) -> Mutant:
    names = tuple(f"tests/{where}.py::test_{test}" for test in tests)
    return Mutant("leases", protection, file, old, new, names)


def _store(protection: str, old: str, new: str, *tests: str) -> Mutant:
    return _of(protection, _STORE, old, new, "contract/store/test_leases", *tests)


def _claim(protection: str, old: str, new: str, *tests: str) -> Mutant:
    return _of(protection, "server/store/claims.py", old, new, "contract/store/test_claims", *tests)


def _holder(protection: str, old: str, new: str, *tests: str) -> Mutant:
    where = "unit/server/agents/test_lease_holder"
    return _of(protection, "server/agents/lease_holder.py", old, new, where, *tests)


def _place(protection: str, old: str, new: str, *tests: str) -> Mutant:
    names = "unit/server/domain/test_placement"
    return _of(protection, "server/domain/choose.py", old, new, names, *tests)


_LATER: Final = "a_lease_that_has_run_out_goes_to_another_with_a_higher_token"

MUTANTS: Final = (
    _store(
        "a renamed agent gets no lower token",
        "CASE WHEN max(token) > now_us() / {SECOND} THEN max(token)",
        "CASE WHEN max(token) < 0 THEN max(token)",
        "an_agent_that_is_renamed_gets_no_lower_token",
    ),
    _of(
        "a bundle that an agent found damaged is shared no more",
        "server/stages/deliver.py",
        "            await self._jobs.stop_sharing(job.bundle)\n        move",
        "            pass\n        move",
        "unit/server/stages/test_delivery",
        "a_bundle_that_an_agent_refuses_for_good_is_shared_with_no_later_upload",
    ),
    _store(
        "a lease is not taken over before its end",
        "leases.until <= now_us() OR :alone",
        "leases.until > 0 OR :alone",
        _LATER,
        "a_lease_stays_with_its_holder_while_it_is_renewed",
    ),
    _store(
        "each new owner has a higher token",
        "THEN leases.token + 1",
        "THEN leases.token",
        "a_token_is_never_given_twice_though_the_clock_stands_still_or_goes_back",
    ),
    _store(
        "tokens do not begin again after a restore",
        "                    ELSE now_us() / {SECOND} END FROM leases",
        "                    ELSE 1 END FROM leases",
        "tokens_go_on_though_the_database_was_put_back_from_an_earlier_copy",
    ),
    _store(
        "only one's own leases are renewed",
        "SET until = {_UNTIL} WHERE owner = :owner",
        "SET until = {_UNTIL} WHERE :owner = :owner",
        _LATER,
    ),
    _store(
        "the lease of a server that is gone ends for good",
        "owner = '' WHERE until <= now_us()",
        "owner = '' WHERE until <= 0",
        "a_server_is_running_until_its_lease_has_run_out",
    ),
    _store(
        "tokens outlast a release",
        "WHERE owner = :owner AND {_SERVERS}",
        "WHERE owner = :owner",
        "what_is_released_is_free_at_once_and_its_token_is_not_forgotten",
    ),
    # claims
    _claim(
        "who has lost an agent's lease claims nothing for it",
        "lease=candidate.lease,",
        "",
        "who_has_lost_the_lease_of_an_agent_claims_nothing_for_it",
    ),
    _of(
        "a move is made under its lease only",
        "server/store/moves.py",
        'only_if += f" AND {leases.HELD}"',
        "pass",
        "contract/store/test_claims",
        "a_move_under_a_lease_that_another_has_by_now_is_not_made",
    ),
    _claim(
        "the turn is kept",
        "if claimed and claimed[-1].user_id != last_user:",
        "if False:",
        "turns_go_on_where_they_ended_also_in_another_run_of_the_server",
    ),
    _claim(
        "nobody gets two while another waits for one",
        "if len({one.user_id for one in chosen}) == free:",
        "if len(chosen) == free:",
        "whatever_their_names_all_users_are_served_equally_often[7]",
    ),
    _claim(
        "the turn goes round no more than once",
        'AND user_id <= :up_to"',
        '"',
        "nobody_is_looked_at_twice_in_one_round",
    ),
    _claim(
        "quotas are counted in the claim's transaction",
        "held = await _held(tx, service.name, ended, packing, self._services)",
        "held = Counter[str](), dict[str, float](), Counter[str](), set[str]()",
        "of_several_who_claim_at_once_none_goes_beyond_a_quota",
        "slots_of_an_agent_are_counted_over_all_services",
    ),
    _claim(
        "the slot of an ended attempt is free",
        'agents[row["agent"] or ""] -= 1',
        "pass",
        "an_attempt_that_has_ended_needs_no_slot_and_its_successor_does",
    ),
    _claim(
        "the slot of its successor is not",
        'if AttemptKey(row["id"], row["attempt"]) not in ended:',
        "if False:",
        "an_attempt_that_has_ended_needs_no_slot_and_its_successor_does",
    ),
    _of(
        "a job that is to be cancelled is not claimed",
        "server/store/moves.py",
        "AND cancel_requested_at IS NULL AND {children",
        "AND {children",
        "contract/store/test_claims",
        "a_job_that_is_to_be_cancelled_is_not_claimed",
    ),
    _of(
        "no more is read than there are slots",
        "server/store/claims.py",
        "users, len(places), last_user",
        "users, free, last_user",
        "unit/server/stages/test_delivery",
        "a_sweep_reads_no_more_of_the_queue_than_there_are_free_slots",
    ),
    _of(
        "the slot of an ended attempt is free while its result is fetched",
        "server/stages/send.py",
        "self._get.results.ended()",
        "()",
        "unit/server/stages/test_delivery",
        "a_slot_is_free_as_soon_as_the_attempt_has_ended_not_when_its_result_is_here",
    ),
    _place(
        "slots are respected",
        "self.slots is None or held < self.slots + self.prefetch",
        "True",
        "the_smallest_share_of_slots_in_use_gets_the_next_job_and_none_gets_too_many",
    ),
    _place(
        "one job tries an agent out",
        "placed[name] < room[name]",
        "True",
        "an_agent_that_is_tried_out_gets_no_more_than_it_may_get_now",
    ),
    _of(
        "an agent has no more jobs of a service than its max_runs",
        "server/domain/choose.py",
        "(one.max_runs or math.inf)",
        "math.inf",
        "contract/test_fleet",
        "an_agent_has_no_more_jobs_of_a_service_at_once_than_the_settings_say",
    ),
    _place(
        "the least busy agent is chosen",
        "return jobs / max(1, candidate.slots or jobs + 1), jobs, candidate.name",
        "return 0.0, 0, candidate.name",
        "two_equal_agents_share_the_load",
        "the_smallest_share_of_slots_in_use_gets_the_next_job_and_none_gets_too_many",
    ),
    _place(
        "what was placed counts",
        "pack if candidate.packs else 1)",
        "pack) * 0",
        "two_equal_agents_share_the_load",
    ),
    # what an agent receives
    _of(
        "an agent that has seen a newer lease is left alone",
        "server/agents/ferryman_agent.py",
        "self.stale_lease = self.lease",
        "pass",
        "unit/server/agents/test_follower",
        "an_agent_that_has_seen_a_newer_lease_is_left_alone_until_ours_is_newer",
    ),
    _of(
        "requests to agents carry the lease",
        "server/agents/ferryman_agent.py",
        'params = {"lease": str(self.lease)} |',
        'params = {"lease": "0"} |',
        "unit/server/agents/test_follower",
        "an_agent_that_has_seen_a_newer_lease_is_left_alone_until_ours_is_newer",
    ),
    # which server uses an agent
    _holder(
        "leases are renewed",
        "for lease in await self._leases.renew()} if self._held else {}",
        "for lease in self._held.values()}",
        "one_server_talks_to_each_agent_and_another_when_it_does_not_renew",
    ),
    _holder(
        "a server that has lost a lease stops following the agent",
        "await self._end([self._following.pop(lease.agent)])",
        "pass",
        "one_server_talks_to_each_agent_and_another_when_it_does_not_renew",
    ),
    _holder(
        "who has lost a lease breaks off what it was doing",
        "await stop(lease.agent)",
        "pass",
        "one_server_talks_to_each_agent_and_another_when_it_does_not_renew",
    ),
    _holder(
        "who has lost a lease begins nothing new",
        "self._registry.give_up(lease.agent, why)",
        "pass",
        "one_server_talks_to_each_agent_and_another_when_it_does_not_renew",
    ),
    _holder(
        "interrupted deliveries are resumed by who takes over",
        "            await self._resume()",
        "            pass",
        "one_server_talks_to_each_agent_and_another_when_it_does_not_renew",
    ),
    _holder(
        "a server that is alone takes over at once",
        "alone=self._alone",
        "alone=False",
        "a_server_that_is_alone_does_not_wait_for_its_predecessors_leases",
    ),
    _holder(
        "agents that are not in the settings have a holder",
        "sorted(agents | self._followers.keys())",
        "sorted(self._followers.keys())",
        "an_agent_that_has_jobs_has_a_holder_though_it_is_not_in_the_settings",
    ),
    _of(
        "a cancel does not wait longer than for the lease",
        "server/stages/cancel.py",
        "self._without_lease.pop(job.id).set()",
        "pass",
        "stateful/test_two_servers",
        "a_cancel_that_waits_is_done_as_soon_as_its_server_has_the_lease",
    ),
    # files of a server that was taken for dead
    _of(
        "an upload is held to the lease that its server had before it was stored",
        "server/stages/accept.py",
        "                lease,\n",
        "                self._leases.own,\n",
        "stateful/test_two_servers",
        "an_upload_of_a_server_that_stood_still_is_refused_as_its_file_may_be_gone",
    ),
    _of(
        "no attempt has a result that may have been deleted as an orphan",
        _STORE,
        "SET owner = '' WHERE until <= now_us()",
        "SET owner = '' WHERE until <= now_us() AND name LIKE 'server:%'",
        "contract/store/test_ended_servers",
        "a_result_is_refused_until_the_server_has_leases_again[True]",
        "a_result_is_refused_until_the_server_has_leases_again[False]",
    ),
    # two servers
    _of(
        "a paused server writes nothing after it was taken over",
        "server/store/moves.py",
        'only_if += f" AND {leases.HELD}"',
        'only_if += " AND :_lease = :_lease AND :_owner = :_owner AND :_token = :_token"',
        "stateful/test_two_servers",
        "a_server_that_stood_still_while_the_other_took_over_writes_nothing[cannot reach the agents]",
    ),
    _of(
        "what follows a lost lease is not tried again and again",
        "server/store/jobs.py",
        "        if not ours:",
        "        if False:",
        "contract/store/test_claims",
        "a_move_under_a_lease_that_another_has_by_now_is_not_made",
    ),
    _of(
        "a server that takes over says so to the agent",
        "server/agents/registry.py",
        "client.lease = lease.token",
        "pass",
        "stateful/test_two_servers",
        "a_server_that_stood_still_while_the_other_took_over_writes_nothing[finishes]",
    ),
    _of(
        "deliveries of a server that died are resumed",
        "server/stages/deliver.py",
        "for job in await self._jobs.in_states([JobState.PROCESSING]):",
        "for job in []:",
        "stateful/test_two_servers",
        "one_server_dies_at_any_step_and_the_other_goes_on",
    ),
    _of(
        "a server cancels nothing at an agent that another uses",
        "server/stages/cancel.py",
        'if self._fleet.lease(job.agent or "") is None:\n            return False',
        "if False:\n            return False",
        "stateful/test_two_servers",
        "a_cancel_is_done_by_the_server_that_talks_to_the_jobs_agent",
    ),
)
