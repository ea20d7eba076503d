"""A program: runs tests in an interpreter of its own, for what is made at the import of a module.

    python -m tests.mutants.fresh DESCRIPTOR LOG FILE

FILE names the tests, one a line, in their order.
"""

import os
import sys
from pathlib import Path

import pytest

from tests.mutants.inside import collect, run_tests


def main() -> None:
    descriptor, log, file = sys.argv[1:]
    names = Path(file).read_text().splitlines()

    def tell(line: str) -> None:
        os.write(int(descriptor), f"{line}\n".encode())

    def work(session: pytest.Session) -> None:
        os.set_inheritable(int(descriptor), False)
        found = {item.nodeid: item for item in session.items}
        tell("collected")
        run_tests(session, [found[name] for name in names if name in found], tell, Path(log))
        tell("done")

    paths = dict.fromkeys(name.partition("::")[0] for name in names)
    if not collect(["-m", "", *paths], work):
        tell("failed at the import")
    os._exit(0)


if __name__ == "__main__":
    main()
