from __future__ import annotations

from shared.database import Database

TABLE = ("CREATE TABLE things (name TEXT NOT NULL) STRICT",)


async def test_what_is_created_is_closed_to_others(tmp_path):
    """Wherever the operator puts it."""
    tmp_path.chmod(0o755)
    path = tmp_path / "some.sqlite"
    database = await Database.open(path, [TABLE])
    try:
        modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    finally:
        await database.close()
    assert modes == dict.fromkeys((path.name, f"{path.name}-wal", f"{path.name}-shm"), 0o600)


async def test_a_mode_that_the_operator_gave_is_kept(tmp_path):
    path = tmp_path / "some.sqlite"
    await (await Database.open(path, [TABLE])).close()
    path.chmod(0o640)
    await (await Database.open(path, [TABLE])).close()
    assert path.stat().st_mode & 0o777 == 0o640
