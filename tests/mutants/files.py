"""The files of jobs, one by one."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_AGENT: Final = "tests/contract/test_agent_files.py::test_"
_SERVER: Final = "tests/contract/test_files_http.py::test_"
_OUTPUTS: Final = "tests/contract/test_outputs.py::test_"
_RUNNING: Final = "tests/contract/test_running_files_http.py::test_"


def _of(protection: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant("files", protection, file, old, new, tests)


MUTANTS: Final = (
    _of(
        "a path of what runs is a safe one",
        "client_agent/collect/running.py",
        'parts = safe_path(path).split("/")',
        'parts = path.split("/")',
        f"{_AGENT}nothing_outside_the_directory_is_read",
    ),
    _of(
        "a file that was replaced is not mixed with another",
        "client_agent/collect/running.py",
        "if (status.st_dev, status.st_ino) != (file.device, file.inode):",
        "if False:",
        f"{_AGENT}a_file_that_was_replaced_or_cut_is_not_mixed_with_another",
    ),
    _of(
        "a job's many names cost little where a file is read",
        "client_agent/collect/running.py",
        "for name in _names(self._fd) if _may_be_log(name)",
        "for name in _names(self._fd)",
        f"{_AGENT}the_names_of_a_directory_are_read_once_for_a_file_however_long_it_is",
    ),
    _of(
        "what a job was given is left out only as it was",
        "client_agent/collect/selection.py",
        "status.st_mtime_ns, status.st_ctime_ns)",
        "status.st_mtime_ns)",
        f"{_OUTPUTS}a_result_of_changes_leaves_out_what_is_as_it_was_sent",
    ),
    _of(
        "what is not kept does not count for the results limit",
        "client_agent/collect/walk.py",
        "if stat.S_ISREG(status.st_mode) and self._keep(_composed(path), status):",
        "if stat.S_ISREG(status.st_mode):",
        f"{_OUTPUTS}what_is_not_asked_for_does_not_count_for_the_results_limit",
    ),
    _of(
        "children are made whatever was asked for",
        "client_agent/collect/selection.py",
        "if path.startswith(ALWAYS):",
        "if False:",
        f"{_OUTPUTS}children_that_a_job_leaves_are_made_whatever_it_asked_for",
    ),
    _of(
        "the end of a file is not sent before its checksum is known",
        "shared/http/file_response.py",
        'following = await anext(some, b"")  # before the last one is sent: it may be damaged\n'
        "            await response.write(chunk)",
        'await response.write(chunk)\n            following = await anext(some, b"")',
        f"{_SERVER}a_damaged_file_ends_the_connection",
    ),
    _of(
        "the download of a bundle that broke off goes on",
        "server/api/downloads.py",
        ", etag=file)",
        ")",
        "tests/contract/test_jobs_http.py::test_the_bundle_can_be_fetched_from_the_upload_until_it_is_cleaned",
    ),
    _of(
        "a browser runs nothing of a file",
        "server/domain/media_types.py",
        'if found.startswith("text/") or found in _SHOWN_TEXT:',
        'if found == "text/html":\n        return found\n    if found.startswith("text/"):',
        f"{_SERVER}a_browser_may_show_text_and_images_and_runs_nothing",
    ),
    _of(
        "an image that may hold a script is only saved",
        "server/domain/media_types.py",
        "return found if found in _SHOWN_IMAGES else None",
        'return found if found.startswith("image/") else None',
        f"{_SERVER}a_browser_may_show_text_and_images_and_runs_nothing",
    ),
    _of(
        "a part of a file that may have changed is not taken for the rest of an old one",
        "shared/http/file_response.py",
        "if_range is not None and (etag is None or",
        "if_range is not None and etag is not None and (",
        f"{_RUNNING}the_files_of_a_running_job_are_listed_and_read_and_then_those_of_its_result",
    ),
)
