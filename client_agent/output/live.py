"""What one attempt has said so far: by its commands, and by printing anything at all."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, assert_never

from client_agent.output import commands
from client_agent.output.commands import AddNotice, Command, Heartbeat, Malformed, SetOutput
from client_agent.sandbox.base import Ended, Process
from shared.clock import SECOND, Clock, iso, yield_to_loop
from shared.units.durations import say_duration
from shared.wire import LiveDoc, Notice, Progress, Reason, RetryLater

MAX_LINE: Final = 1 << 15
"""A longer line is no command."""
_MARK: Final = b"::"


class CommandLines:
    """Takes a stream in pieces, however it was split.

    Args:
        on_line: called with each complete line that begins with ``::`` and has at most MAX_LINE
            bytes, without its end.
    """

    def __init__(self, on_line: Callable[[bytes], None]) -> None:
        self._on_line = on_line
        self._begun: bytes | None = b""
        """What has come of a line that may be a command; None: the line is none."""

    def feed(self, data: bytes) -> int:
        """Returns how many lines were handed on."""
        start = handed_on = 0
        if self._begun is None or self._begun:
            start = data.find(b"\n") + 1
            if not start:
                self._keep(None if self._begun is None else self._begun + data)
                return 0
            if self._begun is not None:
                handed_on = self._hand_on(self._begun + data[: start - 1])
        stop = data.rfind(b"\n", start) + 1 or start
        found = _next_line(data, start, stop)
        while found >= 0:
            end = data.index(b"\n", found)
            handed_on += self._hand_on(data[found:end])
            found = _next_line(data, end + 1, stop)
        self._keep(data[stop:])
        return handed_on

    def end(self) -> None:
        """The stream has ended; its last line may have no end."""
        if self._begun is not None:
            self._hand_on(self._begun)
        self._begun = b""

    def _hand_on(self, line: bytes) -> int:
        if not line.startswith(_MARK) or len(line) > MAX_LINE:
            return 0
        self._on_line(line.removesuffix(b"\r"))
        return 1

    def _keep(self, line: bytes | None) -> None:
        """Keep the last line until its end comes, if it may be a command."""
        may_be = line is not None and len(line) <= MAX_LINE and line[:2] in (b"", b":", _MARK)
        self._begun = line if may_be else None


def _next_line(data: bytes, start: int, stop: int) -> int:
    """Where the next line with the mark begins, from ``start``, the start of a line; -1: nowhere.

    Args:
        stop: all lines before it are complete.
    """
    if start < stop and data.startswith(_MARK, start):
        return start
    found = data.find(b"\n::", start, stop)
    return -1 if found < 0 else found + 1


MAX_NOTICES: Final = 100
"""That run.sh may give. Those of the agent about its commands come on top."""
MAX_NOTICE_BYTES: Final = 1 << 15
"""Of all these notices."""
MAX_OUTPUTS: Final = 100
MAX_OUTPUT_BYTES: Final = 1 << 16
"""Of all names and values."""
_SHOWN: Final = 80
"""Characters of a line that is not understood."""


class LiveOutput:
    """Implements :class:`client_agent.sandbox.base.OutputListener`, and keeps the latest values.

    Args:
        on_change: called when :meth:`doc` has become another one: with True for what a command
            said, with False for other output, the first since the last :meth:`doc`.

    Attributes:
        ended: it runs no more, and its logs are complete.
        last_sign: monotonic time of its latest output, or of its start.
        retry_later: what it asked for.
    """

    def __init__(self, clock: Clock, on_change: Callable[[bool], None] = lambda _: None) -> None:
        self.ended = False
        self.last_sign = clock.monotonic()
        self.retry_later: RetryLater | None = None
        self._clock, self._on_change = clock, on_change
        self._lines = CommandLines(self._on_line)
        self._read: Counter[str] = Counter()
        """Stream -> bytes."""
        self._told = self._unreported = self._news = False
        self._progress: Progress | None = None
        self._message = ""
        self._output: dict[str, str] = {}
        self._json: set[str] = set()
        """Names of values that are JSON."""
        self._output_bytes = 0
        self._notices: list[Notice] = []
        self._given = self._given_bytes = 0
        """Of the notices of run.sh."""
        self._problems: set[str] = set()
        """Kinds of problems of which the agent has given a notice, one each."""
        self._followers: dict[asyncio.Event, str] = {}
        """Event of one who follows a log -> its stream."""

    def start(self) -> None:
        """run.sh starts now."""
        self.last_sign = self._clock.monotonic()
        self._unreported = False

    def on_output(self, stream: str, data: bytes) -> int:
        self.last_sign = self._clock.monotonic()
        if not data:
            return 0
        self._read[stream] += len(data)
        count = self._lines.feed(data) if stream == "stdout" else 0
        if self._news:
            self._news, self._told = False, True
            self._on_change(True)
        elif not self._unreported:
            self._unreported = True
            self._on_change(False)
        return count

    def on_stored(self, stream: str) -> None:
        for event, followed in self._followers.items():
            if followed == stream:
                event.set()

    def end(self) -> None:
        """It runs no more, and its output was read to its end."""
        self._lines.end()
        self._told = self._told or self._news
        self.ended = True
        for event in self._followers:
            event.set()

    def doc(self) -> LiveDoc:
        """The values now."""
        self._told, self._unreported = True, False
        silent_s = self._clock.monotonic() - self.last_sign
        sign_at = self._clock.now() - round(silent_s * SECOND)
        return LiveDoc(
            progress=self._progress,
            message=self._message,
            output=dict(self._output),
            json_outputs=sorted(self._json),
            heartbeat_at=iso(sign_at) if self._read else None,
            notices=list(self._notices),
            stdout_bytes=self._read["stdout"],
            stderr_bytes=self._read["stderr"],
        )

    def doc_if_any(self) -> LiveDoc | None:
        """The values now; None: no command has said anything, and no :meth:`doc` was made: most
        jobs are short and say nothing, and cost nothing."""
        return self.doc() if self._told else None

    @contextmanager
    def followed(self, stream: str) -> Iterator[asyncio.Event]:
        """An event that is set whenever more of that log is stored, and at the end."""
        event = asyncio.Event()
        self._followers[event] = stream
        try:
            yield event
        finally:
            del self._followers[event]

    def _on_line(self, line: bytes) -> None:
        try:
            command = commands.parse(line)
            if command is None:
                return
            self._apply(command)
        except Malformed as problem:
            if "malformed" not in self._problems:
                shown = commands.plain(line[:_SHOWN].decode(errors="replace"))
                more = "…" if len(line) > _SHOWN else ""
                self._problem("malformed", f"a line was ignored: {shown}{more} ({problem})")
        self._news = True

    def _apply(self, command: Command) -> None:
        match command:
            case commands.SetProgress():
                self._progress, self._message = command.progress, command.message
            case AddNotice():
                self._give(command)
            case SetOutput():
                self._set_output(command)
            case RetryLater():
                self.retry_later = command
            case Heartbeat():
                pass
            case _:
                assert_never(command)

    def _give(self, notice: AddNotice) -> None:
        said = (notice.text, notice.event, *notice.fields, *notice.fields.values())
        size = sum(len(text.encode()) for text in said)
        if self._given == MAX_NOTICES:
            text = f"more than {MAX_NOTICES} notices: the rest is only in the log"
            self._problem("notices", text)
        elif self._given_bytes + size > MAX_NOTICE_BYTES:
            text = f"notices of more than {MAX_NOTICE_BYTES} bytes: the rest is only in the log"
            self._problem("notices", text)
        else:
            self._given += 1
            self._given_bytes += size
            self._notice(notice)

    def _set_output(self, command: SetOutput) -> None:
        name, value = command.name, command.value
        before = self._output.get(name)
        size = len(value.encode()) + (len(name) if before is None else -len(before.encode()))
        if before is None and len(self._output) == MAX_OUTPUTS:
            self._problem("outputs", f"output {name} is ignored: there are {MAX_OUTPUTS} names")
        elif self._output_bytes + size > MAX_OUTPUT_BYTES:
            self._problem(
                "output_bytes",
                f"output {name} is ignored: all may have {MAX_OUTPUT_BYTES} bytes together",
            )
        else:
            self._output[name] = value
            self._output_bytes += size
            (self._json.add if command.is_json else self._json.discard)(name)

    def _notice(self, one: AddNotice) -> None:
        at, fields = iso(self._clock.now()), dict(one.fields)
        self._notices.append(
            Notice(level=one.level, text=one.text, at=at, event=one.event, fields=fields)
        )

    def _problem(self, kind: str, text: str) -> None:
        if kind not in self._problems:
            self._problems.add(kind)
            self._notice(AddNotice("warning", text))


_LEAST_S: Final = 0.01


async def run_watched(
    process: Process, output: LiveOutput, timeout_s: float, clock: Clock
) -> Ended:
    """Open its gate, and return how it ended.

    Args:
        timeout_s: longest silence; 0: any.
    """
    output.start()
    process.go()
    if not timeout_s:
        return await process.wait()
    watch = asyncio.create_task(end_if_silent(process, output, timeout_s, clock))
    try:
        return await process.wait()
    finally:
        watch.cancel()


async def end_if_silent(
    process: Process, output: LiveOutput, timeout_s: float, clock: Clock
) -> None:
    """Wait until nothing was read of it for so long, then stop it, as at a timeout. Time in which
    the agent did not read its output does not count."""
    while True:
        left = output.last_sign + timeout_s - clock.monotonic()
        if left > 0:
            await clock.sleep(max(left, _LEAST_S))
            continue
        await yield_to_loop()  # if the agent itself stood still, it reads first what has come
        if process.output_paused:
            output.last_sign = clock.monotonic()
        elif clock.monotonic() - output.last_sign >= timeout_s:
            silent = say_duration(clock.monotonic() - output.last_sign)
            process.stop(
                Reason.HEARTBEAT_TIMEOUT,
                f"stopped because it wrote nothing to stdout or stderr for {silent}; "
                f"its heartbeat timeout is {say_duration(timeout_s)}",
            )
            return
