"""``make lines``: how long the product and its tests are, by package, and the documentation."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PRODUCT: Final = ("server", "client_agent", "shared", "ferryman")
TYPES: Final = (".py", ".html", ".js", ".css")
OLD_MUTANTS: Final = ("tests/mutants/old/", "tests/mutants/phrases.txt")
VENDORED: Final = ("/static/vendor/", "/swagger-ui", "/axe/", "/noticed.txt")
"""Written by others, or by a program."""


def counted() -> Counter[str]:
    """Words of the pages as "docs", lines by package; of tests by the folder below."""
    found: Counter[str] = Counter()
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        path = ROOT / name
        top, _, rest = name.partition("/")
        if not path.is_file() or any(part in f"/{name}" for part in VENDORED):
            continue
        if name == "README.md" or (top == "docs" and "/" not in rest and path.suffix == ".md"):
            found["docs"] += len(path.read_text().split())
        elif path.suffix in TYPES and top in PRODUCT:
            found[top] += len(path.read_text().splitlines())
        elif name.startswith(OLD_MUTANTS):
            found["old mutants"] += len(path.read_text().splitlines())
        elif path.suffix in (*TYPES, ".txt") and name.startswith("tests/mutants/"):
            found["tests/mutants"] += len(path.read_text().splitlines())
        elif path.suffix in TYPES and top == "tests":
            found[f"tests/{rest.partition('/')[0]}"] += len(path.read_text().splitlines())
    found["files"] = len(listed.stdout.splitlines())
    return found


def main() -> None:
    found = counted()
    tests = {name: lines for name, lines in found.items() if name.startswith("tests/")}
    for name in (*PRODUCT, *sorted(tests)):
        print(f"{found[name]:8,}  {name}")
    print(f"{sum(found[name] for name in PRODUCT):8,}  product (.py .html .js .css, not vendored)")
    print(f"{sum(tests.values()):8,}  tests")
    print(f"{found['old mutants']:8,}  mutants of parts that are rebuilt next, in their old form")
    print(f"{found['docs']:8,}  words in README.md and docs/*.md")
    print(f"{found['files']:8,}  tracked files")


if __name__ == "__main__":
    main()
