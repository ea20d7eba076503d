"""What ``ferryman admin`` promises."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_FORGET: Final = "tests/contract/test_forget_user.py::test_"
_FOLDER: Final = "tests/contract/test_admin_folder.py::test_"


def _of(protection: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant("operators' rare work", protection, file, old, new, tests)


MUTANTS: Final = (
    _of(
        "verify reads every byte of a result",
        "server/maintenance/files.py",
        "same = _digest(path, file) == file.digest",
        "same = True",
        f"{_FOLDER}a_flipped_byte_is_found_wherever_it_is",
    ),
    _of(
        "verify compares the contents of bundles",
        "server/maintenance/files.py",
        "same = reader.summary().digest == file.digest",
        "same = True",
        f"{_FOLDER}a_bundle_of_the_same_size_with_other_files_is_found",
    ),
    _of(
        "a file that cannot be read now is not given up",
        "server/maintenance/verify.py",
        'return trouble.kind != "unreadable_file"',
        "return True",
        f"{_FOLDER}a_file_that_cannot_be_read_now_is_not_given_up",
    ),
    _of(
        "results on a disk that is not mounted are not given up",
        "server/maintenance/verify.py",
        "return folder.is_dir() and any(folder.iterdir())",
        "return True",
        f"{_FOLDER}results_on_a_disk_that_is_not_mounted_are_not_given_up",
    ),
    _of(
        "a damaged database does not say which files are strays",
        "server/maintenance/verify.py",
        "        if damages and self._repair:",
        "        if False:",
        f"{_FOLDER}a_damaged_database_does_not_say_which_files_are_strays",
    ),
    _of(
        "who is forgotten can do nothing any more",
        "server/store/forgotten.py",
        "                WHERE role = 'user' AND user_id = :user\n",
        "                WHERE role = 'user' AND user_id = ''\n",
        f"{_FORGET}nothing_of_the_user_is_found_afterwards",
    ),
    _of(
        "the audit trail does not name who is forgotten",
        "server/store/forgotten.py",
        "principal = :instead, peer = ''",
        "principal = principal",
        f"{_FORGET}nothing_of_the_user_is_found_afterwards",
    ),
    _of(
        "the bundle that somebody else has stays when a user is forgotten",
        "server/store/bundles.py",
        'if not left or left[0]["refs"] <= 0:',
        "if True:",
        f"{_FORGET}a_bundle_that_others_have_too_stays",
    ),
    _of(
        "a user is not called forgotten while jobs are left",
        "server/stages/forget_user.py",
        "report = Forgotten(before - await self._records.found(user), waiting)",
        "report = Forgotten(before - await self._records.found(user), {})",
        f"{_FORGET}a_job_whose_agent_is_away_is_named_and_goes_later",
    ),
    _of(
        "a repair waits for no server to run",
        "server/maintenance/verify.py",
        "            locks.append(FolderLock(data_dir))\n",
        "",
        f"{_FOLDER}a_sound_folder_is_found_sound_beside_a_server_too",
    ),
)
