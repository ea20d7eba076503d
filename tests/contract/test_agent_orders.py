"""What a Ferryman server orders beside its bundle: folder, entry, array, variables, inputs."""

from __future__ import annotations

import hashlib
import io
import json
import sqlite3
import zipfile
from collections.abc import AsyncIterator, Mapping
from contextlib import closing
from typing import Any

import aiohttp
import pytest

from shared.wire import PayloadDoc
from tests.kit.agent_http import AgentClient, calling
from tests.kit.waiting import until_holds

PARAMS = b"one\ntwo words\r\n\nlast"
FILES = {
    "run.sh": b"true",
    "params.txt": PARAMS,
    "a/run.sh": b"echo a",
    "a/deep/data": b"of a",
    "b/run.sh": b"echo b",
}


@pytest.fixture
async def agent(tmp_path) -> AsyncIterator[AgentClient]:
    async with calling(tmp_path) as caller:
        yield caller
    assert caller.sandbox.violations == []


def packed(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return out.getvalue()


async def submit_with_inputs(agent: AgentClient, inputs: bytes, **announced: Any) -> Any:
    data, digest = agent.bundle(FILES)
    info = {"size": len(inputs), "sha256": hashlib.sha256(inputs).hexdigest()} | announced
    order = agent.order("1.1", data, digest, inputs=info)
    form = aiohttp.FormData()
    form.add_field("order", order.model_dump_json())
    for field, content in (("bundle", data), ("inputs", inputs)):
        form.add_field(field, io.BytesIO(content), filename=f"{field}.zip")
    return await agent.call("POST", "/submit", data=form)


async def invalid(agent: AgentClient, payload: Mapping[str, Any]) -> str:
    doc = PayloadDoc.model_validate(await agent.ended(payload["id"]))
    assert (doc.status, doc.reason, doc.interrupted) == ("Invalid", "invalid_bundle", False)
    return doc.message


async def test_a_folder_of_the_bundle_is_the_root_and_its_entry_is_run(agent) -> None:
    await agent.submit("1.1", FILES, folder="a/", entry="gather.sh")
    process = await agent.sandbox.process("1.1")
    assert process.launch.argv == ("bash", "gather.sh")
    assert process.read("run.sh") == b"echo a"
    assert process.read("deep/data") == b"of a"
    assert sorted(path.name for path in process.workspace.path.iterdir()) == ["deep", "run.sh"]
    process.finish()
    _, payload = await agent.submit("2.1", FILES, folder="missing/")
    assert "no folder “missing/”" in await invalid(agent, payload)


@pytest.mark.parametrize(
    ("index", "line"), [(0, "one"), (1, "two words"), (2, ""), (3, "last"), (4, None)]
)
async def test_a_task_of_an_array_knows_its_index_and_line(agent, index, line) -> None:
    array = {"index": index, "file": "params.txt"}
    _, payload = await agent.submit("1.1", FILES, array=array)
    if line is None:
        assert "“params.txt” has no line 5" in await invalid(agent, payload)
        return
    env = (await agent.sandbox.process("1.1")).launch.env
    assert (env["FERRYMAN_ARRAY_INDEX"], env["FERRYMAN_ARRAY_LINE"]) == (str(index), line)


async def test_a_task_without_a_file_has_no_line_and_a_missing_file_is_named(agent) -> None:
    await agent.submit("1.1", FILES, array={"index": 7})
    env = (await agent.sandbox.process("1.1")).launch.env
    assert env["FERRYMAN_ARRAY_INDEX"] == "7"
    assert "FERRYMAN_ARRAY_LINE" not in env
    (await agent.sandbox.process("1.1")).finish()
    for key, files, why in (
        ("2.1", {"run.sh": b""}, "no file “params.txt”"),
        ("3.1", {"run.sh": b"", "params.txt": b"\xff\n"}, "is not UTF-8"),
        ("4.1", {"run.sh": b"", "params.txt": b"a\0b\n"}, "NUL"),
        ("5.1", {"run.sh": b"", "params.txt": b"x" * 70_000}, "longer than 65536 bytes"),
    ):
        _, payload = await agent.submit(key, files, array={"index": 0, "file": "params.txt"})
        assert why in await invalid(agent, payload)


async def test_a_script_is_told_the_try_of_the_order_or_else_the_attempt_of_the_key(agent) -> None:
    for key, order, tried in (("1.3", {"try_number": 2}, "1.2"), ("2.3", {}, "2.3")):
        _, payload = await agent.submit(key, FILES, **order)
        (process := await agent.sandbox.process(tried)).finish()  # it is found by its variables
        assert process.launch.env["FERRYMAN_ATTEMPT"] == tried.partition(".")[2]
        assert (await agent.ended(payload["id"]))["key"] == key


async def test_variables_of_the_operator_are_set_and_written_nowhere_else(agent, tmp_path) -> None:
    secret = {"API_TOKEN": "the-secret-value", "LANG": "de_DE.UTF-8"}
    status, payload = await agent.submit("1.1", FILES, env=secret)
    assert (status, "the-secret" in json.dumps(payload)) == (200, False)
    process = await agent.sandbox.process("1.1")
    assert process.launch.env.items() >= secret.items()
    process.finish()
    doc = await agent.ended(payload["id"])
    assert "the-secret" not in json.dumps(doc)
    files = await agent.zip(f"/retrieve/{payload['id']}")
    assert not any(b"the-secret" in content for content in files.values())
    path = tmp_path / "agent" / "agent.sqlite"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        (given,) = database.execute("SELECT given FROM payloads").fetchone()
        assert "env" not in json.loads(given)


@pytest.mark.parametrize(
    ("order", "why"),
    [
        ({"env": {"FERRYMAN_JOB_ID": "1"}}, "FERRYMAN_JOB_ID is set by the agent"),
        ({"env": {"HOME": "/"}}, "HOME is set by the agent"),
        ({"env": {"A-B": "1"}}, "'A-B' is not a name of a variable"),
        ({"env": {"A": "hidden\0value"}}, "the value of A has a NUL"),
        ({"env": {f"A{n}": "" for n in range(300)}}, "300 variables, at most 256"),
        ({"env": {"A": "x" * 50_000}}, "more than 49152 bytes"),
        ({"folder": "../x/"}, "order: folder:"),
        ({"folder": "a"}, "order: folder: it has to end in /"),
        ({"entry": "-c"}, "order: entry: it would be an option"),
        ({"entry": "/bin/sh"}, "order: entry:"),
        ({"array": {"index": -1}}, "order: array.index"),
        ({"array": {"index": 0, "file": "a//b"}}, "order: array.file"),
        ({"on_shutdown": "later"}, "order: on_shutdown"),
    ],
)
async def test_what_cannot_be_done_is_refused_and_says_which_field(agent, order, why) -> None:
    data, digest = agent.bundle(FILES)
    text = json.dumps(agent.order("1.1", data, digest).model_dump(mode="json") | order)
    status, body = await agent.post_order(text, data)
    assert (status, body["code"]) == (400, "invalid_order")
    assert why in body["message"]
    assert "hidden" not in body["message"]


async def test_inputs_lie_beside_the_bundle_and_replace_nothing_of_it(agent, tmp_path) -> None:
    inputs = packed(
        {
            "inputs/17/out.txt": b"of 17",
            "a/run.sh": b"evil",
            "a/deep": b"evil",
            "run.sh/x": b"evil",
            "a/more.txt": b"more",
        }
    )
    status, payload = await submit_with_inputs(agent, inputs)
    assert status == 200
    process = await agent.sandbox.process("1.1")
    assert process.read("inputs/17/out.txt") == b"of 17"
    assert process.read("a/more.txt") == b"more"
    assert process.read("a/run.sh") == b"echo a"
    assert process.read("run.sh") == b"true"
    process.finish()
    doc = await agent.ended(payload["id"])
    assert "3 files of the inputs are not there" in doc["warnings"][0]
    await until_holds(tmp_path / "agent" / "bundles")


@pytest.mark.parametrize("announced", [{"size": 3}, {"size": 10**6}, {"sha256": "0" * 64}])
async def test_other_inputs_than_announced_are_refused(agent, tmp_path, announced) -> None:
    status, body = await submit_with_inputs(agent, packed({"x": b"y"}), **announced)
    assert (status, body["code"]) == (400, "invalid_bundle")
    for name in ("bundles", "staging"):
        assert list((tmp_path / "agent" / name).iterdir()) == []


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        (b"no zip at all", "the inputs cannot be used"),
        (packed({"../x": b""}), "the inputs cannot be used"),
        (packed({"x": b"", "x/y": b""}), "the inputs cannot be used"),
    ],
)
async def test_inputs_that_are_not_safe_end_the_attempt(agent, inputs, why) -> None:
    status, payload = await submit_with_inputs(agent, inputs)
    assert status == 200
    assert why in await invalid(agent, payload)


async def test_inputs_count_against_the_disk_limit(agent) -> None:
    status, payload = await submit_with_inputs(agent, packed({"x": bytes(2 << 20)}))
    assert status == 200
    doc = await agent.ended(payload["id"])
    assert (doc["reason"], "the bundle with its inputs" in doc["message"]) == ("disk_limit", True)


async def test_children_that_a_result_holds_are_counted(agent) -> None:
    _, payload = await agent.submit("1.1")
    process = await agent.sandbox.process("1.1")
    for name in ("children/a/run.sh", "children/b/run.sh", "children/c/other.sh"):
        process.write(name, b"true")
    for name in ("children/run.sh", "children/d/sub/run.sh", "x/children/e/run.sh"):
        process.write(name, b"true")
    process.finish()
    assert (await agent.ended(payload["id"]))["result"]["children"] == 2
