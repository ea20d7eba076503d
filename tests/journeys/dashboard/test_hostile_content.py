"""What users and jobs write is text on every page that shows it: nothing of it runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from ferryman import SyncClient
from tests.kit.dev_program import DevProgram, started

MARK = "hostile-element"
BAD = f"\"'><img class={MARK} src=x onerror=stolen()><script>stolen()</script>{{{{7*7}}}}"
"""Ends an attribute and an element, then begins others."""
TAG = "\"'><b/onclick=stolen()>"
SVG = (
    f'<svg xmlns="http://www.w3.org/2000/svg" class="{MARK}" onload="stolen()">'
    "<script>stolen()</script><text>a</text></svg>"
)
HTML = f"<body onload=stolen()><p class={MARK}>a<script>top.location='/jobs?stolen'</script>"
RUN_SH = f"""\
cat bad.txt
cat bad.txt >&2
printf '\\e]8;;javascript:stolen()\\e\\\\link\\e]8;;\\e\\\\\\n'
echo "::progress value=1,total=2::$(cat bad.txt)"
echo "::notice::$(cat bad.txt)"
echo "::error::$(cat bad.txt)"
echo "::output name=score::$(cat bad.txt)"
mkdir -p "out/<b/onclick=stolen()>"
cp bad.txt "out/<b onclick=stolen()>/a.txt"
printf 'a,b\\n"%s",=cmd()\\n' '<img class={MARK} src=x onerror=stolen()>' > out/table.csv
cp page.svg page.html out/
test -z "$HOSTILE_END" || true
sleep "$(cat seconds)"
exit "$(cat code)"
"""
PATHS = (
    "/jobs",
    "/jobs?text=%22%3E%3Cimg%20src=x%20onerror=stolen()%3E",
    "/jobs?tag=%22%3E%3Cscript%3Estolen()%3C/script%3E",
    "/jobs/{id}",
    "/jobs/{id}/log",
    "/jobs/{id}/log?stream=stderr",
    "/jobs/{id}/log?search=%3Cimg",
    "/jobs/{id}/files",
    "/jobs/{id}/files?folder=out",
    "/jobs/{id}/files/out/table.csv",
    "/jobs/{id}/files/out/page.svg",
    "/jobs/{id}/files/out/page.html",
    "/jobs/{id}/files/out/%3Cb%20onclick%3Dstolen()%3E/a.txt",
    "/jobs/{id}/files/bad.txt",
    "/jobs/{id}/files/%3Cimg%20src=x%20onerror=stolen()%3E",
    "/new?from={id}",
    "/schedules",
    "/services",
    "/services/example",
    "/status",
    "/agents",
    "/users/%3Cscript%3Estolen()%3C%2Fscript%3E",
    "/audit",
    "/login?next=javascript:stolen()",
    "/nothing/%3Cscript%3Estolen()%3C%2Fscript%3E",
)
RAW = ("out/page.svg", "out/page.html", "bad.txt", "out/table.csv")
"""Opened by themselves, as the API gives them."""


@dataclass(frozen=True)
class Hostile:
    system: DevProgram
    ended: int
    running: int


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hostile]:
    with (
        started(tmp_path_factory.mktemp("hostile")) as system,
        SyncClient(system.url, user="mallory") as client,
    ):

        def submit(seconds: str, code: str) -> int:
            files = {
                "run.sh": RUN_SH.encode(),
                "bad.txt": BAD.encode(),
                "page.svg": SVG.encode(),
                "page.html": HTML.encode(),
                "seconds": seconds.encode(),
                "code": code.encode(),
            }
            options = {"name": BAD, "tags": [TAG], "meta": {BAD: BAD}, "service": "example"}
            return client.submit(files, **options).id  # type: ignore[arg-type]

        ended = submit("0", "3")
        client.wait(ended)
        running = submit("900", "0")
        for event in client.events(running):
            if event.event == "job.progress":
                break
        client.add_schedule({"run.sh": b""}, service="example", cron="0 6 1 1 *", name=BAD)
        client.change_service("example", "pause", BAD)
        yield Hostile(system, ended, running)


@pytest.mark.slow
@pytest.mark.parametrize("which", ["ended", "running"])
def test_nothing_of_it_becomes_part_of_a_page_or_runs(hostile, visit, which):
    person = visit(hostile.system.url, width=1600, may_complain=True)
    person.context.add_init_script("window.stolen = () => { top.document.title = 'stolen' }")
    found: dict[str, object] = {}
    page = person.context.new_page()
    page.on("dialog", lambda one: found.setdefault(page.url, one.message))
    for path in PATHS:
        page.goto(person.url + path.format(id=getattr(hostile, which)))
        if path.count("/files/") == 0:
            page.locator("h1").wait_for()
        part = page.evaluate(
            f"document.querySelector('.{MARK}, main script:not([type*=json]), main [onclick]')"
            "?.outerHTML ?? null"
        )
        if part or page.title() == "stolen" or "stolen" in page.url.partition("?")[0][:40]:
            found[path] = part
    assert found == {}


@pytest.mark.slow
@pytest.mark.parametrize("path", RAW)
def test_a_file_that_is_opened_by_itself_is_saved_and_never_shown(hostile, visit, path):
    person = visit(hostile.system.url)
    page = person.open("/jobs")
    address = f"{person.url}/api/v1/jobs/{hostile.ended}/files/{path}"
    headers = person.context.request.get(address).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["content-security-policy"].startswith("sandbox; default-src 'none'")
    with page.expect_download() as saved:
        page.evaluate("there => { location = there }", address)
    assert saved.value.suggested_filename == path.rpartition("/")[2]
    assert page.url == f"{person.url}/jobs"
