"""What `python -m tests.soak` judges by: the content of results, and restores."""

from random import Random
from time import monotonic

from tests.kit.each import each
from tests.kit.raw_archives import zipped
from tests.soak.kinds import Bundle, draw
from tests.soak.model import Backup, Known, Model

QUICK = Bundle("quick", "mine", {})
DATA = Bundle("data", "mine", {}, data="abc")
CHANGED = {"digest.txt": b"abc -\n", "data.bin": b"changed"}


@each(
    "bundle, files, said",
    [
        (QUICK, {"out.txt": b"mine\n"}, ""),
        (QUICK, {"out.txt": b"another\n"}, "it has {'out.txt': 'another\\n'}"),
        (QUICK, {"other": b"mine\n"}, "it holds ['other']"),
        (DATA, {"out.txt": b"mine\n", **CHANGED}, "uploaded was abc"),
    ],
)
def test_a_result_of_another_job_or_one_that_changed_is_seen(bundle, files, said):
    complaint = bundle.complaint(zipped(files))
    assert (said in complaint, bool(said)) == (True, bool(complaint)), complaint


def test_the_same_seed_draws_the_same_bundles() -> None:
    one, other = Random(3), Random(3)
    drawn = [draw(one) for _ in range(60)]
    assert drawn == [draw(other) for _ in range(60)]
    assert {bundle.kind for bundle in drawn} > {"data", "array", "hangs"}


@each(
    "sent, answered, deleted, expected",
    [
        (1, 2, None, True),
        (9, 11, None, None),
        (10.5, 11, None, None),
        (13, 14, None, False),
        (1, 2, 5, False),
        (1, 2, 11, None),
        (1, 2, 20, True),
    ],
)
def test_a_restored_server_has_what_came_before_the_backup(sent, answered, deleted, expected):
    model = Model()
    model.restore(Backup("there", 10, 12, 1))
    known = Known(1, QUICK, "ann", sent, answered, 1, deleted_at=deleted)
    assert model.must_be_there(known) is expected


def test_a_job_that_may_be_forgotten_by_now_need_not_be_there() -> None:
    model, now = Model(), monotonic()
    model.restore(Backup("there", now, now, 1))
    known = Known(1, QUICK, "ann", now - 900, now - 899, 1)
    assert model.must_be_there(known) is True
    known.ended, known.ended_at = "Completed", now - 800
    assert model.must_be_there(known) is None


def test_a_number_that_is_given_twice_is_seen() -> None:
    model = Model()
    for bundle in (QUICK, DATA):
        model.answered(Known(1, bundle, "ann", 0, 0, 1))
    assert len(model.wrong) == 1
