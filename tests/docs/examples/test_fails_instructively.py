from __future__ import annotations


def test_it_names_every_problem_with_its_line_and_its_remedy_and_keeps_what_was_right(
    run_example, tmp_path
):
    ended = run_example("fails-instructively")
    assert ended.returncode == 3
    complaints = [line for line in ended.stderr.splitlines() if line.startswith("parameters.txt:")]
    assert [line.split(": ")[0] for line in complaints] == [
        "parameters.txt:3",
        "parameters.txt:4",
        "parameters.txt:5",
    ]
    assert ended.stderr.count("    to fix it: ") == 3
    assert "3 of the parameters cannot be used" in ended.stderr.splitlines()[-1]
    assert (tmp_path / "job" / "accepted.txt").read_text() == "steps = 5000\n"
    assert not (tmp_path / "job" / "plan.txt").exists()


def test_it_succeeds_once_its_advice_is_followed(run_example, tmp_path):
    mended = "steps = 10000\ntemperature=310\nstructure = protein.pdb"
    ended = run_example("fails-instructively", {"parameters.txt": mended, "protein.pdb": "ATOM\n"})
    assert (ended.returncode, ended.stderr) == (0, "")
    assert (tmp_path / "job" / "plan.txt").read_text() == "would simulate 10000 steps at 310 K\n"
