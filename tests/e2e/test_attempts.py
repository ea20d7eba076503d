"""A job that fails first and succeeds on its second attempt, as its user sees it."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ferryman import JobState, SyncClient
from tests.kit.dev_program import DevProgram, started

RETRIED = """
[services.example]
retries = 1
retry_on = ["exit:3"]
retry_delays = ["0s"]
"""
SCRIPT = """\
echo "this is attempt $FERRYMAN_ATTEMPT"; echo "attempt $FERRYMAN_ATTEMPT" >&2
touch "left-by-$FERRYMAN_ATTEMPT.txt"
[ "$FERRYMAN_ATTEMPT" = 2 ] || exit 3
"""


@pytest.fixture
def system(tmp_path: Path) -> Iterator[DevProgram]:
    """One whose service repeats what ends with 3."""
    config = tmp_path / "retried.toml"
    config.write_text(RETRIED)
    with started(tmp_path / "system", "--config", str(config)) as running:
        yield running


def names(path: Path) -> set[str]:
    with zipfile.ZipFile(path) as archive:
        return set(archive.namelist())


def test_each_attempt_can_be_looked_at(ferryman, bundle, system: DevProgram, tmp_path):
    waited = ferryman("submit", bundle(SCRIPT), "-s", "example", "--wait")
    assert waited.code == 0, waited.err
    number = int(waited.out)

    heads, first, second = ferryman("status", number).out.splitlines()[-3:]
    assert heads == "ATTEMPT\tSTATUS\tAGENT\tSTARTED\tTOOK\tEXIT\tREASON"
    assert first.split("\t")[:2] + first.split("\t")[5:] == ["1", "Failed", "3", "exit_code"]
    assert second.split("\t")[:2] + second.split("\t")[5:] == ["2", "Completed", "0", ""]
    document = json.loads(ferryman("status", number, "--json").out)
    assert [one["exit_code"] for one in document["attempts"]] == [3, 0]

    assert ferryman("logs", number).out == "this is attempt 2\n"
    assert ferryman("logs", number, "--attempt", 1).out == "this is attempt 1\n"
    assert ferryman("logs", number, "--attempt", 1, "--stderr").out == "attempt 1\n"
    assert ferryman("logs", number, "--attempt", 3).code == 1

    done = ferryman("download", number, "--attempt", 1)
    assert done.out == f"job-{number}-attempt-1.zip\n"
    left = names(tmp_path / f"job-{number}-attempt-1.zip")
    assert "left-by-1.txt" in left
    assert "left-by-2.txt" not in left
    assert ferryman("download", number).code == 0
    assert "left-by-2.txt" in names(tmp_path / f"job-{number}.zip")

    with SyncClient(system.url) as client:
        states = [one.status for one in client.status(number).attempts or ()]
        assert states == [JobState.FAILED, JobState.COMPLETED]
        assert client.log(number) == "this is attempt 2\n"
        assert client.log(number, 1, "stderr") == "attempt 1\n"
        assert client.download(number, tmp_path / "1.zip", attempt=1).checked
    assert names(tmp_path / "1.zip") == left


def test_a_running_attempt_shows_what_it_has_printed(ferryman, bundle, system: DevProgram):
    script = "echo begun; echo ::notice::begun; sleep 600"
    number = int(ferryman("submit", bundle(script), "-s", "example").out)
    with SyncClient(system.url) as client:
        next(event for event in client.events(number) if event.event == "job.notice")
    early = ferryman("logs", number)
    assert (early.code, early.out) == (0, "begun\n::notice::begun\n")
    assert ferryman("cancel", number).code == 0
