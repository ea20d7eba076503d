"""What run.sh does on a warm server, and jobs that have done it."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tests.kit.fake_sandbox import FakeProcess
from tests.kit.warm import Place, Script


def leaving(
    files: Mapping[str, bytes] = MappingProxyType({}), *, stdout: bytes = b"", code: int = 0
) -> Script:
    """It writes these and ends."""

    def script(process: FakeProcess) -> None:
        for name, content in files.items():
            process.write(name, content)
        process.log(stdout)
        process.finish(code)

    return script


async def done(place: Place, script: Script, **fields: Any) -> int:
    """A job that has ended after its run.sh did this."""
    place.does(script)
    job_id = await place.upload(**fields)
    await place.job(job_id)
    return job_id
