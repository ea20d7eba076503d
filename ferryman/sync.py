"""The client for programs without ``async``: the same object, driven on a loop in a thread."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Concatenate, ParamSpec, Self, TypeVar, Unpack

from pydantic import PrivateAttr

from ferryman.client import Client, Ended, Result
from ferryman.defaults import DEFAULT_URL
from ferryman.errors import BadArgument
from ferryman.models.jobs import FileDoc
from ferryman.transport import AnyPath, ClientOptions
from ferryman.upload import ProgressCallback

P = ParamSpec("P")
R = TypeVar("R")


def _blocking(
    method: Callable[Concatenate[Client, P], Awaitable[R]],
) -> Callable[Concatenate[SyncClient, P], R]:
    """A method that runs the asynchronous one and waits; same arguments, same documentation."""

    @functools.wraps(method)
    def call(self: SyncClient, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._run(lambda: method(self._client, *args, **kwargs))

    return call


def _iterating(
    method: Callable[Concatenate[Client, P], AsyncGenerator[R, None]],
) -> Callable[Concatenate[SyncClient, P], Generator[R, None, None]]:
    """An iterator that takes each item from the asynchronous one."""

    @functools.wraps(method)
    def call(self: SyncClient, /, *args: P.args, **kwargs: P.kwargs) -> Generator[R, None, None]:
        items = method(self._client, *args, **kwargs)
        try:
            while True:
                try:
                    item = self._run(lambda: anext(items))
                except StopAsyncIteration:
                    return
                yield item
        finally:
            self._end(items)

    return call


def _iterating_results(
    method: Callable[Concatenate[Client, P], AsyncGenerator[Result, None]],
) -> Callable[Concatenate[SyncClient, P], Generator[SyncResult, None, None]]:
    """:func:`_iterating`, of results that can fetch more."""
    each = _iterating(method)

    @functools.wraps(method)
    def call(
        self: SyncClient, /, *args: P.args, **kwargs: P.kwargs
    ) -> Generator[SyncResult, None, None]:
        with closing(each(self, *args, **kwargs)) as results:
            yield from (SyncResult.of(result, self) for result in results)

    return call


async def _closed(items: AsyncGenerator[R, None]) -> None:
    await items.aclose()


class SyncClient:
    """A Ferryman server; see :class:`Client` for the methods, and
    :class:`~ferryman.transport.ClientOptions` for the options.

    Use it as ``with SyncClient(url) as client``. Its methods may be called from several threads.
    """

    def __init__(self, url: str = DEFAULT_URL, **options: Unpack[ClientOptions]) -> None:
        self._client = Client(url, **options)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="ferryman-sync", daemon=True
        )
        self._thread.start()
        self._run(self._client.__aenter__)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections and end the thread; twice is no error."""
        if self._loop is None or self._thread is None:
            return
        self._run(self._client.close)
        self._run(self._loop.shutdown_asyncgens)
        self._run(self._loop.shutdown_default_executor)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = self._thread = None

    @property
    def url(self) -> str:
        return self._client.url

    @property
    def retry_for(self) -> float:
        """Seconds to keep trying while the server cannot be reached."""
        return self._client.retry_for

    @retry_for.setter
    def retry_for(self, seconds: float) -> None:
        self._client.retry_for = seconds

    def _run(self, work: Callable[[], Awaitable[R]]) -> R:
        if self._loop is None:
            raise RuntimeError("not open: use `with SyncClient(…) as client`")
        if threading.current_thread() is self._thread:
            why = "called by a callback of this client, whose thread would wait for itself for ever"
            raise BadArgument(why)

        async def wait() -> R:
            return await work()

        future = asyncio.run_coroutine_threadsafe(wait(), self._loop)
        try:
            return future.result()
        except BaseException:
            # Ctrl-C in the caller's thread: the request must not go on behind its back.
            future.cancel()
            raise

    def _end(self, items: AsyncGenerator[R, None]) -> None:
        """Close an iterator. If garbage is collected in the loop's thread, that one cannot wait."""
        if self._loop is None:
            return
        if threading.current_thread() is self._thread:
            asyncio.run_coroutine_threadsafe(_closed(items), self._loop)
        else:
            self._run(items.aclose)

    submit = _blocking(Client.submit)
    status = _blocking(Client.status)
    map = _iterating_results(Client.map)

    def wait(self, job_id: int, timeout: float | None = None) -> SyncResult:
        return SyncResult.of(self._run(lambda: self._client.wait(job_id, timeout)), self)

    wait.__doc__ = Client.wait.__doc__

    events = _iterating(Client.events)
    jobs = _iterating(Client.jobs)
    log = _blocking(Client.log)
    follow_log = _iterating(Client.follow_log)
    download = _blocking(Client.download)
    save = _blocking(Client.save)
    files = _iterating(Client.files)
    fetch = _blocking(Client.fetch)
    cancel = _blocking(Client.cancel)
    retry = _blocking(Client.retry)
    delete = _blocking(Client.delete)
    bulk = _iterating(Client.bulk)
    add_schedule = _blocking(Client.add_schedule)
    schedules = _iterating(Client.schedules)
    delete_schedule = _blocking(Client.delete_schedule)
    health = _blocking(Client.health)
    troubles = _blocking(Client.troubles)
    services = _blocking(Client.services)
    usage = _blocking(Client.usage)
    reload_settings = _blocking(Client.reload_settings)
    change_service = _blocking(Client.change_service)
    forget_user = _blocking(Client.forget_user)
    agents = _blocking(Client.agents)
    change_agent = _blocking(Client.change_agent)
    create_ticket = _blocking(Client.create_ticket)
    create_link = _blocking(Client.create_link)
    login_link = _blocking(Client.login_link)
    whoami = _blocking(Client.whoami)
    create_token = _blocking(Client.create_token)
    tokens = _iterating(Client.tokens)
    revoke_token = _blocking(Client.revoke_token)
    rotate_token = _blocking(Client.rotate_token)
    audit = _iterating(Client.audit)
    all_events = _iterating(Client.all_events)
    webhook_secret = _blocking(Client.webhook_secret)


class SyncResult(Ended):
    """:class:`~ferryman.client.Result` without ``await``."""

    _client: SyncClient = PrivateAttr()

    def save(
        self, to: AnyPath, *, partial: bool = False, progress: ProgressCallback | None = None
    ) -> Path:
        """See :meth:`Result.save`."""
        return self._client.save(self.id, to, partial=partial, progress=progress)

    def files(self) -> Generator[FileDoc, None, None]:
        """See :meth:`Result.files`."""
        return self._client.files(self.id)
