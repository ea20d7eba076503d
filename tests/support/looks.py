"""The pictures of the dashboard in ``docs/pictures``, and what they were made from."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PICTURES: Final = ROOT / "docs" / "pictures"
MADE_FROM: Final = "made-from"
"""File beside the pictures: the digest of what they show."""
PAGES: Final = {
    "login": "/login",
    "upload": "/new",
    "jobs": "/jobs",
    "jobs-none": "/jobs?tag=nobody-has-it",
    "job-queued": "/jobs/{queued}",
    "job-running": "/jobs/{running}",
    "job-completed": "/jobs/{contacts}",
    "job-failed": "/jobs/{failed}",
    "job-array": "/jobs/{array}",
    "children": "/jobs/{array}/children",
    "attempts": "/jobs/{retried}/attempts",
    "events": "/jobs/{retried}/events",
    "log": "/jobs/{running}/log",
    "files": "/jobs/{contacts}/files",
    "files-running": "/jobs/{running}/files",
    "file-table": "/jobs/{contacts}/files/contacts.csv",
    "file-picture": "/jobs/{picture}/files/mandelbrot.png",
    "file-text": "/jobs/{contacts}/files/helices.pdb",
    "schedules": "/schedules",
    "schedule": "/schedules/{schedule}",
    "status": "/status",
    "charts": "/charts",
    "agents": "/agents",
    "agent": "/agents/local",
    "services": "/services",
    "service": "/services/docking",
    "new-service": "/new-service",
    "users": "/users",
    "user": "/users/ana",
    "dead-letters": "/dead-letters",
    "webhooks": "/webhooks",
    "webhook": "/webhooks/1",
    "tokens": "/tokens",
    "token": "/tokens/{token}",
    "audit": "/audit",
    "account": "/account",
    "not-found": "/jobs/123456",
}
"""What a picture is called -> the page."""


NOT_PAGES: Final = (
    "/assets/{version}/{path}",
    "/live",
    "/live/{id}",
    "/live/{id}/log",
    "/jobs/{id}/rendered/{path}",
    "/new/sent",
    "/login/once",
)
"""Streams, what pages have in frames, and what is seen once."""


def looks() -> str:
    """Digest of the templates and styles: pictures that were made from others are old."""
    digest = hashlib.sha256()
    web = ROOT / "server" / "web"
    for path in sorted([*web.glob("templates/**/*.html"), *web.glob("static/*.css")]):
        digest.update(f"{path.relative_to(web)}\0".encode() + path.read_bytes())
    return digest.hexdigest()
