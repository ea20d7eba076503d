"""The lists of jobs as pages: what they show, and what their forms do to many jobs at once."""

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from server.domain.choose import Recent
from server.http.params import FILTERS
from server.stages.statistics import Statistics
from shared.principals import Principal, Role
from tests.kit.each import each
from tests.kit.pages import Browser, Page, browsing
from tests.kit.warm import Place

pytestmark = pytest.mark.asyncio(loop_scope="module")

OPERATOR = "the-token-of-admin"
PRINCIPALS = {OPERATOR: Principal("admin", Role.OPERATOR)}


class Lists(Browser):
    place: Place

    async def job(self, *, wait: bool = True, **fields: Any) -> int:
        job_id = await self.place.upload(**fields)
        if wait:
            await self.place.job(job_id)
        return job_id

    async def rows(self, query: str = "") -> list[int]:
        return (await self.see(f"/jobs{query}")).jobs()

    async def bulk(self, *fields: tuple[str, str], now: bool = False) -> Page:
        path = "/jobs/bulk/now" if now else "/jobs/bulk"
        return await self.ask(path, "POST", list(fields))


@pytest_asyncio.fixture(loop_scope="module")
async def ann(place: Place) -> AsyncIterator[Lists]:
    made = await place.api("POST", "/tokens", {"name": place.user, "role": "user"})
    async with browsing(place.url, made["token"]) as browser:
        found = Lists(browser.url, browser.session, browser.token)
        found.place = place
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def bobs(ann: Lists) -> int:
    return await ann.job(user_id=f"bob-{ann.place.user}", name="his-name", tags="t")


def older(page: Page) -> str:
    return next(iter(page.main.one(id="older").links()), "")


def counts(page: Page) -> dict[str, str]:
    """State -> the number on its tab."""
    tabs = [one.text.split() for one in page.main.one(id="tabs").all("a")]
    return {words[0]: words[1] for words in tabs if len(words) > 1}


async def test_a_list_without_jobs_says_what_to_do(ann: Lists) -> None:
    page = await ann.see("/jobs")
    assert "No jobs yet." in page.text
    assert re.search(r"ferryman submit run.sh --service \S+ --url http://127.0.0.1:", page.text)
    page = await ann.see("/jobs?tag=none&user=ann")
    assert "No job fits these filters." in page.text
    assert page.main.links("/jobs")


async def test_each_filter_is_named_and_can_be_taken_away(ann: Lists) -> None:
    given = {"state": "Failed", "reason": "timeout", "since": "1h", "until": "1h"}
    given |= dict.fromkeys(("batch", "dead_letter"), "true")
    given |= dict.fromkeys(("parent", "schedule", "after"), "1")
    for name in FILTERS.keys() - {"top_level"}:
        page = await ann.see(f"/jobs?{name}={given.get(name, 'x')}")
        assert page.main.one(id="chips").links() == ["/jobs", "/jobs"], name


async def test_everybody_sees_their_own_jobs_only(ann: Lists, bobs: int) -> None:
    """And changes no others: test_access.py."""
    own = await ann.job(name="hers")
    assert await ann.rows() == [own]
    for query in ("user=bob", "text=his-na", f"text={bobs}", "user_id=bob", f"cursor={9**9}"):
        page = await ann.see(f"/jobs?{query}")
        assert ("his-name" in page.text, f"/jobs/{bobs}" in page.main.links()) == (False, False)
    for given in ([("query", "user=bob")], []):
        await ann.bulk(("action", "delete"), ("all", "1"), *given, now=True)
    assert (await ann.place.api("GET", f"/jobs/{bobs}"))["name"] == "his-name"


async def test_filters_stand_in_the_address_errors_beside_them(ann: Lists, bobs: int) -> None:
    first = await ann.job(name="Alpha run", tags="red,blue")
    second = await ann.job(name="beta", tags="red")
    for query, expected in (
        ("text=ALPHA", [first]),
        ("tag=red&text=beta&state=Completed", [second]),
        ("state=&service=&user=&tag=&since=&until=", [second, first]),
        ("until=1h", []),
        ("unknown=1", [second, first]),
        (f"service={ann.place.service}&status=Completed", [second, first]),
    ):
        assert await ann.rows(f"?{query}") == expected, query
    page = await ann.see("/jobs?text=ALPHA&tag=red&name=Alpha+run")
    fields = page.main.one("form", id="filters").fields()
    assert (fields["text"], fields["name"]) == ("ALPHA", "Alpha run")
    assert "/jobs?text=ALPHA&name=Alpha+run" in page.main.links()  # without the tag
    numbers = counts(await ann.see("/jobs"))
    assert {name for name in numbers if numbers[name] != "0"} == {"All", "Completed"}
    assert (numbers["All"], numbers["Completed"]) == ("2", "2")
    assert counts(await ann.see("/jobs?text=x")) == {}
    for query, field, says in (
        ("since=yesterday", "since", "is not a time such as"),
        ("state=Gone", "state", "is none of"),
        (f"tag={'x' * 201}", "tag", "longer than 200"),
        ("children=%3Cb%3E", "children", "is not true"),
        ("cursor=x", "", ""),
        ("reason=%3Cb%3E", "", ""),
    ):
        page = await ann.ask(f"/jobs?{query}")
        assert (page.status, page.jobs(), page.main.all("b")) == (400, [], [])
        if field:
            assert says in page.errors[field]
            assert page.main.one(name=field)["aria-invalid"] == "true"


