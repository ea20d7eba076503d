"""Rate limits of users and portals, over HTTP."""

from __future__ import annotations

from structlog.testing import capture_logs

from shared.principals import Principal, Role
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import driving

SETTINGS = """
[server]
rate_limit = "2/h"

[users.portal]
rate_limit = "5/h"
"""
PRINCIPALS = {
    "laptop": Principal("ann-laptop", Role.USER, "ann"),
    "desktop": Principal("ann-desktop", Role.USER, "ann"),
    "bob": Principal("bob", Role.USER, "bob"),
    "portal": Principal("portal", Role.PORTAL),
    "operator": Principal("operator", Role.OPERATOR),
}


async def test_each_user_and_portal_has_a_limit_of_its_own(tmp_path):
    async with driving(
        tmp_path, FakeOrchestrator(), extra=SETTINGS, principals=PRINCIPALS
    ) as client:

        async def ask(token: str, path: str = "/api/v1/jobs", **headers: str) -> int:
            given = {"Authorization": f"Bearer {token}"} | headers
            url = f"{client.url}{path}"
            async with client.session.get(url, headers=given) as answer:
                if answer.status == 429:
                    assert (await answer.json())["code"] == "rate_limited"
                    assert 0 < int(answer.headers["Retry-After"]) <= 1_800
                return answer.status

        with capture_logs() as logs:
            laptop = [await ask("laptop") for _ in range(2)]
            desktop = [await ask("desktop", "/health") for _ in range(3)]  # is always answered
            desktop += [await ask("desktop") for _ in range(2)]
        assert laptop == [200, 200]
        assert desktop == [200] * 3 + [429] * 2  # it is the same user
        assert "rate_limited" in [one.get("code") for one in logs]
        assert [await ask("bob") for _ in range(3)] == [200, 200, 429]
        acting = {"Ferryman-Act-As": "ann"}
        assert [await ask("portal", **acting) for _ in range(6)] == [200] * 5 + [429]
        assert {await ask("operator") for _ in range(20)} == {200}
