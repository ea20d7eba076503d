"""Who may do what with the jobs of the server."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_HTTP: Final = "tests/contract/test_access.py::test_"
_RULES: Final = "tests/unit/server/domain/test_access.py::test_"
_HIDDEN: Final = f"{_HTTP}a_job_of_somebody_else_is_as_if_there_were_none"
_LIST: Final = f"{_HTTP}a_list_holds_what_its_reader_may_see"


def of(protection: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant("access", protection, file, old, new, tests)


def rule(protection: str, old: str, new: str, *tests: str) -> Mutant:
    return of(protection, "server/domain/access.py", old, new, *tests)


def read(protection: str, old: str, new: str, *tests: str) -> Mutant:
    return of(protection, "server/stages/read.py", old, new, *tests)


MUTANTS: Final = (
    rule(
        "an agent has nothing to do with jobs",
        "frozenset({Role.USER, Role.PORTAL, Role.OPERATOR})",
        "frozenset(Role)",
        f"{_HTTP}an_agent_cannot_upload_whatever_the_head_says",
    ),
    rule(
        "agents are the operator's",
        "Area.AGENTS: frozenset({Role.OPERATOR})",
        "Area.AGENTS: frozenset(Role)",
        f"{_HTTP}a_role_gets_no_further_than_its_routes[GET /api/v1/agents]",
    ),
    rule(
        "a user sees its own jobs only",
        "Visible(user_id=principal.user_id)",
        "Visible()",
        _LIST,
        f"{_HIDDEN}[GET /download/{{id}}]",
    ),
    rule(
        "a portal sees what it submitted only",
        "Visible(user_id=principal.acts_as, submitted_by=principal.name)",
        "Visible()",
        _LIST,
        f"{_HIDDEN}[GET /download/{{id}}]",
    ),
    rule(
        "a role without jobs sees none",
        'raise NotAllowed(f"{principal.name} has no jobs")',
        "return Visible()",
        f"{_RULES}agents_and_strangers_have_no_jobs",
    ),
    rule(
        "a user uploads as itself only",
        "if own not in (None, user_id):",
        "if False:",
        f"{_HTTP}a_user_cannot_upload_for_another",
        f"{_HTTP}a_refused_upload_shows_nothing_of_what_the_other_uploads",
    ),
    of(
        "a user has a user_id",
        "shared/principals.py",
        "if (self.role is Role.USER) != bool(self.user_id):",
        "if False:",
        f"{_RULES}a_user_without_a_user_id_cannot_be_made",
    ),
    of(
        "each route asks for a role",
        "server/api/routes.py",
        "        check_area(principal, route.area, route.scope)\n",
        "",
        f"{_HTTP}a_role_gets_no_further_than_its_routes[GET /api/v1/agents]",
    ),
    read(
        "who may not see a job gets the answer for an unknown id",
        "    if not visible.has(job):\n",
        "    if False:\n",
        f"{_HIDDEN}[GET /api/v1/jobs/{{id}}]",
    ),
    read(
        "nor its history",
        "    await read_job(jobs, principal, job_id)\n",
        "",
        f"{_HIDDEN}[GET /api/v1/jobs/{{id}}/events]",
    ),
    read(
        "asking for the jobs of another user gives an empty page",
        "            return None\n",
        "            pass\n",
        _LIST,
    ),
    read(
        "a user's list is of its own jobs",
        "        where = replace(where, user_id=visible.user_id)\n",
        "",
        _LIST,
    ),
    read(
        "a portal's list is of what it submitted",
        "return replace(where, submitted_by=visible.submitted_by)",
        "return where",
        _LIST,
    ),
    read(
        "a key shows its job only to who may see it",
        "return job if job is not None and visible.has(job) else None",
        "return job",
        f"{_HTTP}the_job_of_a_key_is_listed_to_who_may_see_it",
    ),
    of(
        "a repeated upload gives its job only to who may see it",
        "server/stages/accept.py",
        "if not is_new and not access.visible(principal).has(job):",
        "if False:",
        f"{_HTTP}a_key_gives_its_job_only_to_who_may_see_it",
    ),
    of(
        "who uploaded a job is kept",
        "server/stages/accept.py",
        "                    principal.name,\n                    warnings",
        "                    None,\n                    warnings",
        f"{_HTTP}who_uploaded_a_job_is_kept",
    ),
    of(
        "who uploaded a job is stored",
        "server/stages/accept.py",
        "        submitted_by,\n        not_before",
        "        None,\n        not_before",
        f"{_HTTP}who_uploaded_a_job_is_kept",
    ),
    of(
        "a job is cancelled by who may see it only",
        "server/stages/cancel.py",
        "        await read_job(self._jobs, principal, job_id)\n",
        "",
        f"{_HTTP}a_running_job_is_cancelled_only_by_who_may_see_it",
    ),
    of(
        "a job is deleted by who may see it only",
        "server/stages/by_hand.py",
        "await read_job(self._jobs, principal, job_id)\n        if",
        "await self._jobs.get(job_id)\n        if",
        f"{_HIDDEN}[DELETE /api/v1/jobs/{{id}}]",
    ),
    of(
        "a job and what it has left are read by who may see it only",
        "server/http/requested_job.py",
        "return await read_job(context.jobs, request[PRINCIPAL], job_id(request))",
        "return await context.jobs.get(job_id(request))",
        f"{_HIDDEN}[GET /download/{{id}}]",
        f"{_HIDDEN}[GET /api/v1/jobs/{{id}}/result]",
        f"{_HIDDEN}[GET /download_partial/{{id}}]",
    ),
    of(
        "Expect is looked at after the principal, on every path",
        "shared/http/listener.py",
        "hide_expect(server.request_factory)",
        "server.request_factory",
        f"{_HTTP}where_there_is_no_route_every_request_passes_the_same_way",
    ),
    of(
        "the log says who made a request",
        "shared/http/request_log.py",
        '"principal": request[PRINCIPAL].name,',
        '"principal": "somebody",',
        f"{_HTTP}the_log_says_who_made_a_request",
    ),
    of(
        "a list by its submitter holds no other",
        "server/store/pages.py",
        '("tag", "submitted_by", "reason",',
        '("tag", "reason",',
        "tests/contract/store/test_lists.py::test_each_choice_finds_what_a_look_at_every_job_finds",
    ),
)
