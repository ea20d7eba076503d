"""Tokens, the audit trail, tickets and links: commands and the SDK."""

import json

import aiohttp
import pytest

from ferryman import BadArgument, Client, Conflict, NotAllowed, NotFound, Refused
from tests.client import conftest
from tests.client.conftest import OPERATOR
from tests.kit.server_http import RUN
from tests.kit.warm import Place

pytestmark = pytest.mark.asyncio(loop_scope="module")
PRINCIPALS = conftest.PRINCIPALS


async def uploaded(place: Place, url: str) -> int:
    """The job that a browser makes by a ticket."""
    form = aiohttp.FormData()
    form.add_field("file", RUN, filename="run.sh")
    async with aiohttp.request("POST", url, data=form) as answer:
        assert answer.status == 201, await answer.text()
        return int((await answer.json())["id"])


async def test_a_token_is_made_used_rotated_and_revoked(run, place, bundle):
    made = await run("token", "create", "ann-pc", "--user", "ann", "-q")
    assert (made.code, made.err) == (0, "")
    token = made.out.strip()
    web = await run("token", "create", "web", "--role", "portal", "--users", "lab-*")
    assert web.err.endswith("of portal web; keep it, it is not shown again\n")
    me = (await run("whoami", FERRYMAN_TOKEN=token)).out
    assert me.startswith("ann-pc: user, may read, submit, manage\n")
    assert "jobs of user ann" in me
    assert "which does not expire" in me
    rows = [line.split("\t") for line in (await run("token", "list")).out.splitlines()[1:]]
    assert [row[1:5] for row in rows] == [
        ["live", "web", "portal", "lab-*"],
        ["live", "ann-pc", "user", "ann"],
    ]
    assert rows[1][6].endswith(" from 127.0.0.1")
    token_id = rows[1][0]

    mine = {"FERRYMAN_TOKEN": token, "FERRYMAN_USER": None, "LOGNAME": "somebody"}
    job = (await run("submit", bundle, "-q", **mine)).out.strip()
    nightly = ("--name", "nightly", "--cron", "0 3 * * *", "-q")
    scheduled = (await run("schedule", "add", bundle, *nightly, **mine)).out.strip()
    async with Client(place.url, token=OPERATOR) as operator:
        assert (await operator.status(int(job))).user_id == "ann"
        owners = {str(one.id): one.user_id async for one in operator.schedules()}
        assert owners[scheduled] == "ann"

    again = await run("token", "rotate", token_id, "--expires-in", "90d")
    assert again.err.startswith(f"token {token_id} has another secret;")
    ended = await run("token", "revoke", token_id)
    said = f"token {token_id} of user ann-pc for user ann is revoked\n"
    assert (ended.code, ended.err) == (0, said)
    for secret, why in (
        (token, "was rotated, it has another secret now"),
        (again.out.strip(), f"token {token_id} was revoked on 20"),
    ):
        refused = await run("whoami", FERRYMAN_TOKEN=secret)
        assert (refused.code, why in refused.err) == (77, True), refused.err
    found = await run("token", "list", "--ended", "--name", "ann-pc", "--json")
    assert [one["state"] for one in json.loads(found.out)] == ["revoked"]


async def test_the_sdk_makes_and_ends_tokens_and_the_audit_trail_says_who_did_what(run, place):
    async with Client(place.url, token=OPERATOR) as client:
        made = await client.create_token("ann", scopes=["read"], expires_in=3_600)
        assert made.expires_at is not None
        assert (made.expires_at - made.created_at).total_seconds() == 3_600
        with pytest.raises(Conflict, match="the name ann is that of the user ann"):
            await client.create_token("ann", "portal")
        rotated = await client.rotate_token(made.id, overlap="1h")
        assert rotated.former_until is not None
        async with Client(place.url, token=rotated.token) as ann:
            me = await ann.whoami()
            assert (me.user_id, me.scopes, me.token_id) == ("ann", ["read"], made.id)
            with pytest.raises(NotAllowed):
                await ann.create_token("other")
            assert (await client.revoke_token(made.id)).state == "revoked"
            with pytest.raises(NotAllowed, match="was revoked"):
                await ann.whoami()
        with pytest.raises(NotFound):
            await client.revoke_token("nothing")
        assert made.id in [one.id async for one in client.tokens(ended=True)]
        assert made.id not in [one.id async for one in client.tokens()]
        found = [one async for one in client.audit(limit=2)]
        assert [one.principal for one in found] == ["operator", "operator"]
    printed = await run("audit", "-n", "4")
    rows = [line.split("\t")[1:] for line in printed.out.splitlines()[1:]]
    assert [row[0] for row in rows] == ["404 token_not_found", "200", "403 not_allowed", "200"]
    assert rows[1:3] == [
        ["200", "operator", "127.0.0.1", "", "DELETE /api/v1/tokens/{token}", made.id],
        ["403 not_allowed", "ann", "127.0.0.1", made.id, "POST /api/v1/tokens", ""],
    ]
    chosen = await run("audit", "--token-id", made.id, "--action", "post", "--json")
    assert [one["principal"] for one in json.loads(chosen.out)] == ["ann"]


async def test_tickets_and_links(run, place, bundle):
    chosen = "--field tags=web --max-bytes 1MB --expires-in 1h --service"
    ticket = await run("ticket", "--user", place.user, *chosen.split(), place.service)
    assert ticket.err.startswith("it is good for one upload, until ")
    number = await uploaded(place, ticket.out.strip())
    job = await place.job(number)
    assert (job["user_id"], job["tags"]) == (place.user, ["web"])
    link = await run("link", number)
    assert link.err.startswith("it shows the job and all that it left until ")
    async with aiohttp.request("GET", link.out.strip()) as answer:
        assert (await answer.json())["id"] == number
    of_file = await run("link", number, "a/b c.txt", "--json")
    assert "/files/a/b%20c.txt?link=" in json.loads(of_file.out)["url"]
    of_result = await run("link", number, "--result", "-q")
    assert (f"/jobs/{number}/result?link=" in of_result.out, of_result.err) == (True, "")
    async with Client(place.url, token=OPERATOR) as client:
        token = (await client.create_token("lab", "portal", users=["lab-*"])).token
        assert "/login/once?code=" in (await client.login_link()).url
    async with Client(place.url, token=token) as portal:
        made = await portal.create_ticket("lab-1", service=place.service, max_bytes=1_000)
        number = await uploaded(place, made.upload_url)
        assert (await portal.status(number)).user_id == "lab-1"
        async with aiohttp.request("GET", (await portal.create_link(number)).url) as answer:
            assert answer.status == 200
        with pytest.raises(NotAllowed, match=r"lab-\*"):
            await portal.create_ticket("ann")
        with pytest.raises(Refused, match="return_to"):
            await portal.create_ticket("lab-1", return_to="https://evil.example")
        with pytest.raises(NotFound):
            await portal.create_link(10**12)
    async with Client(place.url) as nobody:
        with pytest.raises(BadArgument, match="whose job"):
            await nobody.create_ticket()


async def test_a_link_that_logs_in_is_printed(run, place):
    printed = await run("dashboard", "--no-open")
    assert printed.out.startswith(f"{place.url}/login/once?code=")
    assert printed.err.startswith("it logs in once, until ")
    parsed = await run("dashboard", "--json")
    assert (parsed.code, parsed.err, set(json.loads(parsed.out))) == (0, "", {"url", "expires_at"})
