"""The options of ``ferryman submit`` that ask for something: each is a field of the upload."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import typer


def _option(name: str, metavar: str, about: str) -> Any:
    return typer.Option(name, metavar=metavar, help=about)


Text: TypeAlias = str | None
Service = Annotated[
    str,
    typer.Option(
        *("--service", "-s"),
        metavar="NAME",
        envvar="FERRYMAN_SERVICE",
        help="Which kind of work.",
    ),
]
User = Annotated[
    Text,
    typer.Option(
        *("--user", "-u"),
        metavar="NAME",
        envvar="FERRYMAN_USER",
        help="Whose job it is; default: the token's, or else your login name.",
    ),
]
Name = Annotated[Text, _option("--name", "NAME", "A name, shown in lists.")]
Tag = Annotated[list[str] | None, _option("--tag", "TAG", "For `list --tag`; may be repeated.")]
Timeout = Annotated[
    Text,
    _option(
        "--timeout",
        "DURATION",
        "Wall time of an attempt, such as 1h30m; default and most: the service's. 0s: no limit, "
        "where the service has none.",
    ),
]
Memory = Annotated[Text, _option("--memory", "SIZE", "Memory, such as 512MB.")]
Cpus = Annotated[Text, _option("--cpus", "NUMBER", "CPUs, such as 2 or 0.5.")]
Pids = Annotated[Text, _option("--pids", "NUMBER", "Processes and threads.")]
Disk = Annotated[Text, _option("--disk", "SIZE", "Disk, such as 1GiB.")]
QueueTimeout = Annotated[Text, _option("--queue-timeout", "DURATION", "Longest wait for a start.")]
HeartbeatTimeout = Annotated[
    Text,
    _option("--heartbeat-timeout", "DURATION", "Stop it when it says nothing for so long."),
]
ExpiresAfter = Annotated[
    Text, _option("--expires-after", "DURATION", "How long it is kept after its end.")
]
NotBefore = Annotated[
    Text, _option("--not-before", "TIME", "When it may start: 2030-01-31T09:00:00Z, or 'in 2h'.")
]
Priority = Annotated[
    int | None, _option("--priority", "NUMBER", "-100 to 100, among your own jobs; 0 is usual.")
]
Meta = Annotated[Text, _option("--meta", "JSON", "A JSON object, shown with the job.")]
Retries = Annotated[
    int | None,
    _option(
        "--retries",
        "NUMBER",
        "How often a failure is tried again; default: the service's, usually 0.",
    ),
]
RetryDelays = Annotated[
    Text, _option("--retry-delays", "LIST", "Before each retry, such as 10s,1m; the last repeats.")
]
Backoff = Annotated[
    Text,
    _option("--backoff", "KIND", "constant, linear, exponential or exponential_jitter delays."),
]
RetryDelay = Annotated[Text, _option("--retry-delay", "DURATION", "The base of --backoff.")]
MaxRetryDelay = Annotated[
    Text, _option("--max-retry-delay", "DURATION", "The longest delay of --backoff.")
]
RetryOn = Annotated[
    Text,
    _option(
        "--retry-on",
        "LIST",
        "Reasons and exit codes that are retried, such as timeout,exit:3; default: the service's, "
        "which are exit_code,timeout,heartbeat_timeout unless its operator says others.",
    ),
]
NoRetryOn = Annotated[
    Text, _option("--no-retry-on", "LIST", "Those that are not retried all the same.")
]
Array = Annotated[Text, _option("--array", "INDICES", "A child for each, as in 0-99 or 1,5,9-12.")]
ArrayFile = Annotated[
    Text, _option("--array-file", "FILE", "A child for each line of this file of the bundle.")
]
MaxParallel = Annotated[
    int | None, _option("--max-parallel", "NUMBER", "Most children under way at once.")
]
BatchPolicy = Annotated[
    Text,
    _option("--batch-policy", "POLICY", "wait_all, or fail_fast: the first failure ends the rest."),
]
After = Annotated[Text, _option("--after", "IDS", "Start when these jobs have completed: 17,18.")]
Outputs = Annotated[
    Text,
    _option("--outputs", "PATTERNS", "What the result is to have, such as 'out/*.csv,best.pdb'."),
]
ResultFiles = Annotated[
    Text,
    _option("--result-files", "WHICH", "all, or changed: without the files that were sent."),
]
InputsFrom = Annotated[
    Text, _option("--inputs-from", "IDS", "Likewise, with their result files below inputs/ID/.")
]
CallbackUrl = Annotated[
    Text, _option("--callback-url", "URL", "Where the server posts a webhook when it has ended.")
]
