"""What is stored of jobs: each bundle once, however many jobs have it, and the bytes of small
bundles and results.
"""

from __future__ import annotations

from collections.abc import Sequence

from server.domain.jobs import Bundle, FileKind, Result
from shared.sql import AMONG, Tx, among


def can_share(tx: Tx, digest: str, size: int) -> bool:
    """Whether there is a file that an upload of this content would share now."""
    rows = tx.rows(
        "SELECT 1 FROM bundles WHERE digest = :digest AND size = :size AND shared = 1",
        {"digest": digest, "size": size},
    )
    return bool(rows)


def refer_to(tx: Tx, bundle: Bundle) -> Bundle | None:
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
        INSERT INTO bundles (file, digest, size, refs, shared)
        VALUES (:file, :digest, :size, 1, :shared)
        ON CONFLICT (digest, size) WHERE shared = 1 DO UPDATE SET refs = bundles.refs + 1
        RETURNING file
        """,
        {
            "file": bundle.file,
            "digest": bundle.digest,
            "size": bundle.size,
            "shared": int(not bundle.own_modes),
        },
    )
    if rows[0]["file"] == bundle.file:
        keep(tx, bundle)
    return Bundle(rows[0]["file"], bundle.size, bundle.digest)


def refer_again(tx: Tx, bundle: Bundle) -> Bundle | None:
    """Count one more for a file that is referred to; None: it is not any more."""
    rows = tx.rows(
        "UPDATE bundles SET refs = refs + 1 WHERE file = :file RETURNING file",
        {"file": bundle.file},
    )
    return bundle if rows else None


def forget_reference(tx: Tx, file: str) -> bool:
    """Take one reference back; whether it was the last one, and there is a file to remove."""
    tx.rows("UPDATE bundles SET refs = refs - 1 WHERE file = :file", {"file": file})
    gone = tx.rows(
        "DELETE FROM bundles WHERE file = :file AND refs <= 0 RETURNING file", {"file": file}
    )
    return bool(delete_rows(tx, [(FileKind.BUNDLE, row["file"]) for row in gone]))


def stop_sharing(tx: Tx, file: str) -> None:
    """Its bytes are damaged or gone: the next upload of the same content is stored again."""
    tx.rows("UPDATE bundles SET shared = 0 WHERE file = :file", {"file": file})


def release_files(tx: Tx, job_ids: Sequence[int]) -> list[tuple[FileKind, str]]:
    """Let go of the contents of jobs, and delete those that are rows and that nothing refers to any
    more; kind and name of those that are files.
    """
    params = among(job_ids)
    released = tx.rows(
        f"""
        UPDATE bundles SET refs = refs - used.jobs FROM (
            SELECT file, count(*) AS jobs FROM (
                SELECT bundle_file AS file FROM jobs WHERE id {AMONG}
                UNION ALL
                SELECT bundle_file AS file FROM batches WHERE parent_id {AMONG}
            ) AS one WHERE file IS NOT NULL GROUP BY file
        ) AS used WHERE used.file = bundles.file RETURNING bundles.file AS file, refs
        """,  # noqa: S608 - no user input
        params,
    )
    gone = [row["file"] for row in released if row["refs"] <= 0]
    tx.rows(f"DELETE FROM bundles WHERE file {AMONG}", among(gone))  # noqa: S608
    results = tx.rows(
        f"""
        SELECT result_file AS file FROM attempts
        WHERE job_id {AMONG} AND result_file IS NOT NULL
        """,  # noqa: S608 - no user input
        params,
    )
    files = [(FileKind.BUNDLE, file) for file in gone]
    files += [(FileKind.RESULT, row["file"]) for row in results]
    for change in (
        "attempts SET result_file = NULL WHERE job_id",
        "jobs SET bundle_file = NULL, result_file = NULL WHERE id",
        "batches SET bundle_file = NULL WHERE parent_id",
    ):
        tx.rows(f"UPDATE {change} {AMONG}", params)
    return delete_rows(tx, files)


def delete_rows(tx: Tx, contents: Sequence[tuple[FileKind, str]]) -> list[tuple[FileKind, str]]:
    """Delete those of the contents that are rows; the others, which are files."""
    sql = f"DELETE FROM contents WHERE name {AMONG} RETURNING name"  # noqa: S608 - no user input
    deleted = {row["name"] for row in tx.rows(sql, among(name for _, name in contents))}
    return [one for one in contents if one[1] not in deleted]


def keep(tx: Tx, new: Bundle | Result) -> None:
    """Write the bytes of a small one, which a row refers to from now on."""
    if new.content is not None:
        tx.rows(
            "INSERT INTO contents (name, bytes) VALUES (:name, :bytes)",
            {"name": new.file, "bytes": new.content},
        )


def content(tx: Tx, name: str) -> bytes | None:
    """None: it is no row."""
    rows = tx.rows("SELECT bytes FROM contents WHERE name = :name", {"name": name})
    return rows[0]["bytes"] if rows else None
