"""The stored bundles: one file for each content, however many jobs have it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from server.domain.jobs import Bundle, FileKind
from server.store.statements import chunks
from shared.clock import Micros
from shared.sql import Tx


def can_share(tx: Tx, digest: str, size: int) -> bool:
    """Whether there is a file that an upload of this content would share now."""
    rows = tx.rows(
        "SELECT 1 FROM bundles WHERE digest = :digest AND size = :size AND shared = 1",
        {"digest": digest, "size": size},
    )
    return bool(rows)


def refer_to(tx: Tx, bundle: Bundle, at: Micros) -> Bundle | None:
    """Count one job more.

    Returns:
        The bundle whose file it shares, which may be its own. None: it has no file of its own, and
        the one that it was to share is gone.
    """
    if not bundle.file:
        shared = tx.rows(
            """
            UPDATE bundles SET refs = refs + 1
            WHERE digest = :digest AND size = :size AND shared = 1 RETURNING file
            """,
            {"digest": bundle.digest, "size": bundle.size},
        )
        return Bundle(shared[0]["file"], bundle.size, bundle.digest) if shared else None
    rows = tx.rows(
        """
        INSERT INTO bundles (file, digest, size, refs, created_at, shared)
        VALUES (:file, :digest, :size, 1, :at, :shared)
        ON CONFLICT (digest, size) WHERE shared = 1 DO UPDATE SET refs = bundles.refs + 1
        RETURNING file
        """,
        {
            "file": bundle.file,
            "digest": bundle.digest,
            "size": bundle.size,
            "at": at,
            "shared": int(not bundle.own_modes),
        },
    )
    return Bundle(rows[0]["file"], bundle.size, bundle.digest)


def refer_again(tx: Tx, bundle: Bundle) -> Bundle | None:
    """Count one more for a file that is referred to; None: it is not any more."""
    rows = tx.rows(
        "UPDATE bundles SET refs = refs + 1 WHERE file = :file RETURNING file",
        {"file": bundle.file},
    )
    return bundle if rows else None


def forget_reference(tx: Tx, file: str) -> bool:
    """Take one reference back; whether it was the last one."""
    tx.rows("UPDATE bundles SET refs = refs - 1 WHERE file = :file", {"file": file})
    gone = tx.rows(
        "DELETE FROM bundles WHERE file = :file AND refs <= 0 RETURNING file", {"file": file}
    )
    return bool(gone)


def stop_sharing(tx: Tx, file: str) -> None:
    """Its bytes are damaged or gone: the next upload of the same content is stored again."""
    tx.rows("UPDATE bundles SET shared = 0 WHERE file = :file", {"file": file})


def release_files(tx: Tx, job_ids: Sequence[int]) -> list[tuple[FileKind, str]]:
    """Let go of the files of jobs; kind and name of those that nothing refers to any more."""
    files: list[tuple[FileKind, str]] = []
    released = set[str]()
    for names, params in chunks(job_ids):
        bundles = tx.rows(
            f"""
            SELECT file, count(*) AS jobs FROM (
                SELECT bundle_file AS file FROM jobs WHERE id IN ({names})
                UNION ALL
                SELECT bundle_file AS file FROM batches WHERE parent_id IN ({names})
            ) AS used WHERE file IS NOT NULL GROUP BY file
            """,  # noqa: S608 - placeholders
            params,
        )
        for row in bundles:
            left = tx.rows(
                "UPDATE bundles SET refs = refs - :jobs WHERE file = :file RETURNING refs",
                {"file": row["file"], "jobs": row["jobs"]},
            )
            if not left or left[0]["refs"] <= 0:
                tx.rows("DELETE FROM bundles WHERE file = :file", {"file": row["file"]})
                files.append((FileKind.BUNDLE, row["file"]))
        results = tx.rows(
            f"""
            SELECT result_file AS file FROM attempts
            WHERE job_id IN ({names}) AND result_file IS NOT NULL
            """,  # noqa: S608 - placeholders
            params,
        )
        released.update(row["file"] for row in results)
        tx.rows(
            f"UPDATE attempts SET result_file = NULL WHERE job_id IN ({names})",  # noqa: S608
            params,
        )
        tx.rows(
            f"UPDATE jobs SET bundle_file = NULL, result_file = NULL WHERE id IN ({names})",  # noqa: S608
            params,
        )
        tx.rows(
            f"UPDATE batches SET bundle_file = NULL WHERE parent_id IN ({names})",  # noqa: S608
            params,
        )
    # Last, because a file may hold results of several jobs.
    unused = sorted(released - _with_results(tx, released))
    return files + [(FileKind.RESULT, file) for file in unused]


def _with_results(tx: Tx, files: Collection[str]) -> set[str]:
    """Those in which an attempt has its result."""
    found = set[str]()
    for names, params in chunks(list(files)):
        rows = tx.rows(
            f"""
            SELECT DISTINCT result_file AS file FROM attempts
            WHERE result_file IS NOT NULL AND result_file IN ({names})
            """,  # noqa: S608 - placeholders
            params,
        )
        found.update(row["file"] for row in rows)
    return found
