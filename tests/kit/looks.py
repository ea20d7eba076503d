"""The pages of the dashboard that are looked at, in a real browser."""

from __future__ import annotations

from typing import Final

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
    "log": "/jobs/{running}/log",
    "files": "/jobs/{contacts}/files",
    "files-running": "/jobs/{running}/files",
    "file-table": "/jobs/{contacts}/files/contacts.csv",
    "file-picture": "/jobs/{picture}/files/mandelbrot.png",
    "file-text": "/jobs/{contacts}/files/helices.pdb",
    "schedules": "/schedules",
    "status": "/status",
    "charts": "/charts",
    "agents": "/agents",
    "agent": "/agents/local",
    "services": "/services",
    "service": "/services/docking",
    "users": "/users",
    "user": "/users/ana",
    "tokens": "/tokens",
    "token": "/tokens/{token}",
    "audit": "/audit",
    "account": "/account",
    "not-found": "/jobs/123456",
}
"""What a picture of it is called -> the page."""


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
