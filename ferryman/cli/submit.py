"""``ferryman submit``, thin over the SDK."""

from __future__ import annotations

import sys
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer

from ferryman.cli import show, submit_options
from ferryman.cli.conclusion import conclude
from ferryman.cli.exits import exit_code_of_job
from ferryman.cli.options import CancelOnInterrupt, Json, Output, Quiet, Server, on_server, run
from ferryman.cli.results import STDOUT, check_stdout, fetch, print_zip


@on_server
def submit(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH", hidden=True),  # the help would show a type of Python's
    ],
    service: submit_options.Service,
    user: submit_options.User = None,
    name: submit_options.Name = None,
    tag: submit_options.Tag = None,
    timeout: submit_options.Timeout = None,
    memory: submit_options.Memory = None,
    cpus: submit_options.Cpus = None,
    pids: submit_options.Pids = None,
    disk: submit_options.Disk = None,
    queue_timeout: submit_options.QueueTimeout = None,
    heartbeat_timeout: submit_options.HeartbeatTimeout = None,
    expires_after: submit_options.ExpiresAfter = None,
    not_before: submit_options.NotBefore = None,
    priority: submit_options.Priority = None,
    meta: submit_options.Meta = None,
    retries: submit_options.Retries = None,
    retry_delays: submit_options.RetryDelays = None,
    backoff: submit_options.Backoff = None,
    retry_delay: submit_options.RetryDelay = None,
    max_retry_delay: submit_options.MaxRetryDelay = None,
    retry_on: submit_options.RetryOn = None,
    no_retry_on: submit_options.NoRetryOn = None,
    array: submit_options.Array = None,
    array_file: submit_options.ArrayFile = None,
    max_parallel: submit_options.MaxParallel = None,
    batch_policy: submit_options.BatchPolicy = None,
    after: submit_options.After = None,
    inputs_from: submit_options.InputsFrom = None,
    callback_url: submit_options.CallbackUrl = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            "--exclude",
            "-x",
            metavar="PATTERN",
            help="Leave out what fits, as in .gitignore: '*.tmp', 'build/'; may be repeated.",
        ),
    ] = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--everything",
            help="Leave out nothing else: no version control, former results, .ferrymanignore.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print sizes and names of what would be sent.")
    ] = False,
    outputs: submit_options.Outputs = None,
    result_files: submit_options.ResultFiles = None,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait", "-w", help="Follow it to its end; the exit code is then the job's own."
        ),
    ] = False,
    cancel_on_interrupt: CancelOnInterrupt = False,
    output: Output = None,
    idempotency_key: Annotated[
        str | None,
        typer.Option(
            "--idempotency-key",
            metavar="KEY",
            help="The same bundle under the same key is one job, however often it is sent.",
        ),
    ] = None,
    quiet: Quiet = False,
    json: Json = False,
    *,
    server: Server,
) -> None:
    """Send a bundle; print the job's number.

    PATH is a folder (what is in it is sent), files (by base name), or one .zip, .tar or .tar.gz.
    There must be a run.sh. Of a folder, .git and the like, former results, and what its
    .ferrymanignore names are left out.

    Limits can only be lower than the service's. With --wait, states and times are printed
    on stderr, and the exit code is the job's own (timeout: 124, cancelled: 143). --output implies
    --wait and fetches the result of a job that completed.
    """
    import asyncio

    from ferryman.cli.selection import select, show_selection
    from ferryman.cli.waiting import wait_for
    from ferryman.download import target_path

    if output == STDOUT:
        check_stdout(json=json)
    elif output is not None:
        target_path(output, "")  # fails now, not in an hour, if the folder cannot be made

    selection = select(paths, exclude or (), everything=everything)
    if dry_run:
        show_selection(selection, json=json)
        return
    if not (quiet or json):
        for line in selection.lines():
            show.print_message(line)
    wanted: Any = {
        "timeout": timeout,
        "memory": memory,
        "cpus": cpus,
        "pids": pids,
        "disk": disk,
        "queue_timeout": queue_timeout,
        "heartbeat_timeout": heartbeat_timeout,
        "expires_after": expires_after,
        "not_before": not_before,
        "priority": priority,
        "meta": meta,
        "retries": retries,
        "retry_delays": retry_delays,
        "backoff": backoff,
        "retry_delay": retry_delay,
        "max_retry_delay": max_retry_delay,
        "retry_on": retry_on,
        "no_retry_on": no_retry_on,
        "array": array,
        "array_file": array_file,
        "max_parallel": max_parallel,
        "batch_policy": batch_policy,
        "after": after,
        "inputs_from": inputs_from,
        "callback_url": callback_url,
        "outputs": outputs,
        "result_files": result_files,
    }

    async def work() -> int:
        async with server.client() as client:
            whose = await server.user_of(client, user)
            try:
                with show.progress_bar("sending", quiet=quiet) as on_progress:
                    accepted = await client.submit(
                        selection.files,
                        service=service,
                        user=whose,
                        name=name,
                        tags=tag or (),
                        idempotency_key=idempotency_key,
                        progress=on_progress,
                        **wanted,
                    )
            except asyncio.CancelledError:
                show.print_error("interrupted before the server had answered: there may be no job")
                raise
            following = wait or output is not None
            if output == STDOUT:
                show.print_message(f"job {accepted.id}")
            elif not json:
                # Alone on its line for scripts; a person would wonder what the number means.
                typer.echo(f"job {accepted.id}" if sys.stdout.isatty() else accepted.id)
            elif not following:
                typer.echo(dumps(asdict(accepted), indent=2))
            if not following:
                if not quiet:
                    for warning in () if json else accepted.warnings:
                        show.print_message(f"warning: {warning}")
                    show.print_message(
                        f"job {accepted.id} is accepted; follow it: "
                        + server.command(f"status {accepted.id} --wait")
                    )
                return 0
            (job,) = await wait_for(
                client, server, [accepted.id], quiet=quiet, cancel=cancel_on_interrupt
            )
            if json:
                show.print_json(job)
            elif not quiet:
                for warning in job.warnings:
                    show.print_message(f"warning: {warning}")
            if job.status == "Completed" and output is not None:
                if output == STDOUT:
                    await print_zip(client, job.id, quiet=quiet)
                else:
                    await fetch(client, job.id, output, quiet=quiet)
            else:
                conclude(job, server, quiet=quiet)
            return exit_code_of_job(job)

    run(work())
