"""The page that uploads."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_PAGE: Final = "server/web/upload.py"
_FORM: Final = "server/web/upload_form.py"
_CHECKS: Final = "server/web/upload.py"
_TESTS: Final = "tests/contract/test_upload_pages.py::test_"


def _of(protection: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant("upload page", protection, file, old, new, tests)


MUTANTS: Final = (
    _of(
        "only who may upload has the page's form taken",
        _PAGE,
        'PageRoute("POST", PATH, Area.JOBS, send, needs=Scope.SUBMIT, files=True)',
        'PageRoute("POST", PATH, Area.JOBS, send, needs=Scope.READ, files=True)',
        f"{_TESTS}who_may_upload",
    ),
    _of(
        "a token that may only upload takes no files of former jobs along, and reads none",
        _PAGE,
        "    check_area(principal, Area.JOBS, Scope.READ)",
        "    check_area(principal, Area.JOBS, None)",
        f"{_TESTS}a_token_that_may_only_upload_reads_no_former_job",
    ),
    _of(
        "nobody takes the files of another's job along",
        _PAGE,
        "return await read_job(site.context.jobs, principal, number)",
        "return await site.context.jobs.get(number)",
        f"{_TESTS}nobody_runs_the_job_of_another_again",
    ),
    _of(
        "each wrong field is named, not only the first",
        _FORM,
        "            self.errors[name] = str(problem)\n",
        "            self.errors.setdefault(next(iter(self.errors), name), str(problem))\n",
        f"{_TESTS}every_wrong_field_has_its_error_beside_it_and_what_was_typed_stays",
    ),
    _of(
        "a run.sh that is sent counts more than one that is written",
        _FORM,
        "if text.strip() and not any(map(_is_entry, self._names)):",
        "if text.strip():",
        f"{_TESTS}a_run_sh_that_is_sent_counts_more_than_one_that_is_written",
    ),
    _of(
        "a run.sh that is written has line ends that shells understand",
        _FORM,
        '.replace("\\r\\n", "\\n")',
        "",
        f"{_TESTS}a_run_sh_is_written_in_the_page",
    ),
    _of(
        "nobody hears of the quota of a user for whom they may not upload",
        _CHECKS,
        "if value and name not in errors}",
        "if value}",
        f"{_TESTS}the_script_hears_of_everything_that_is_wrong_before_it_sends",
    ),
)
