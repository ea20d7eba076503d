"""The codes of refusals, with the statuses that they come with: for rows of routes, and for
``/openapi.json``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from shared.wire import Reason

CODES: Final[Mapping[int, Mapping[str, str]]] = {
    400: {
        "unknown_parameter": "a parameter of the query means nothing here",
        "repeated_parameter": "a parameter of the query is there twice",
        "bad_request": "this is not HTTP",
        "invalid_json": "the body is not a JSON object",
        "unknown_field": "a field of the body means nothing here; the nearest name is said",
        "invalid_last_event_id": "the header Last-Event-ID is not the id of an event",
        "fixed_by_ticket": "the upload ticket says another value for the field, or only it may",
        "missing_user": "whose is meant has to be said: user",
        "callback_refused": "the address is not public, or none that a webhook may reach",
        "missing_user_id": "the form has no user_id",
        "missing_service": "the form has no service",
        "missing_name": "it needs a name",
        "missing_role": "a token needs a role",
        "missing_cron": "a schedule needs times",
        "missing_action": "what is to be done has to be said: action",
        "unknown_service": "the server has no such service, or it was retired",
        "result_gone": "a job of inputs_from has expired",
        "not_multipart": "the body is no multipart/form-data",
        "body_cut_short": "the body ended before its last boundary",
        "wrong_length": "the body has not the length that Content-Length says",
        "no_first_boundary": "the body does not begin with its boundary",
        "trailing_data": "something follows the last boundary",
        "bad_boundary": "the boundary is none that multipart allows",
        "bad_header": "a part's headers cannot be read",
        "malformed": "the form cannot be read",
        "bad_utf8": "a text is not UTF-8",
        "duplicate_field": "a field is there twice",
        "no_file": "there is no file",
        "no_file_name": "a file has no name",
        "no_run_sh": "there is no run.sh at the root",
        "archive_and_files": "there are files beside an archive, or a second archive",
        "unexpected_file": "a field of text has a file",
        "no_folder": "an archive has no folder of that name",
        "unsafe_name": "a name is dangerous, or impossible on the compute host",
        "duplicate_name": "two files have the same name",
        "case_clash": "two names differ only in case (names = portable)",
        "file_and_folder": "a name is a file in one place and a folder in another",
        "not_an_archive": "the archive is neither .zip, .tar nor .tar.gz",
        "truncated": "the archive ends too early",
        "damaged": "the archive is damaged",
        "bad_checksum": "a checksum of the archive is wrong",
        "hidden_data": "the archive has bytes that belong to no entry",
        "split_archive": "the archive is in several volumes",
        "overlap": "entries of the archive overlap",
        "two_names": "an entry of the archive has two names",
        "lying_header": "an entry's header differs from the table of contents",
        "lying_size": "an entry has another size than it says",
        "huge_header": "a header of the archive is too large",
        "encrypted": "an entry of the archive is encrypted",
        "compression": "an entry is compressed in a way that is not read",
        "link": "an entry of the archive is a link",
        "special_file": "an entry is neither a file nor a folder",
        "sparse_file": "an entry is a sparse file",
        "bomb": "the archive expands to far more than it is",
        "line_too_long": "a line of array_file is too long",
        "nul_in_line": "a line of array_file has a NUL",
    },
    401: {"not_allowed": "the token is missing, wrong, expired or revoked"},
    403: {
        "not_allowed": "the caller's role, or the scopes of its token, do not allow it",
        "ticket_invalid": "the upload ticket was changed on its way",
        "ticket_expired": "the upload ticket has expired",
        "ticket_revoked": "the token that made the upload ticket was revoked",
        "ticket_used": "the upload ticket was used before",
        "link_invalid": "the signed link was changed on its way",
        "link_expired": "the signed link has expired",
        "link_revoked": "the token that made the signed link was revoked",
        "foreign_origin": "a page of another site, which is not in allowed_origins, sent it",
    },
    404: {
        "job_not_found": "no such job, or none that the caller may see",
        "attempt_not_found": "the job has no such attempt",
        "schedule_not_found": "no such schedule, or none that the caller may see",
        "agent_not_found": "the server knows no such agent",
        "service_not_found": "the server has no such service",
        "no_batch": "the job has no children",
        "file_not_found": "the result has no such file",
        "delivery_not_found": "no such delivery, or none that the caller may see",
        "token_not_found": "no token has this id",
        "not_found": "there is nothing at this path",
    },
    405: {"method_not_allowed": "the route takes another method; Allow names it"},
    408: {"upload_too_slow": "too little of the body came for too long"},
    409: {
        "already_ended": "the job ended before it could be cancelled",
        "not_ended": "the job has not ended",
        "settings_not_reloaded": "the settings are wrong, and nothing was changed",
        "child_of_batch": "it is done to the whole batch only",
        "still_needed": "jobs that have not ended depend on it",
        "parent_ended": "the batch of the job has ended",
        "bundle_gone": "the stored bundle is gone",
        "not_retryable": "only a job that failed or was cancelled can be retried",
        "being_deleted": "the job is being deleted",
        "unknown_service": "the server has no such service any more",
        "not_started": "no attempt has started",
        "no_live_log": "its log can be read when the attempt has ended",
        "log_moves": "the attempt has ended, its result is on the way",
        "no_log": "the attempt left no such log",
        "no_result": "the attempt left no result",
        "files_of_children": "the parent of a batch has no files: its children have them",
        "no_live_files": "its files can be read when the attempt has ended",
        "files_move": "the attempt has ended, its result is on the way",
        "unreadable_result": "the stored result cannot be read",
        "name_taken": "another principal has this name",
        "token_ended": "the token was revoked or has expired",
        "schedule_exists": "the user has a schedule of this name",
        "too_many_schedules": "the user has as many schedules as one may have",
        "too_many_services": "there are as many services as there may be",
        "service_in_file": "the settings file has the service: change it there",
        "agent_retired": "the agent was retired",
        "agent_removed": "the agent is not in the server's settings",
        "agent_replaced": "another agent has its place in the settings",
        "agent_has_jobs": "the agent has jobs",
        "agent_reachable": "the agent can be reached: drain or retire it",
        "job_cancelled": "the job was cancelled, so it has no result",
        "job_failed": "the job failed, so it has no result",
        **{str(reason): f"the job failed with the reason {reason}" for reason in Reason},
    },
    410: {"result_cleaned": "it has expired, its files are removed"},
    412: {"precondition_failed": "the content is another one than If-Match names"},
    413: {
        "body_too_large": "the body is too large",
        "upload_too_large": "the upload is larger than the server takes (max_upload)",
        "too_large": "the files are more than the server takes, or one of them is",
        "too_many_files": "there are more files than the server takes",
        "too_many_fields": "the form has more fields than any upload needs",
        "too_much_overhead": "the form is mostly boundaries and headers",
        "field_too_long": "a field is longer than any may be",
        "bundle_over_disk_limit": "the files alone are more than the job's disk",
        "upload_over_quota": "the upload is larger than all that the user may upload in a day",
        "storage_full": "the user's bundles and results take all of stored_per_user",
    },
    415: {
        "content_encoding": "the body is compressed: send it as it is",
        "content_type": "the header Content-Type cannot be read",
        "charset": "the body's charset is not UTF-8",
    },
    416: {
        "invalid_offset": "the offset is behind the end",
        "invalid_range": "no byte is in the range",
    },
    417: {"expectation": "the header Expect has another value than 100-continue"},
    421: {"unknown_host": "the server is not known under this name; see allowed_hosts"},
    422: {"idempotency_key_reused": "the same Idempotency-Key came with another upload"},
    429: {
        "rate_limited": "the caller sends more requests than one caller may (rate_limit)",
        "upload_quota": "the user has uploaded as much as one user may in a day",
        "queue_full": "the user has as many jobs waiting as the service allows",
        "too_many_uploads": "as many uploads are under way as the server takes",
        "too_many_waits": "too many requests wait: ask without wait",
        "too_many_batch_zips": "as many ZIPs of batches are being sent as one caller may have",
        "unread_answers": "the caller has not read large answers that were sent",
    },
    500: {
        "internal_error": "a defect of the server; its log has the details",
        "result_missing": "the stored result is missing: tell the operator",
    },
    503: {
        "too_many_requests": "too many requests are under way",
        "unread_answers": "callers have not read large answers that were sent, this one among them",
        "database_unavailable": "the database cannot be read or written",
        "too_many_open_files": "the server has too many files open",
        "storage_unavailable": "the server cannot write its data folder",
        "server_paused": "the server stood still: send it again",
        "agent_unreachable": "the agent that has it cannot be reached",
        "too_many_snapshots": "too many snapshots of running jobs are being sent",
    },
    507: {
        "disk_full": "the server's disk is full",
        "database_unavailable": "the database's disk is full",
    },
}
"""Status -> code -> when. A field that is wrong has the code ``invalid_`` and its name (400)."""

_OF_SOME: Final = frozenset(
    {
        *("bad_request", "invalid_json", "invalid_last_event_id", "fixed_by_ticket", "result_gone"),
        *("missing_user", "missing_name", "missing_role", "missing_cron", "missing_action"),
    }
)
"""Not of every form."""
FORM: Final = (
    *(code for code in CODES[400] if code not in _OF_SOME),
    *(code for code in CODES[413] if code != "body_too_large"),
    "upload_too_slow",
    "too_many_uploads",
    "upload_quota",
    "server_paused",
    "disk_full",
)
"""Of routes that take a bundle."""
NO_RESULT: Final[tuple[str | tuple[int, str], ...]] = (
    *((409, code) for code in ("job_cancelled", "job_failed", *map(str, Reason))),
    "result_cleaned",
)
"""Of the result of a job that has ended otherwise."""
JSON: Final = ("invalid_json", "unknown_field", "body_too_large")
"""Of routes that take a JSON object."""
NO_LOG: Final = (
    "no_log",
    "not_ended",
    "no_result",
    "result_cleaned",
    "result_missing",
    "unreadable_result",
)
"""Of the log of an attempt that has ended."""
FILE: Final = ("precondition_failed", "invalid_range")
"""Of what is sent in parts."""


def by_status(wanted: Iterable[str | tuple[int, str]]) -> dict[int, dict[str, str]]:
    """The statuses that codes come with, and when each does; ``invalid_`` and any name is 400.

    Raises:
        KeyError: no status has the code.
    """
    found: dict[int, dict[str, str]] = {}
    for one in wanted:
        only, code = one if isinstance(one, tuple) else (None, one)
        statuses = [status for status, codes in CODES.items() if code in codes]
        if only is not None:
            statuses = [only]
        elif not statuses:
            statuses = [400]
        for status in statuses:
            if code in CODES[status] or not code.startswith("invalid_"):
                meaning = CODES[status][code]
            else:
                meaning = f"{code.removeprefix('invalid_')} is wrong"
            found.setdefault(status, {})[code] = meaning
    return found
