"""The templates of pages."""

from __future__ import annotations

from server.web.site import compile_template, template_names


def test_all_can_be_compiled_before_they_are_needed():
    names = template_names()
    assert {"site/layout.html", "jobs/list.html", "job/overview.html"} <= set(names)
    for name in names:
        compile_template(name)
