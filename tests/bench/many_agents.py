"""``python -m tests.bench.many_agents COUNT SLOTS``: fake agents in a process of their own.

Their jobs end at once. Prints their addresses, a line each, and ends with its standard input."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack

from tests.kit.fake_agent import FakeAgent


async def main(count: int, slots: int) -> None:
    async with AsyncExitStack() as stack:
        for number in range(count):
            agent = FakeAgent(f"fake-{number}", f"fake-{number}", slots=slots)
            print(await stack.enter_async_context(agent.listening()), flush=True)
        await asyncio.to_thread(sys.stdin.read)


asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
