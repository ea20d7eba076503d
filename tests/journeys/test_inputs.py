"""Results have what lay in the job's folder at its end, whatever it did to what was sent."""

import hashlib
import io
import zipfile

from ferryman import Client, JobState
from tests.kit.dev_program import DevProgram
from tests.kit.programs import call

OWN = {"stdout.log", "stderr.log", "ferryman.json"}
SENT = dict.fromkeys(("kept", "d/kept", "d/new name", "wr", "t", "x", "m", "link", "y"), b"sent")
CHANGES = b"""
printf gone >d/new; rm d/new; mv 'd/new name' d/moved; printf "$$" >wr; touch t; chmod +x x
touch -r kept when; printf more >m; touch -r when m; ln kept other; rm link; ln -s kept link
rm y; mkdir y; printf new >y/z; (sleep 0.1; printf late >late) & wait
"""
SHOW = b"""
find . -type f -exec sha256sum {} + | sed 's/ \\*/ /'
"""
MAKE = b"""
for n in a b; do
    mkdir -p children/$n/d; printf sent >children/$n/d/kept; cp go.sh children/$n/run.sh
done
"""
NEW = {"d/moved", "wr", "t", "x", "m", "when", "kept", "other", "y/z", "late"}


def result(system: DevProgram, number: int, query: str = "") -> dict[str, bytes]:
    status, body = call(system.url, "GET", f"/api/v1/jobs/{number}/result{query}")
    assert status == 200, body
    with zipfile.ZipFile(io.BytesIO(body)) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        assert len({*names}) == len(names)
        return {name: archive.read(name) for name in names}


def expect(system: DevProgram, number: int, new: set[str]) -> None:
    """The result has what the job saw at its end; of that its ZIP has the new ones."""
    found = result(system, number)
    lines = found["stdout.log"].decode().splitlines()
    there = {path[2:]: digest for digest, path in (line.split("  ", 1) for line in lines)}
    there.pop(".ferryman-meta.json", None)
    digests = {name: hashlib.sha256(text).hexdigest() for name, text in found.items()}
    assert {name: digests[name] for name in digests.keys() - OWN} == there
    assert digests.keys() >= OWN
    stored = result(system, number, "?only=new")
    assert stored.keys() - OWN - {"inputs.sha256"} == new
    assert [*stored][-1] == "inputs.sha256"
    listed = stored["inputs.sha256"].decode().splitlines()
    assert dict(line.split("  ", 1)[::-1] for line in listed) == {
        name: there[name] for name in there.keys() - new
    }


async def test_a_result_has_what_lay_there_at_the_end(system: DevProgram) -> None:
    files = SENT | {"run.sh": CHANGES + SHOW}
    async with Client(system.url, user="ada") as client:
        job = await client.wait((await client.submit(files, service="example")).id, timeout=60)
        assert job.status is JobState.COMPLETED, (job.message, job.stderr_tail)
        expect(system, job.id, NEW)


async def test_so_have_the_results_of_children_and_of_tasks_of_an_array(system: DevProgram) -> None:
    files = {"run.sh": MAKE, "go.sh": b"printf new >d/new" + SHOW}
    async with Client(system.url, user="ada") as client:
        parent = await client.submit(files, service="example")
        done = await client.wait(parent.id, timeout=60)
        assert done.status is JobState.COMPLETED, (done.message, done.stderr_tail)
        for number in (1, 2):
            expect(system, parent.id + number, {"d/new"})
        tasks = SENT | {"run.sh": b"rm m; printf $FERRYMAN_ARRAY_INDEX >wr" + SHOW}
        array = await client.submit(tasks, service="example", array="0-1")
        done = await client.wait(array.id, timeout=60)
        assert done.status is JobState.COMPLETED, (done.message, done.stderr_tail)
        for number in (1, 2):
            expect(system, array.id + number, {"wr"})
