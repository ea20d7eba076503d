"""The server's store, its Cleaner, its loops, backups, and the database adapter."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_COST: Final = (
    "tests/contract/test_store_cost.py::test_sweeps_and_lists_cost_the_same_however_much_there_is"
)
_JOBS: Final = "tests/contract/store/test_jobs.py::test_"
_LISTS: Final = "tests/contract/store/test_lists.py::test_"
_HTTP: Final = "tests/contract/test_store_http.py::test_"
_GONE: Final = "tests/contract/test_retention.py::test_"
_RESTORE: Final = "tests/contract/test_restore.py::test_"
_TIE: Final = "tests/contract/test_database_and_folder.py::test_"
_BACKUP: Final = "tests/contract/test_backup.py::test_"
_DATABASE: Final = "tests/unit/shared/sqlite/test_database.py::test_"
_MIGRATE: Final = "tests/unit/shared/sqlite/test_migrations.py::test_"
_LOCK: Final = "tests/unit/shared/files/test_locks.py::test_"
_LOOPS: Final = "tests/unit/server/test_loops.py::test_"


def _of(protection: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant("store", protection, file, old, new, tests)


MUTANTS: Final = (
    # lists and the queue
    _of(
        "lists by state have an index",
        "server/store/migrations.py",
        'f"parent_id IS NULL AND {_ENDED}"',
        'f"1 = 0 AND {_ENDED}"',
        _COST,
    ),
    _of(
        "lists by user have an index of what has not ended",
        "server/store/migrations.py",
        '"parent_id IS NULL AND ended_at IS NULL"',
        '"parent_id IS NULL AND ended_at IS NULL AND id < 0"',
        _COST,
    ),
    _of(
        "delayed jobs do not hold up the choice of others",
        "server/store/migrations.py",
        "(service, user_id, priority DESC, id)",
        "(service, id)",
        _COST,
    ),
    _of(
        "the cursor of a list counts",
        "server/store/pages.py",
        "_NO_END if before_id is None else before_id",
        "_NO_END",
        f"{_LISTS}pages_hold_each_job_once_while_others_arrive",
    ),
    _of(
        "a list of a time does not look through what is newer",
        "server/store/pages.py",
        "before = min(before, newest + 1)",
        "pass",
        f"{_LISTS}a_list_of_a_time_begins_there",
    ),
    _of(
        "jobs that were uploaded at once may be in another order than their times",
        "server/store/pages.py",
        "LIMIT {_OUT_OF_ORDER}",
        "LIMIT 1",
        f"{_LISTS}a_list_of_a_time_begins_there",
    ),
    _of(
        "a job that is to start later does not time out in the queue before",
        "server/store/inserts.py",
        '"waits_since": new.not_before or None',
        '"waits_since": None',
        "tests/contract/test_dispatch.py::"
        "test_a_job_with_a_start_time_waits_for_it_and_then_in_the_queue",
    ),
    _of(
        "the shorter of two lists is looked through",
        "server/store/pages.py",
        "return ids[-1] if len(ids) == _SLICE else 0",
        "return 0",
        f"{_LISTS}the_shorter_of_two_lists_is_looked_through",
    ),
    _of(
        "lists are read apart",
        "shared/sqlite/database.py",
        "return await self._read(self._lists, sql, params)",
        "return await self._read(self._reader, sql, params)",
        f"{_DATABASE}no_other_read_waits_for_a_list",
    ),
    _of(
        "a delayed job waits",
        "server/store/queue.py",
        "AND not_before <= :now",
        "",
        f"{_JOBS}a_delayed_job_is_not_in_the_queue_until_it_is_due[too early]",
    ),
    _of(
        "a delay does not outlast a clock that was set back",
        "server/store/queue.py",
        "AND queued_at > :now",
        "AND queued_at > :now + 1000",
        f"{_JOBS}a_delayed_job_is_not_in_the_queue_until_it_is_due[the clock was set back]",
    ),
    _of(
        "those who wait are counted where the job is inserted",
        "server/store/inserts.py",
        "if queued + jobs > most_queued:",
        "if queued > 1_000:",
        f"{_JOBS}of_fifty_at_once_as_many_are_taken_as_may_wait",
        f"{_HTTP}a_full_queue_refuses_and_takes_again_when_there_is_room",
    ),
    _of(
        "the position in the queue is counted",
        "server/stages/waiting.py",
        "position = 1 + before.get(job.id, 0)",
        "position = 1",
        f"{_HTTP}a_position_in_the_queue_is_shown",
    ),
    # retention
    _of(
        "a key is known for a day",
        "server/stages/clean.py",
        "_KEYS_KEPT_S: Final = 86_400.0",
        "_KEYS_KEPT_S: Final = 0.0",
        f"{_GONE}an_idempotency_key_is_known_for_a_day",
    ),
    _of(
        "a key goes with the files of its job",
        "server/store/retention.py",
        "            for names, params in batches(ids):",
        "            for names, params in batches([]):",
        f"{_GONE}an_idempotency_key_does_not_outlive_what_its_job_left",
    ),
    _of(
        "waiting callers are woken when a job is cleaned",
        "server/store/retention.py",
        "        for job in cleaned:\n            self._changed(job)\n",
        "",
        f"{_GONE}many_expire_in_few_commits_and_not_all_in_one_sweep",
    ),
    _of(
        "a stop does not wait for the whole Cleaner",
        "server/stages/clean.py",
        "_AT_ONCE: Final = 200",
        "_AT_ONCE: Final = 20_000",
        f"{_GONE}a_stop_does_not_wait_for_all_that_has_expired",
    ),
    _of(
        "what is left to the Cleaner comes at once",
        "server/stages/clean.py",
        "            self._more()",
        "            pass",
        f"{_GONE}many_expire_in_few_commits_and_not_all_in_one_sweep",
    ),
    _of(
        "files go after their rows",
        "server/stages/clean.py",
        "        cleaned, files = await self._jobs.clean([",
        "        await self._storage.delete(("
        "FileKind.BUNDLE, job.bundle.file) for job in expired if job.bundle)\n"
        "        cleaned, files = await self._jobs.clean([",
        f"{_GONE}a_crash_before_the_files_are_removed_leaves_orphans_only",
    ),
    _of(
        "a folder that cannot be read stops nothing",
        "server/storage/folder.py",
        "except OSError as problem:  # unreadable",
        "except EOFError as problem:  # unreadable",
        f"{_GONE}what_others_put_into_the_folder_stops_nothing_and_is_left_alone",
    ),
    _of(
        "what the server did not store is not removed",
        "server/storage/folder.py",
        "if name > after and NAME.fullmatch(name) and name.startswith(prefix)",
        "",
        f"{_GONE}what_others_put_into_the_folder_stops_nothing_and_is_left_alone",
    ),
    _of(
        "0 means that no job is forgotten",
        "server/stages/clean.py",
        "            if keep_s:",
        "            if True:",
        f"{_GONE}a_cleaned_job_is_forgotten_when_its_service_says",
    ),
    _of(
        "only jobs that have ended can be deleted",
        "server/store/retention.py",
        "if job is not None and job.ended and job.parent_id is None and not waiting:",
        "if job is not None:",
        f"{_GONE}an_ended_job_can_be_deleted_and_its_number_is_not_given_again",
    ),
    _of(
        "MAX_AGE counts",
        "server/settings/load.py",
        'if "MAX_AGE" in environ:',
        'if "MAX_AGES" in environ:',
        f"{_HTTP}job_orchestrators_maximal_age_is_the_expiry_of_every_service",
    ),
    # the adapter
    _of(
        "readers cannot write",
        "shared/sqlite/database.py",
        '"PRAGMA query_only=ON"',
        '"PRAGMA query_only=OFF"',
        f"{_DATABASE}who_reads_cannot_write[rows]",
        f"{_DATABASE}who_reads_cannot_write[list_rows]",
    ),
    _of(
        "references are enforced",
        "shared/sqlite/database.py",
        '"foreign_keys=ON"',
        '"foreign_keys=OFF"',
        f"{_DATABASE}a_row_that_refers_to_nothing_is_refused",
    ),
    _of(
        "a change waits for another program's",
        "shared/sqlite/database.py",
        '"busy_timeout=10000"',
        '"busy_timeout=0"',
        f"{_DATABASE}a_change_waits_for_another_programs_change",
    ),
    _of(
        "a change of nothing does not end a failure",
        "shared/sqlite/database.py",
        "        if written:",
        "        if True:",
        f"{_DATABASE}a_failed_write_is_reported_until_something_could_be_written",
    ),
    _of(
        "a small change does not end a full disk",
        "shared/sqlite/database.py",
        '"space" if error.full else operation',
        "operation",
        f"{_DATABASE}a_full_disk_is_reported_until_there_is_space_for_more",
    ),
    _of(
        "a failure ends by itself",
        "shared/sqlite/database.py",
        "            await self.probe()",
        "            pass",
        f"{_HTTP}a_full_database_is_reported_as_507_and_health_recovers_by_itself",
    ),
    _of(
        "damage is reported until the next start",
        "shared/sqlite/database.py",
        'kind = "damage" if error.damaged else "space" if error.full else operation',
        'kind = "space" if error.full else operation',
        f"{_DATABASE}damage_is_reported_until_the_next_start",
    ),
    _of(
        "a file is checked after a crash",
        "shared/sqlite/database.py",
        "if crashed and",
        "if False and",
        f"{_DATABASE}after_a_crash_the_file_is_checked_before_it_is_used",
    ),
    _of(
        "one process has a database open",
        "shared/sqlite/database.py",
        "        lock = _lock(path)",
        '        lock = FileLock(path.with_name(f"{os.urandom(8).hex()}.lock"), path, "database")',
        f"{_DATABASE}one_process_has_it_open[False]",
        f"{_HTTP}two_servers_cannot_share_a_database_that_lies_elsewhere",
    ),
    _of(
        "a link leads to the same lock",
        "shared/sqlite/database.py",
        "real = path.resolve()",
        "real = path",
        f"{_DATABASE}one_process_has_it_open[True]",
    ),
    _of(
        "what is deleted is given back",
        "shared/sqlite/database.py",
        '"PRAGMA auto_vacuum=INCREMENTAL"',
        '"PRAGMA auto_vacuum=NONE"',
        f"{_DATABASE}what_was_deleted_can_be_given_back_to_the_disk",
    ),
    _of(
        "one process has a folder",
        "shared/files/durable.py",
        "fcntl.LOCK_EX | fcntl.LOCK_NB",
        "fcntl.LOCK_SH | fcntl.LOCK_NB",
        f"{_LOCK}a_folder_is_held_until_its_process_is_killed",
    ),
    # upgrade
    _of(
        "a copy is made before an upgrade",
        "shared/sqlite/migrations.py",
        "        copy_database(connection, copy)",
        "        copy.touch()",
        f"{_MIGRATE}a_copy_is_kept_of_what_was_before",
    ),
    _of(
        "an earlier copy is kept",
        "shared/sqlite/migrations.py",
        "    while unused.exists():",
        "    while False:",
        f"{_MIGRATE}a_copy_is_kept_of_what_was_before",
    ),
    _of(
        "room for the copy is looked for",
        "shared/sqlite/copies.py",
        "    if free < needed:",
        "    if False:",
        f"{_MIGRATE}without_room_for_the_copy_nothing_is_changed",
    ),
    _of(
        "a newer schema is left alone",
        "shared/sqlite/migrations.py",
        "    if version > len(migrations):",
        "    if False:",
        f"{_MIGRATE}a_newer_schema_is_left_alone",
    ),
    # backup and restore
    _of(
        "a backup holds what jobs left for children that are not made yet",
        "server/store/stored_rows.py",
        "bundle_digest FROM batches\n    WHERE bundle_file IS NOT NULL",
        "bundle_digest FROM batches\n    WHERE 0",
        f"{_BACKUP}what_a_job_left_for_children_that_are_not_made_yet_is_in_the_backup",
    ),
    _of(
        "a restored server has an identity of its own",
        "server/store/copies.py",
        '(("server", new), ("former"',
        '(("server", identities["server"]), ("former"',
        f"{_BACKUP}the_restored_server_is_another_and_gives_no_number_twice",
        "tests/process/test_backup_process.py::"
        "test_a_restored_server_serves_no_result_of_what_came_after_the_backup",
    ),
    _of(
        "numbers move on",
        "server/store/copies.py",
        "UPDATE sqlite_sequence SET seq = max(seq, ?) + ? WHERE",
        "UPDATE sqlite_sequence SET seq = max(seq, ?) + 0 * ? WHERE",
        f"{_BACKUP}the_restored_server_is_another_and_gives_no_number_twice",
    ),
    _of(
        "what agents hold for the former server is ended",
        "server/agents/follower.py",
        "        await client.end_former()\n",
        "",
        "tests/process/test_backup_process.py::"
        "test_a_restored_server_serves_no_result_of_what_came_after_the_backup",
    ),
    _of(
        "a rehearsal ends nothing",
        "server/store/copies.py",
        "list(dict.fromkeys(before)) if follow else []",
        "list(dict.fromkeys(before))",
        f"{_BACKUP}a_second_restore_knows_both_former_servers_and_a_rehearsal_none",
    ),
    _of(
        "a job without its files is left out",
        "server/maintenance/backup.py",
        "copies.leave_out(copy, {file.job_id for file in gone})",
        "pass",
        f"{_BACKUP}a_job_that_is_removed_meanwhile_is_left_out",
    ),
    _of(
        "files of a backup are closed to others",
        "server/maintenance/files.py",
        "    target.chmod(0o600)",
        "    target.chmod(0o644)",
        f"{_BACKUP}backup_and_restored_folder_are_closed_to_others",
    ),
    _of(
        "a backup is restored into an empty folder only",
        "server/maintenance/restore.py",
        "        _check_empty(data_dir, db_path)",
        "        pass",
        f"{_BACKUP}nothing_is_written_over",
    ),
    _of(
        "a damaged backup is refused",
        "server/maintenance/restore.py",
        'if lost > len(manifest["incomplete"]):',
        "if False:",
        f"{_BACKUP}a_damaged_backup_is_refused_and_leaves_nothing[results-gone-None]",
        f"{_BACKUP}a_damaged_backup_is_refused_and_leaves_nothing[results-changed---verify]",
    ),
    _of(
        "a user stores no more than is allowed",
        "server/store/inserts.py",
        "if most and stored + size > most else None",
        "if False else None",
        "tests/contract/store/test_jobs.py::"
        "test_of_fifty_at_once_as_many_are_taken_as_the_users_bytes_allow",
    ),
    # loops
    _of(
        "a loop goes on after a sweep that failed",
        "server/loops/runner.py",
        '                log.exception("sweep.failed", sweep=self.name)',
        "                raise",
        f"{_LOOPS}a_sweep_that_fails_is_followed_by_the_next",
    ),
    _of(
        "a wake-up during a sweep is kept",
        "server/loops/runner.py",
        "            self._wakeup.clear()\n",
        "",
        f"{_LOOPS}a_sweep_comes_at_its_interval_and_at_once_when_it_is_woken",
    ),
    _of(
        "a loop is healthy only while its sweeps end well",
        "server/loops/runner.py",
        "self.last_ok_s < 10 * self._every_s + 60",
        "True",
        f"{_LOOPS}a_sweep_that_fails_is_followed_by_the_next",
        f"{_LOOPS}a_loop_that_is_stuck_is_named",
    ),
    # the folder and its database
    _of(
        "without its database no server is made in a folder that has one",
        "server/data_folder.py",
        "    if not new_database and not file_size(path) and (wrong := look(table.data_dir, path)):",
        "    if False:",
        f"{_TIE}a_start_without_the_database_is_refused_and_loses_nothing[elsewhere]",
    ),
    _of(
        "the database of another server is refused",
        "server/data_folder.py",
        "        if not known:",
        "        if False:",
        f"{_TIE}the_database_of_another_server_is_refused",
    ),
    _of(
        "an older copy of the database is recognised",
        "server/data_folder.py",
        'return _OLDER if marks.server != record.server or is_older(marks, record) else ""',
        'return ""',
        f"{_TIE}an_older_database_goes_on_as_another_server_and_moves_the_rest_aside",
        f"{_TIE}an_older_database_is_known_by_its_jobs_without_another_start",
    ),
    _of(
        "a copy that a later start knows nothing of is recognised by the count of starts",
        "server/data_folder.py",
        "marks.starts < record.starts or ",
        "",
        f"{_TIE}a_copy_from_before_the_last_start_is_known_by_the_count_of_starts",
    ),
    _of(
        "an older copy can be put back a second time",
        "server/data_folder.py",
        " or marks.server in record.former",
        "",
        f"{_TIE}a_copy_from_before_it_became_another_server_is_an_older_one_too",
    ),
    _of(
        "agents end what they hold for each former server of the folder",
        "server/store/copies.py",
        "before += [*beside.former, beside.server]",
        "before.append(beside.server)",
        f"{_TIE}a_copy_from_before_it_became_another_server_is_an_older_one_too",
    ),
    _of(
        "a part of the data folder on another file system is noticed at the start",
        "server/data_folder.py",
        "    _check_mounts(table.data_dir)\n",
        "",
        f"{_TIE}a_part_of_the_folder_on_another_file_system_is_named_before_anything_is_changed",
    ),
    _of(
        "the database is ahead of the folder at every step of a start",
        "server/data_folder.py",
        "    copies.count_start(connection, marks.server or secrets.token_hex(16), starts)\n",
        "    write_record(table.data_dir, copies.Marks(marks.server, marks.last_job, 0, starts))\n"
        "    copies.count_start(connection, marks.server or secrets.token_hex(16), starts)\n",
        f"{_TIE}a_killed_start_does_not_make_the_database_older_and_loses_nothing[count-False]",
    ),
    _of(
        "a file without a row stays until a second sweep has found it",
        "server/stages/clean.py",
        "[file for file in self._found if file in self._found_before]",
        "list(self._found)",
        f"{_GONE}a_file_that_gets_its_row_between_two_sweeps_stays",
        f"{_GONE}a_restart_begins_to_count_sweeps_again",
    ),
    _of(
        "and until it is a day old",
        "server/stages/clean.py",
        "old = await self._storage.stored_before(kind, orphans, before) if orphans else []",
        "old = orphans if before else []",
        f"{_GONE}a_file_without_a_row_goes_a_day_old_in_the_second_sweep",
    ),
    _of(
        "few files are removed in a sweep",
        "server/stages/clean.py",
        "max(1, min(_ORPHANS_A_SWEEP, self._files // _ORPHANS_SHARE))",
        "self._files",
        f"{_GONE}at_most_5_percent_of_the_files_are_removed_in_a_sweep",
        f"{_GONE}at_most_100_are_removed_in_a_sweep_however_many_files_there_are",
    ),
    _of(
        "a repair removes nothing by the word of another database",
        "server/maintenance/verify.py",
        "if (wrong := look(data_dir, db_path)) and repair:",
        "if wrong := None:",
        "tests/contract/test_admin_folder.py::test_a_repair_by_a_database_that_is_not_the_folders_"
        "removes_nothing",
    ),
    _of(
        "a restored server signs with a key of its own",
        "server/store/copies.py",
        "key IN ('signing_key', 'rehearsal')",
        "key IN ('rehearsal')",
        f"{_RESTORE}a_restored_server_signs_anew_and_names_the_tokens_that_are_good",
    ),
    _of(
        "a rehearsal has nothing to deliver",
        "server/store/copies.py",
        "        connection.execute(_END_DELIVERIES)\n",
        "",
        f"{_RESTORE}a_rehearsal_has_nothing_to_deliver",
    ),
    _of(
        "a rehearsal sends no webhooks",
        "server/stages/webhooks.py",
        "        if self._rehearsal:",
        "        if False:",
        "tests/unit/server/stages/test_webhooks.py::test_a_rehearsal_sends_nothing_and_says_so",
    ),
)
