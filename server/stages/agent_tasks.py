"""Tasks for agents. Those of one agent are cancelled when its connection is replaced."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Iterator
from typing import Any, Generic, TypeVar

import structlog

log = structlog.get_logger()
Key = TypeVar("Key", bound=Hashable)


class AgentTasks(Generic[Key]):
    """One task for each key. ``failed``: the event that is logged when one raises."""

    def __init__(self, failed: str) -> None:
        self._failed = failed
        self._tasks: dict[Key, tuple[str, asyncio.Task[None]]] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._tasks

    def __iter__(self) -> Iterator[Key]:
        return iter(self._tasks)

    def start(self, agent: str, key: Key, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start a task for what the agent has, or will get. The key must not be in use."""
        self._tasks[key] = (agent, asyncio.create_task(self._run(key, work)))

    async def _run(self, key: Key, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except Exception:
            log.exception(self._failed, key=str(key))
        finally:
            del self._tasks[key]

    async def stop(self, agent: str | None = None) -> None:
        """Cancel the tasks of the agent (None: of all agents)."""
        stopped = {key: task for key, (name, task) in self._tasks.items() if agent in (None, name)}
        for task in stopped.values():
            task.cancel()
        await asyncio.gather(*stopped.values(), return_exceptions=True)
        for key in stopped:
            self._tasks.pop(key, None)  # a task that had not started
