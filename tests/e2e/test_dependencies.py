"""A job that gets the files of another, as its user sees it."""

from __future__ import annotations

import json


def test_the_files_of_another_job_are_there_before_the_script_starts(ferryman, bundle):
    first = int(
        ferryman("submit", bundle("sleep 1; mkdir d; echo 42 > d/answer"), "-s", "example").out
    )
    script = f"ls inputs; cat inputs/{first}/d/answer"
    last = ferryman("submit", bundle(script), "-s", "example", "--inputs-from", first, "--wait")
    assert last.code == 0, last.err
    number = int(last.out)
    assert ferryman("logs", number).out == f"{first}\n42\n"
    shown = json.loads(ferryman("status", number, "--json").out)
    assert (shown["after"], shown["inputs_from"]) == ([], [first])


def test_a_failure_is_said_of_those_that_waited_for_it(ferryman, bundle):
    first = int(ferryman("submit", bundle("sleep 1; exit 3"), "-s", "example").out)
    last = ferryman("submit", bundle("true"), "-s", "example", "--after", first, "--wait")
    assert last.code != 0
    shown = json.loads(ferryman("status", int(last.out), "--json").out)
    assert shown["reason"] == "dependency_failed"
    assert shown["message"].startswith(f"job {first}, which it waits for, failed (exit_code)")


def test_what_is_not_there_is_refused_by_its_number(ferryman, bundle):
    refused = ferryman("submit", bundle("true"), "-s", "example", "--after", 99_999)
    assert refused.code != 0
    assert "job 99999 does not exist" in refused.err


def test_each_task_of_an_array_gets_the_files(ferryman, bundle):
    first = ferryman("submit", bundle("echo 42 > answer"), "-s", "example", "--wait")
    script = f'echo "$FERRYMAN_ARRAY_INDEX $(cat inputs/{int(first.out)}/answer)"'
    last = ferryman(
        *("submit", bundle(script), "-s", "example", "--array", "0-1"),
        *("--inputs-from", int(first.out), "--wait"),
    )
    assert last.code == 0, last.err
    parent = int(last.out)
    assert [ferryman("logs", parent + number).out for number in (1, 2)] == ["0 42\n", "1 42\n"]


def test_gather_gets_what_the_children_left_and_the_next_job_gets_that(ferryman, tmp_path):
    folder = tmp_path / "parent"
    folder.mkdir()
    (folder / "run.sh").write_text(
        'for n in a b; do mkdir -p children/$n; echo "echo $n > out" > children/$n/run.sh; done\n'
    )
    (folder / "gather.sh").write_text("cat children/a/out children/b/out > all\n")
    parent = ferryman("submit", folder, "-s", "example", "--wait")
    assert parent.code == 0, parent.err
    number = int(parent.out)
    (folder / "run.sh").write_text(f"cat inputs/{number}/all\n")
    (folder / "gather.sh").unlink()
    last = ferryman("submit", folder, "-s", "example", "--inputs-from", number, "--wait")
    assert last.code == 0, last.err
    assert ferryman("logs", int(last.out)).out == "a\nb\n"
