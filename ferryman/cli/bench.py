"""``ferryman bench``: put load on a server, and measure what becomes of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, TypeVar
from urllib.parse import urlsplit

import typer

from ferryman.cli import show
from ferryman.cli.bench_output import Output, earlier, prepare
from ferryman.cli.exits import TIMEOUT, TRY_LATER, UNAVAILABLE, Interrupted
from ferryman.cli.options import Json, Quiet, Server, on_server, run, seconds, whole
from ferryman.errors import BadArgument, FerrymanError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ferryman.bench.plan import Plan
    from ferryman.client import Client

T = TypeVar("T")

USER: Final = "bench-{}"
_USUAL_JOBS: Final = 50
_USUAL_AT_ONCE: Final = 4
_USUAL_DURATION_S: Final = 60.0

Text: TypeAlias = str | None


def _option(name: str, metavar: str, text: str, *, shown: bool = True) -> Any:
    return typer.Option(name, metavar=metavar, help=text, show_default=shown)


@on_server
def bench(
    service: Annotated[
        str,
        typer.Option(
            "--service", "-s", metavar="NAME", envvar="FERRYMAN_SERVICE", help="Which kind of work."
        ),
    ],
    rate: Annotated[
        Text, _option("--rate", "RATE", "Open loop: so many jobs come, as in 20/s, 90/m or 500/h.")
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency",
            parser=whole(1, 1_000),
            metavar="N",
            help="Closed loop: so many jobs at a time; 4 where --rate is not given either.",
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            parser=whole(1, 1_000_000),
            metavar="N",
            help="How many; 50 where neither --rate nor --duration is given.",
        ),
    ] = None,
    duration: Annotated[
        float | None,
        typer.Option(
            "--duration",
            parser=seconds,
            metavar="DURATION",
            help="For how long jobs are sent; 60s where --rate is given without --jobs.",
        ),
    ] = None,
    ramp: Annotated[
        float,
        typer.Option(
            "--ramp", parser=seconds, metavar="DURATION", help="The load grows from 0 for so long."
        ),
    ] = "0s",  # type: ignore[assignment]  # read by the parser
    size: Annotated[
        str, _option("--size", "SIZE", "Of a bundle; a range such as 1KiB..10MiB is log-uniform.")
    ] = "1KiB",
    files: Annotated[
        int,
        typer.Option(
            "--files", parser=whole(1, 10_000), metavar="N", help="Of a bundle, besides run.sh."
        ),
    ] = 1,
    run_time: Annotated[
        str, _option("--run-time", "TIME", "How long run.sh sleeps: 2s, 1s..1m, or exp:5s.")
    ] = "0s",
    output_size: Annotated[
        str, _option("--output-size", "SIZE", "What run.sh writes; also a range.")
    ] = "0",
    mix: Annotated[
        list[str] | None,
        _option(
            "--mix",
            "KIND",
            "A kind of jobs with its weight: 3:size=1MiB,run-time=2s; may be repeated.",
        ),
    ] = None,
    users: Annotated[
        int | None,
        typer.Option(
            "--users",
            parser=whole(1, 10_000),
            metavar="N",
            help="Users bench-1 to bench-N in turn; default: you alone.",
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            "--seed",
            parser=whole(0),
            metavar="N",
            help="The same seed gives the same jobs at the same times.",
        ),
    ] = 3,
    patience: Annotated[
        float,
        typer.Option(
            "--patience",
            parser=seconds,
            metavar="DURATION",
            help="How long to wait at the end for jobs that have not ended.",
        ),
    ] = "2m",  # type: ignore[assignment]
    keep: Annotated[
        bool, typer.Option("--keep", help="Do not delete its jobs at the end.")
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option(
            "--report",
            metavar="DIR|FILE.html",
            help="Write a page with plots; into a folder also the figures, as result.json.",
        ),
    ] = None,
    compare: Annotated[
        Path | None,
        typer.Option(
            "--compare", metavar="FILE", help="Show ratios to the result of an earlier run."
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask, whatever server it is.")
    ] = False,
    quiet: Quiet = False,
    json: Json = False,
    *,
    server: Server,
) -> None:
    """Put load on a server, measure it, and say what to raise.

    It submits jobs that sleep, waits for their end, deletes them, and shows counts, times, and what
    was at its limit first. Latencies count from when an upload was due. Other users of the server
    notice the load: choose --service, --users and --rate with care.
    """
    from ferryman.bench.plan import Kind, Plan, kind_of
    from ferryman.bench.quantities import rate as rate_of
    from ferryman.bench.quantities import sizes, times

    if rate is not None and concurrency is not None:
        raise BadArgument("give --rate or --concurrency: an open loop or a closed one")
    usual = Kind(
        _read("--size", sizes, size),
        files,
        _read("--run-time", times, run_time),
        _read("--output-size", sizes, output_size),
        service,
    )
    kinds = [_read("--mix", lambda text: kind_of(text, usual), one) for one in mix or ()]
    if rate is None:
        concurrency = concurrency or _USUAL_AT_ONCE
        jobs = _USUAL_JOBS if jobs is None and duration is None else jobs
    elif jobs is None and duration is None:
        duration = _USUAL_DURATION_S
    plan = Plan(
        kinds or [usual],
        rate=None if rate is None else _read("--rate", rate_of, rate),
        concurrency=concurrency,
        jobs=jobs,
        duration_s=duration,
        ramp_s=ramp,
        seed=seed,
        patience_s=patience,
    )
    before = None if compare is None else earlier(compare)
    if not yes:
        _ask(server.url, plan)
    if report is not None:
        prepare(report)
    run(_run(server, plan, users, Output(report, before, keep=keep, quiet=quiet, json=json)))


async def _run(server: Server, plan: Plan, users: int | None, output: Output) -> int:
    from dataclasses import replace

    from ferryman import __version__
    from ferryman.bench.load import GIVE_UP_S
    from ferryman.bench.run import Run
    from ferryman.clock import RealClock, wall_clock

    async with server.client() as client, server.client() as watcher:
        plan = replace(plan, users=await _users(watcher, server, users))
        client.retry_for, watcher.retry_for = 0.0, GIVE_UP_S
        tag = f"bench-{wall_clock():%Y%m%dT%H%M%S.%f}"
        output.say(f"{plan.say()} on {server.url}; tag {tag}")
        bench = Run(client, watcher, plan, tag, RealClock(), __version__, output)
        try:
            found = await bench.result()
            output.show(found)
        finally:
            if bench.made_jobs:
                await _tidy(bench, server, tag, output)
    if found.end == "interrupted":
        raise Interrupted
    if found.end == "server_away":
        return UNAVAILABLE
    if found.end == "patience":
        return TIMEOUT
    if not found.counts.accepted:
        return TRY_LATER if found.counts.refused else UNAVAILABLE
    return 0


async def _tidy(bench: Any, server: Server, tag: str, output: Output) -> None:
    by_hand = server.command(f"delete --all --tag {tag}")
    if output.keep:
        output.say(f"its jobs are kept; delete them: {by_hand}")
        return
    output.say(f"deleting its jobs; if this is interrupted: {by_hand}")
    try:
        await bench.tidy()
    except FerrymanError as problem:
        show.print_message(f"its jobs are left: {problem}; delete them: {by_hand}")


async def _users(client: Client, server: Server, number: int | None) -> Sequence[str | None]:
    """Whose jobs they are.

    Raises:
        BadArgument: the token is of one user.
    """
    if number is None:
        return (await server.user_of(client, None),)
    if server.token is not None:
        me = await client.whoami()
        if me.role == "user":
            raise BadArgument(
                f"the token is of the user {me.user_id} alone: --users needs the token of an "
                "operator or a portal"
            )
    return tuple(USER.format(one) for one in range(1, number + 1))


def _read(option: str, parse: Callable[[str], T], text: str) -> T:
    try:
        return parse(text)
    except ValueError as problem:
        raise BadArgument(f"{option}: {problem}") from None


def _ask(url: str, plan: Plan) -> None:
    """Before load is put on a server of others.

    Raises:
        BadArgument: nobody can be asked.
        typer.Abort: the answer is no.
    """
    from ferryman.connection import is_this_machine

    if is_this_machine(urlsplit(url).hostname or ""):
        return
    question = f"put load on {url} ({plan.say()})?"
    if not sys.stdin.isatty():
        raise BadArgument(f"{question} --yes says so")
    typer.confirm(question, abort=True, err=True)
