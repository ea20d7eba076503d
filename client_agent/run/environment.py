"""The variables that the agent gives to an attempt. Pure."""

from __future__ import annotations

from client_agent.payloads.payload import Payload
from client_agent.sandbox.base import Ahead, Grant
from client_agent.sandbox.process.chain import OWN
from shared.files.bundles.format import META


def known_ahead(payload: Payload, grant: Grant) -> Ahead:
    """What is known of the launch before the bundle is unpacked."""
    common = {
        name: value
        for name, value in variables(payload, None, grant, "").items()
        if not name.startswith(OWN)
    }
    return Ahead(launch_argv(payload), common, payload.timeout_s, grant)


def launch_argv(payload: Payload) -> tuple[str, ...]:
    """The command inside the sandbox."""
    return ("bash", payload.entry)


def variables(
    payload: Payload, array_line: str | None, grant: Grant, folder: str
) -> dict[str, str]:
    """Those that the server's operator declared, and the agent's own, which have priority. What
    the agent's operator declared is left to the grant: it knows the host's paths.

    Args:
        array_line: the attempt's line of its array's file.
        folder: its directory, as it sees it.
    """
    declared = {name: value for name, value in payload.env.items() if name not in grant.env}
    own = {
        "FERRYMAN_JOB_ID": str(payload.job_id),
        "FERRYMAN_ATTEMPT": str(payload.try_number or payload.attempt),
        "FERRYMAN_SERVICE": payload.service,
        "FERRYMAN_CPUS": f"{payload.limits.cpus:g}",
        "FERRYMAN_MEMORY_BYTES": str(payload.limits.memory),
    }
    if payload.array is not None:
        own["FERRYMAN_ARRAY_INDEX"] = str(payload.array.index)
    if payload.meta:
        own["FERRYMAN_META"] = f"{folder}/{META}"
    if array_line is not None:
        own["FERRYMAN_ARRAY_LINE"] = array_line
    return declared | own
