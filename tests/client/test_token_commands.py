"""``ferryman token`` and ``whoami``, and the SDK's methods behind them, against a real server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ferryman import Client, Conflict, NotAllowed, NotFound, Refused
from tests.kit.command_line import ferryman
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import driving

OPERATOR = "the-operator's-own-token"


async def test_a_token_is_made_used_rotated_and_revoked(tmp_path: Path) -> None:
    async with driving(tmp_path, FakeOrchestrator(), tokens=[OPERATOR]) as caller:

        async def run(*words: str, token: str = OPERATOR) -> tuple[int, str, str]:
            return await ferryman(*words, FERRYMAN_URL=caller.url, FERRYMAN_TOKEN=token)

        code, out, err = await run("token", "create", "ann-laptop", "--user", "ann", "-q")
        assert (code, err) == (0, "")
        token = out.strip()
        _, _, err = await run("token", "create", "portal", "--role", "portal", "--users", "lab-*")
        assert err.endswith("of portal portal; keep it, it is not shown again\n")

        code, out, _ = await run("whoami", token=token)
        assert code == 0
        assert out.startswith("ann-laptop: user, may read, submit, manage\n")
        assert "jobs of user ann" in out
        assert "which does not expire" in out

        _, out, _ = await run("token", "list")
        rows = [line.split("\t") for line in out.splitlines()[1:]]
        assert [row[1:5] for row in rows] == [
            ["live", "portal", "portal", "lab-*"],
            ["live", "ann-laptop", "user", "ann"],
        ]
        assert rows[1][6].endswith(" from 127.0.0.1")
        token_id = rows[1][0]

        code, out, err = await run("token", "rotate", token_id, "--expires-in", "90d")
        assert (code, err.startswith(f"token {token_id} has another secret;")) == (0, True)
        rotated = out.strip()
        code, _, err = await run("whoami", token=token)
        assert (code, "was rotated, it has another secret now" in err) == (77, True)
        assert (await run("whoami", token=rotated))[0] == 0

        code, _, err = await run("token", "revoke", token_id)
        assert (code, err) == (0, f"token {token_id} of user ann-laptop for user ann is revoked\n")
        code, _, err = await run("whoami", token=rotated)
        assert (code, f"token {token_id} was revoked on 20" in err) == (77, True)
        assert len((await run("token", "list", "--role", "user"))[1].splitlines()) == 1
        _, out, _ = await run("token", "list", "--ended", "--name", "ann-laptop", "--json")
        assert [one["state"] for one in json.loads(out)] == ["revoked"]


async def test_a_job_is_of_the_user_whose_token_submits_it(tmp_path: Path) -> None:
    bundle = tmp_path / "run.sh"
    bundle.write_text("true\n")
    settings = tmp_path / "server"
    settings.mkdir()
    async with (
        driving(settings, FakeOrchestrator(), tokens=[OPERATOR]) as caller,
        Client(caller.url, token=OPERATOR) as operator,
    ):
        token = (await operator.create_token("ann-laptop", user="ann")).token
        environ = {"FERRYMAN_URL": caller.url, "FERRYMAN_TOKEN": token, "LOGNAME": "somebody"}
        words = (str(bundle), "-s", "my_service", "-q")
        code, out, err = await ferryman("submit", *words, **environ)
        assert code == 0, err
        assert (await operator.status(int(out))).user_id == "ann"
        nightly = ("--name", "nightly", "--cron", "0 3 * * *")
        code, _, err = await ferryman("schedule", "add", *words, *nightly, **environ)
        assert code == 0, err
        assert [one.user_id async for one in operator.schedules()] == ["ann"]


@pytest.mark.parametrize(
    ("words", "code", "words_of_error"),
    [
        (("token", "create", "a b"), 65, "1 to 64 characters"),
        (("token", "create", "ann", "--role", "boss"), 65, "user, portal, operator, agent"),
        (
            ("token", "create", "ann", "--expires-in", "soon"),
            65,
            "'soon' is not a duration",
        ),
        (("token", "revoke", "nothing"), 1, "no token with the id 'nothing'"),
        (("token", "rotate", "nothing"), 1, "no token with the id 'nothing'"),
    ],
)
async def test_a_refusal_is_one_sentence(
    tmp_path: Path, words: tuple[str, ...], code: int, words_of_error: str
) -> None:
    async with driving(tmp_path, FakeOrchestrator(), tokens=[OPERATOR]) as caller:
        found, out, err = await ferryman(*words, FERRYMAN_URL=caller.url, FERRYMAN_TOKEN=OPERATOR)
        assert (found, out) == (code, ""), err
        assert words_of_error in err


async def test_the_sdk_makes_and_ends_tokens(tmp_path: Path) -> None:
    async with (
        driving(tmp_path, FakeOrchestrator(), tokens=[OPERATOR]) as caller,
        Client(caller.url, token=OPERATOR) as client,
    ):
        made = await client.create_token("ann", scopes=["read"], expires_in=3_600)
        assert made.expires_at is not None
        assert (made.expires_at - made.created_at).total_seconds() == 3_600
        with pytest.raises(Conflict, match="the name ann is that of the user ann"):
            await client.create_token("ann", "portal")
        with pytest.raises(Refused, match="read, submit, manage"):
            await client.create_token("bob", scopes=["admin"])
        rotated = await client.rotate_token(made.id, overlap="1h")
        assert rotated.former_until is not None
        async with Client(caller.url, token=rotated.token) as ann:
            me = await ann.whoami()
            assert (me.user_id, me.scopes, me.token_id) == ("ann", ["read"], made.id)
            with pytest.raises(NotAllowed):
                await ann.create_token("other")
            assert (await client.revoke_token(made.id)).state == "revoked"
            with pytest.raises(NotAllowed, match="was revoked"):
                await ann.whoami()
        with pytest.raises(NotFound):
            await client.revoke_token("nothing")
        assert [one.state async for one in client.tokens(ended=True)] == ["revoked"]
        assert [one async for one in client.tokens()] == []


async def test_the_audit_trail_says_who_did_what(tmp_path: Path) -> None:
    async with driving(tmp_path, FakeOrchestrator(), tokens=[OPERATOR]) as caller:
        known = {"FERRYMAN_URL": caller.url, "FERRYMAN_TOKEN": OPERATOR}
        async with Client(caller.url, token=OPERATOR) as client:
            made = await client.create_token("ann")
            async with Client(caller.url, token=made.token) as ann:
                with pytest.raises(NotAllowed):
                    await ann.create_token("other")
            await client.revoke_token(made.id)
            found = [one async for one in client.audit(limit=2)]
            assert [one.principal for one in found] == ["token-1", "ann"]
        code, out, err = await ferryman("audit", **known)
        assert (code, err) == (0, "")
        rows = [line.split("\t")[1:] for line in out.splitlines()[1:]]
        assert rows == [
            ["200", "token-1", "127.0.0.1", "", "DELETE /api/v1/tokens/{token}", made.id],
            ["403 not_allowed", "ann", "127.0.0.1", made.id, "POST /api/v1/tokens", ""],
            ["201", "token-1", "127.0.0.1", "", "POST /api/v1/tokens", made.id],
        ]
        _, out, _ = await ferryman("audit", "--token-id", made.id, "--json", **known)
        assert [one["principal"] for one in json.loads(out)] == ["ann"]
        _, out, _ = await ferryman("audit", "-n", "1", "--action", "post", **known)
        assert len(out.splitlines()) == 2
        code, _, err = await ferryman("audit", "--since", "yesterday", **known)
        assert (code, "Invalid since" in err) == (65, True)


async def test_a_link_that_logs_in_is_printed(tmp_path: Path) -> None:
    async with driving(tmp_path, FakeOrchestrator(), tokens=[OPERATOR]) as caller:
        async with Client(caller.url, token=OPERATOR) as client:
            assert "/login/once?code=" in (await client.login_link()).url
        options = ("--url", caller.url, "--token", OPERATOR)
        code, out, err = await ferryman("dashboard", "--no-open", *options)
        assert (code, out.startswith(f"{caller.url}/login/once?code=")) == (0, True)
        assert err.startswith("it logs in once, until ")
        code, out, err = await ferryman("dashboard", "--json", *options)
        assert (code, err, set(json.loads(out))) == (0, "", {"url", "expires_at"})
