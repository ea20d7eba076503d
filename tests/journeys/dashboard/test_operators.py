"""The pages for operators, in a browser."""

from __future__ import annotations

from playwright.sync_api import Dialog

PAGES = (
    "/agents",
    "/agents/local",
    "/services",
    "/services/example",
    "/users",
    "/users/ada",
    "/status",
)


def test_an_agent_is_drained_and_resumed(system, visit):
    person = visit(system.url)
    page, status = person.open("/agents/local"), person.open("/status")
    asked: list[str] = []

    def accept(dialog: Dialog) -> None:
        asked.append(dialog.message)
        dialog.accept()

    page.on("dialog", accept)
    page.get_by_label("Drain: why").fill("new disk")
    page.get_by_role("button", name="Drain").click()
    page.get_by_text("Agent local: it gets no new jobs now.").wait_for()
    assert "It gets no new jobs." in asked[0]
    status.get_by_text("It works, but something should be looked at.").wait_for()  # by itself
    status.get_by_text("new disk").wait_for()
    page.get_by_role("button", name="Resume").click()
    page.get_by_text("Local: it is used again.").wait_for()
    status.get_by_text("Everything is all right").wait_for()
