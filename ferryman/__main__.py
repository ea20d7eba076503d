"""``python -m ferryman``: the same as ``ferryman``."""

from __future__ import annotations

from ferryman.cli import main

if __name__ == "__main__":
    main()
