"""The command line as a program against real server and agent."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.kit.dev_program import EXAMPLES, LIVE, DevProgram, environment


def content(path: Path) -> dict[str, str]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def test_submit_wait_output_shows_each_state_and_fetches_the_result(ferryman, tmp_path):
    said = ferryman(
        *("submit", EXAMPLES / "contacts", "--service", "example", "--user", "grace"),
        *("--wait", "--output", "r.zip"),
    )
    assert said.code == 0, said.err
    number = int(said.out)
    lines = [line.split() for line in said.err.splitlines() if line.lstrip().startswith("+")]
    states = ["Queued", "Processing", "Submitted", "Running", "Completed"]
    assert [words[1] for words in lines if words[1] not in LIVE] == states
    assert ["output", "residue_pairs:", "26"] in [words[1:] for words in lines]
    assert "contacts.csv" in content(tmp_path / "r.zip")
    again = ferryman("download", number)
    assert (again.code, again.out) == (0, f"job-{number}.zip\n")
    assert (tmp_path / f"job-{number}.zip").read_bytes() == (tmp_path / "r.zip").read_bytes()
    document = json.loads(ferryman("status", number, "--json").out)
    assert (document["user_id"], document["status"]) == ("grace", "Completed")


def test_a_failure_has_reason_sentence_stderr_and_partial_result(ferryman, bundle, tmp_path):
    folder = bundle("echo half > half.txt; echo it broke >&2; exit 7")
    said = ferryman("submit", folder, "-s", "example", "--wait", "-o", "r.zip")
    assert said.code == 7
    number = said.out.strip()
    assert "(exit_code)" in said.err
    assert "exit code 7" in said.err
    assert "  | it broke" in said.err
    assert f"ferryman download {number} --partial" in said.err
    assert not (tmp_path / "r.zip").exists()
    denied = ferryman("download", number)
    assert denied.code == 1
    assert "Failed" in denied.err
    assert ferryman("download", number, "--partial", "-o", "p.zip").code == 0
    left = content(tmp_path / "p.zip")
    assert left["half.txt"] == "half\n"
    assert left["stderr.log"] == "it broke\n"


def test_a_wall_time_that_is_over_is_124(ferryman, bundle):
    folder = bundle("sleep 600")
    said = ferryman("submit", folder, "-s", "example", "--wait", "--timeout", "1s")
    assert said.code == 124
    assert "(timeout)" in said.err


@pytest.mark.parametrize("form", ["zip", "tar", "tar.gz", "zip in a folder"])
def test_archives_are_expanded(ferryman, tmp_path, form):
    files = {"run.sh": "cat data/in.txt > out.txt\n", "data/in.txt": "precious\n"}
    path = tmp_path / f"bundle.{form.split()[0]}"
    top = "top/" if "folder" in form else ""
    if form.startswith("zip"):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, text in files.items():
                archive.writestr(top + name, text)
    else:
        with tarfile.open(path, "w:gz" if form.endswith("gz") else "w") as tar:
            for name, text in files.items():
                info = tarfile.TarInfo(name)
                info.size = len(text)
                tar.addfile(info, io.BytesIO(text.encode()))
    said = ferryman("submit", path, "-s", "example", "-o", "out/")
    assert said.code == 0, said.err
    (result,) = (tmp_path / "out").iterdir()
    assert content(result)["out.txt"] == "precious\n"


def test_nested_names_keep_their_folders(ferryman, bundle, tmp_path):
    script = "find . -type f | sort > list.txt; cat 'a/b/ü x.txt' > copy.txt"
    folder = bundle(script, **{"a/b/ü x.txt": "one\n", "a/c.txt": "two\n"})
    assert ferryman("submit", folder, "-s", "example", "-o", "r.zip").code == 0
    left = content(tmp_path / "r.zip")
    assert left["copy.txt"] == left["a/b/ü x.txt"] == "one\n"
    assert {"./a/b/ü x.txt", "./a/c.txt", "./run.sh"} <= set(left["list.txt"].splitlines())


def test_refusals_of_the_server_are_plain(ferryman, bundle):
    said = ferryman("submit", bundle("true"), "-s", "haddock")
    assert (said.code, said.out) == (65, "")
    assert "service" in said.err
    assert ferryman("submit", bundle("true"), "-s", "example", "-u", "a b").code == 65
    missing = ferryman("status", 999_999)
    assert (missing.code, "999999" in missing.err) == (1, True)


def test_the_same_key_is_one_job(ferryman, bundle):
    folder = bundle("true")
    words = ("submit", folder, "-s", "example", "--idempotency-key", f"key-{folder.name}")
    first, second = ferryman(*words), ferryman(*words)
    assert (first.code, second.code) == (0, 0)
    assert first.out == second.out
    (folder / "run.sh").write_text("false")
    assert ferryman(*words).code == 65


def test_lists_are_filtered(ferryman, bundle):
    folder = bundle("true")
    user = f"u{folder.name[-6:]}"
    for tag in ("red", "blue"):
        said = ferryman(
            *("submit", folder, "-s", "example", "-u", user, "--tag", tag, "--name", f"a {tag}"),
            "--wait",
        )
        assert said.code == 0
    listed = json.loads(ferryman("list", "--user", user, "--json").out)
    assert [job["name"] for job in listed] == ["a blue", "a red"]
    red = json.loads(ferryman("list", "--user", user, "--tag", "red", "--json").out)
    assert [job["tags"] for job in red] == [["red"]]
    assert json.loads(ferryman("list", "--user", user, "--state", "Failed", "--json").out) == []


def test_cancelling_a_running_job(ferryman, bundle):
    said = ferryman("submit", bundle("sleep 600"), "-s", "example")
    number = int(said.out)
    cancelled = ferryman("cancel", number, "--json")
    assert cancelled.code == 0, cancelled.err
    assert json.loads(cancelled.out)["status"] == "Cancelled"
    assert ferryman("status", number, "--wait", "-q").code == 143
    assert ferryman("cancel", number).code == 0


def interrupted(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What it writes when Ctrl-C comes while its job runs."""
    assert process.stderr is not None
    try:
        assert any("Running" in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        return process.communicate(timeout=30)
    finally:
        process.kill()


def test_ctrl_c_leaves_the_job_running_and_says_so(system: DevProgram, ferryman, bundle):
    process = subprocess.Popen(
        [
            *(sys.executable, "-P", "-m", "ferryman", "submit", str(bundle("sleep 600"))),
            *("--service", "example", "--user", "ada", "--wait", "--url", system.url),
        ],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    out, err = interrupted(process)
    number = int(out)
    assert process.returncode == 130
    assert f"the job goes on: ferryman status {number}" in err
    assert json.loads(ferryman("status", number, "--json").out)["status"] == "Running"
    assert ferryman("cancel", number).code == 0


def test_ctrl_c_cancels_the_job_where_that_was_asked_for(system: DevProgram, ferryman, bundle):
    process = subprocess.Popen(
        [
            *(sys.executable, "-P", "-m", "ferryman", "submit", str(bundle("sleep 600"))),
            *("--service", "example", "--user", "ada", "--wait", "--cancel-on-interrupt"),
            *("--url", system.url),
        ],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    out, err = interrupted(process)
    number = int(out)
    assert process.returncode == 130
    assert f"job {number} is cancelled" in err
    assert json.loads(ferryman("status", number, "--json").out)["status"] == "Cancelled"


def test_lists_can_be_cut_short_by_a_pipe(system: DevProgram):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "ferryman", "list", "--url", system.url],
        env=environment(),
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(writer)
    assert "Traceback" not in done.stderr