async def test_pages_go_back_and_say_how_far(ann: Lists, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.web.jobs.ROWS", 2)
    wanted, *others = [await ann.job(tags="t", name=name) for name in ("wanted", *"bcde")]
    page = await ann.see("/jobs?tag=t")
    found = [page.jobs()]
    while path := older(page):
        assert "tag=t" in path
        page = await ann.see(path)
        found.append(page.jobs())
    assert found == [others[:1:-1], others[1::-1], [wanted]]
    assert "Back to the newest jobs" in page.text
    monkeypatch.setattr("server.store.pages._SLICE", 1)
    monkeypatch.setattr("server.web.jobs._SLICES", 3)
    for seconds, at in ((0, others[3]), (60, others[1])):
        monkeypatch.setattr("server.web.jobs._SEARCH_S", seconds)
        page = await ann.see("/jobs?text=wanted")
        assert (page.jobs(), f"Searched back to job {at}." in page.text) == ([], True)
        assert "No job fits these filters, as far as was searched." in page.text
    assert (await ann.see(older(page))).jobs() == [wanted]
    page = await ann.see(f"/jobs?text={wanted}")  # by its number it is there at once
    assert f"/jobs/{wanted}" in page.main.links()


async def test_a_row_says_when_a_job_starts(ann: Lists, monkeypatch: pytest.MonkeyPatch) -> None:
    async def lately(_: object, service: str) -> Recent:
        return Recent(1_500.0, {ann.place.user: 1})

    monkeypatch.setattr(Statistics, "recent", lately)
    place = ann.place
    place.does(None)
    await place.configure(runs_per_user=1)
    await place.job(await ann.job(wait=False), until="Running")
    waits = await ann.job(wait=False)
    later = await ann.job(wait=False, not_before="in 2h")
    for path in ("/jobs", f"/jobs/{waits}"):
        assert re.search(r"about \d+ min", (await ann.see(path)).text), path
    page = await ann.see("/jobs")
    assert page.text.count(" about ") == 1, "of that with a time of its own nothing is estimated"
    for path in ("/jobs", f"/jobs/{later}"):
        text = (await ann.see(path)).text
        assert re.search(r"To be sent in \d (h|min)\S* , as it was asked for\.", text), text
        assert not re.search(r"\d\d:\d\d\.\d+Z", text)


async def test_ticked_jobs_are_named_before_they_are_deleted(ann: Lists) -> None:
    one, two, kept = [await ann.job(name=name) for name in ("first", "second", "kept")]
    fields = [("action", "delete"), ("id", str(one)), ("ids", f"{two},{one}"), ("query", "tag=")]
    page = await ann.bulk(*fields)
    assert (page.status, page.heading) == (200, "Delete 2 jobs?")
    assert "first" in page.text
    assert page.main.fields()["ids"] == f"{one},{two}"
    assert await ann.rows() == [kept, two, one]
    page = await ann.bulk(*fields, now=True)
    assert (page.status, page.location) == (303, "/jobs?done=delete&number=2")
    assert await ann.rows() == [kept]
    assert "2 jobs deleted" in (await ann.see(page.location)).notice
    trail = await ann.place.api("GET", "/audit", principal=ann.place.user, action="POST /jobs")
    said = [(each["action"], each["target"], each["status"]) for each in trail["items"]]
    assert said == [("POST /jobs/bulk/now", f"delete {one} {two}", 303)], "the question is none"


async def test_all_that_match_are_those_of_the_moment_of_the_question(ann: Lists) -> None:
    jobs = [await ann.job(tags="t") for _ in range(3)]
    other = await ann.job()
    fields = [("action", "delete"), ("all", "1"), ("query", "tag=t")]
    page = await ann.bulk(*fields)
    assert page.heading == "Delete 3 jobs?"
    before = page.main.fields()["before"]
    assert int(before) == jobs[-1] + 1
    late = await ann.job(tags="t")
    page = await ann.bulk(*fields, ("before", before), now=True)
    assert (page.status, page.location) == (303, "/jobs?tag=t&done=delete&number=3")
    assert await ann.rows() == [late, other]


async def test_many_go_on_with_a_button(ann: Lists, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.web.jobs._MOST", 2)
    jobs = [await ann.job() for _ in range(3)]
    fields = [("action", "delete"), ("all", "1"), ("before", str(jobs[-1] + 1))]
    page = await ann.bulk(*fields, now=True)
    assert page.status == 200
    assert "2 jobs are deleted" in page.text
    assert any("data-goes-on" in one.attributes for one in page.main)
    more = [one for one in page.main.all("input") if one["name"] not in ("", "csrf")]
    page = await ann.bulk(*[(one["name"], one["value"]) for one in more], now=True)
    assert (page.status, page.location) == (303, "/jobs?done=delete&number=3")
    assert await ann.rows() == []


async def test_what_cannot_be_done_is_said_of_each_job(ann: Lists, bobs: int) -> None:
    done = await ann.job()
    fields = [("action", "retry"), *(("id", str(one)) for one in (done, bobs, 999_999))]
    page = await ann.bulk(*fields)
    assert "stays as it is" in page.text
    assert f"/jobs/{bobs}" not in page.main.links()
    page = await ann.bulk(*fields, now=True)
    assert page.status == 200
    assert "0 jobs are queued again. 3 could not be changed." in page.text
    assert f"job {bobs} not found" in page.text.lower()
    assert "job 999999 not found" in page.text.lower()


@each(
    "fields, status",
    [
        ([("action", "explode"), ("id", "1")], 400),
        ([("action", "tag"), ("id", "1")], 400),
        ([("id", "1")], 400),
        ([("action", "delete"), ("id", "x")], 400),
        ([("action", "delete"), ("id", "9" * 30)], 400),
        ([("action", "delete"), ("id", "-1")], 400),
        ([("action", "delete"), ("all", "1"), ("query", "since=never")], 400),
        ([("action", "delete"), ("ids", ",".join(str(one) for one in range(1, 1_002)))], 400),
        ([("action", "delete"), ("ids", "1,x")], 400),
        ([("action", "delete"), *(("id", str(one)) for one in range(1, 1_002))], 413),
    ],
)
async def test_a_wrong_form_is_refused(ann: Lists, fields: list[Any], status: int) -> None:
    before = await ann.rows() or [await ann.job()]
    for now in (False, True):
        assert (await ann.bulk(*fields, now=now)).status == status
    assert await ann.rows() == before
    page = await ann.bulk(("action", "cancel"), ("query", "tag=a%26b"))  # it leads back
    assert (page.status, page.location) == (303, "/jobs?tag=a%26b&done=nothing&number=0")
    assert "No job was chosen" in (await ann.see(page.location)).notice
    assert (await ann.see("/jobs?done=%3Cb%3E&number=%3Cb%3E")).notice == ""


async def batch(ann: Lists, **fields: Any) -> int:
    """A parent of three children, all of which fail."""
    ann.place.does(lambda process: process.finish(3))
    parent = await ann.job(array="0-2", **fields)
    ann.place.does(lambda process: process.finish())
    return parent


async def test_a_batch_is_one_row_until_its_children_are_asked_for(ann: Lists) -> None:
    alone = await ann.job(name="alone")
    parent = await batch(ann, name="scan", tags="t")
    listed = await ann.place.api("GET", "/jobs", parent=str(parent), user=ann.place.user)
    children = [one["id"] for one in listed["items"]]
    assert await ann.rows() == [parent, alone]
    for query, expected in (
        ("children=true", [*children, parent, alone]),
        ("tag=t", [parent]),
        ("tag=t&children=1", [*children, parent]),
        ("text=scan[1", []),
        ("text=scan[1&children=true", [children[1]]),
        (f"state=Failed&service={ann.place.service}", [parent]),
        ("top_level=true&children=true", [*children, parent, alone]),
        (f"parent={parent}", children),
        (f"parent={alone}", []),
    ):
        assert await ann.rows(f"?{query}") == expected, query
    page = await ann.see("/jobs")
    assert "3 children : 3 failed." in page.main.one(id=f"job-{parent}").text
    assert f"/jobs?parent={parent}" in page.main.links()
    assert counts(page)["Failed"] == "1"
    page = await ann.see("/jobs?children=true")
    assert counts(page)["Failed"] == "4"
    assert page.main.one("form", id="filters").fields()["children"] == "true"
    assert "/jobs?children=true&state=Failed" in page.main.links()
    assert page.main.all(kind="chips") == []
    assert "of job" in page.main.one(id=f"job-{children[0]}").text
    assert "/jobs?text=scan%5B1&children=true" in (await ann.see("/jobs?text=scan[1")).main.links()
    assert "of batches were left out" not in (await ann.see("/jobs?dead_letter=true")).text


async def test_all_that_match_are_the_batches_where_these_are_listed(ann: Lists) -> None:
    parent, alone = await batch(ann), await ann.job()
    fields = [("action", "delete"), ("all", "1"), ("query", "children=true")]
    page = await ann.bulk(*fields)
    assert page.heading == "Delete 5 jobs?"
    assert "A child by itself cannot be deleted." in page.text
    fields[-1] = ("query", "")
    page = await ann.bulk(*fields)
    assert page.heading == "Delete 2 jobs?"
    assert "A batch goes as a whole: its children are deleted with it." in page.text
    page = await ann.bulk(*fields, ("before", str(alone)), now=True)
    assert (page.status, page.location) == (303, "/jobs?done=delete&number=1")
    assert await ann.rows("?children=true") == [alone]
    assert "A batch" not in (await ann.bulk(("action", "delete"), ("id", str(alone)))).text
    assert await ann.rows(f"?parent={parent}") == []
