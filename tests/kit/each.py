"""Many cases of one question in one test: each test costs more than most cases."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any


def each(names: str | Sequence[str], cases: Iterable[Any]) -> Callable[[Any], Any]:
    """As ``pytest.mark.parametrize``, in one test, which asks all and tells all that fail."""
    keys = names.replace(" ", "").split(",") if isinstance(names, str) else [*names]
    given = [dict(zip(keys, [case] if len(keys) == 1 else case, strict=True)) for case in cases]
    assert given, "there are no cases"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def ask_all(**fixtures: Any) -> None:
            problems = []
            for case in given:
                try:
                    test(**fixtures, **case)
                except Exception as problem:  # noqa: BLE001  # all are told at the end
                    problem.add_note(f"where {case}"[:2_000])
                    problems.append(problem)
            if problems:
                raise ExceptionGroup(f"{len(problems)} of {len(given)} cases", problems)

        signature = inspect.signature(test)
        rest = [one for name, one in signature.parameters.items() if name not in keys]
        del ask_all.__wrapped__  # pytest reads its signature
        ask_all.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]
        return ask_all

    return decorate
