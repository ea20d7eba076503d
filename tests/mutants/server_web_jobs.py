"""The list of jobs as a page."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_PAGES: Final = "tests/contract/test_jobs_pages.py::test_"
_LISTS: Final = "tests/contract/store/test_lists.py::test_"


def _mutant(protection: str, file: str, old: str, new: str, test: str) -> Mutant:
    return Mutant("pages", protection, f"server/{file}", old, new, (test,))


MUTANTS: Final = (
    _mutant(
        "a search by number finds the caller's own jobs only",
        "web/jobs.py",
        "await read_job(context.jobs, principal, number)",
        "await context.jobs.get(number)",
        f"{_PAGES}everybody_sees_their_own_jobs_only",
    ),
    _mutant(
        "a question about many jobs names the caller's own only",
        "web/jobs.py",
        "found.append(await read_job(context.jobs, principal, job_id))",
        "found.append(await context.jobs.get(job_id))",
        f"{_PAGES}what_cannot_be_done_is_said_of_each_job",
    ),
    _mutant(
        "jobs that are uploaded after the question are left alone",
        "web/jobs.py",
        "principal, asked.action, asked.which.where, asked.before, _MOST",
        "principal, asked.action, asked.which.where, None, _MOST",
        f"{_PAGES}all_that_match_are_those_of_the_moment_of_the_question",
    ),
    _mutant(
        "a filter that means nothing does not mean all jobs",
        "web/jobs.py",
        "if every and which.problem is not None:",
        "if every and which.problem is not None and not which.given:",
        f"{_PAGES}a_wrong_form_is_refused",
    ),
    _mutant(
        "one form acts on a bounded number of jobs",
        "web/jobs.py",
        "if len(known) > _MOST:",
        "if len(known) > 10 * _MOST:",
        f"{_PAGES}a_wrong_form_is_refused",
    ),
    _mutant(
        "a search looks through a bounded number of jobs",
        "store/pages.py",
        "(where.since, where.until, where.text) == (None, None, None)",
        "(where.since, where.until) == (None, None)",
        f"{_LISTS}a_text_finds_jobs_by_number_name_tag_and_message",
    ),
    _mutant(
        "counts of a list stop at a bound",
        "store/listed.py",
        '[state], "1 = 1 LIMIT :most"',
        '[state], "1 = 1"',
        f"{_LISTS}jobs_are_counted_by_state_up_to_a_number",
    ),
    _mutant(
        "all that match are the batches, not their children, where only these are listed",
        "web/jobs.py",
        "return Chosen(given, replace(where, top_level=hidden))",
        "return Chosen(given, where)",
        f"{_PAGES}all_that_match_are_the_batches_where_these_are_listed",
    ),
    _mutant(
        "children are not counted where they are not listed",
        "store/pages.py",
        "listed.counted(which, top_level=where.top_level)",
        "listed.counted(which)",
        f"{_LISTS}children_are_not_counted_where_they_are_not_listed",
    ),
    _mutant(
        "a list of the top level leaves out children that another choice found",
        "store/pages.py",
        'and not (where.top_level and row["parent_id"] is not None)',
        "and True",
        f"{_LISTS}further_choices_find_what_a_look_at_every_job_finds",
    ),
)
