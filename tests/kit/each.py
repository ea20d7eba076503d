"""Many cases of one question in one test: each test costs more than most cases."""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any


def each(names: str | Sequence[str], cases: Iterable[Any]) -> Callable[[Any], Any]:
    """As ``pytest.mark.parametrize``, in one test, which asks all and tells all that fail."""
    keys = names.replace(" ", "").split(",") if isinstance(names, str) else [*names]
    given = [dict(zip(keys, [case] if len(keys) == 1 else case, strict=True)) for case in cases]
    assert given, "there are no cases"

    def decorate(test: Any) -> Any:
        @functools.wraps(test)
        def ask_all(**fixtures: Any) -> None:
            problems: list[Exception] = []
            for case in given:
                with _told(problems, case):
                    test(**fixtures, **case)
            _raise(problems, len(given))

        @functools.wraps(test)
        async def ask_all_of_them(**fixtures: Any) -> None:
            problems: list[Exception] = []
            for case in given:
                with _told(problems, case):
                    await test(**fixtures, **case)
            _raise(problems, len(given))

        found: Any = ask_all_of_them if inspect.iscoroutinefunction(test) else ask_all
        signature = inspect.signature(test)
        rest = [one for name, one in signature.parameters.items() if name not in keys]
        del found.__wrapped__  # pytest reads its signature
        found.__signature__ = signature.replace(parameters=rest)
        return found

    return decorate


@contextmanager
def _told(problems: list[Exception], case: Mapping[str, Any]) -> Iterator[None]:
    try:
        yield
    except Exception as problem:  # noqa: BLE001  # all are told at the end
        problem.add_note(f"where {case}"[:2_000])
        problems.append(problem)


def _raise(problems: list[Exception], of: int) -> None:
    if problems:
        raise ExceptionGroup(f"{len(problems)} of {of} cases", problems)
