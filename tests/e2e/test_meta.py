"""What a user stores with a job, as its script finds it."""

from __future__ import annotations

import json
import zipfile

SCRIPT = 'mkdir -p d; cd d; cat "${FERRYMAN_META-none}"; ls -A .. | sort | tr "\\n" " "'
META = {"sample": "Überprobe", "of": ['"', 7]}


def test_run_sh_finds_the_meta_of_its_upload_in_a_file_that_no_result_has(
    ferryman, bundle, tmp_path
):
    text = json.dumps(META)
    done = ferryman(
        *("submit", bundle(SCRIPT), "-s", "example", "--meta", text),
        *("--output", tmp_path / "result.zip"),
    )
    assert done.code == 0, done.err
    result = zipfile.ZipFile(tmp_path / "result.zip")
    said = result.read("stdout.log").decode()
    assert json.loads(said[: said.rindex("}") + 1]) == META
    assert ".ferryman-meta.json" in said
    assert not [name for name in result.namelist() if "meta" in name]


def test_children_have_the_meta_of_their_upload_and_without_one_there_is_no_file(ferryman, bundle):
    meta = ("--meta", json.dumps(META))
    array = ferryman("submit", bundle(SCRIPT), "-s", "example", "--array", "0-1", *meta, "--wait")
    assert array.code == 0, array.err
    for number in (1, 2):
        assert "Überprobe" in ferryman("logs", int(array.out) + number).out
    script = 'echo "${FERRYMAN_META-none}"; ls -A | sort | tr "\\n" " "'
    alone = ferryman("submit", bundle(script), "-s", "example", "--wait")
    assert ferryman("logs", int(alone.out)).out == "none\nrun.sh "
