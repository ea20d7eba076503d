"""A real Chromium without a window, driven by its own protocol."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from tests.kit.installed import program

_STARTED: Final = b"DevTools listening on "
_FLAGS: Final = (
    "--headless=new",
    "--no-first-run",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--password-store=basic",
    "--remote-debugging-port=0",
)


class Tab:
    """A page that is open."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._session, self._last = socket, "", 0
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.console: list[str] = []
        """What scripts and the browser itself reported there."""

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """A method of the protocol."""
        self._last += 1
        self._answers[self._last] = asyncio.get_running_loop().create_future()
        message: dict[str, Any] = {"id": self._last, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        await self._socket.send_json(message)
        answer = await self._answers[self._last]
        assert "error" not in answer, (method, answer["error"])
        return dict(answer["result"])

    async def listen(self) -> None:
        """Take what the browser sends, until it closes."""
        async for one in self._socket:
            message = json.loads(one.data)
            if "id" in message:
                self._answers.pop(message["id"]).set_result(message)
            elif message["method"] in ("Runtime.consoleAPICalled", "Log.entryAdded"):
                self.console.append(json.dumps(message["params"]))

    async def open(self) -> None:
        target = await self.call("Target.createTarget", url="about:blank")
        attached = await self.call(
            "Target.attachToTarget", targetId=target["targetId"], flatten=True
        )
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "DOM"):
            await self.call(f"{domain}.enable")

    async def goto(self, url: str) -> None:
        """Open the page, and wait until it is whole."""
        answer = await self.call("Page.navigate", url=url)
        assert "errorText" not in answer, (url, answer)
        await self.run(
            "new Promise(done => document.readyState == 'complete' ? done() :"
            " addEventListener('load', () => done()))"
        )

    async def run(self, script: str) -> Any:
        """The value of an expression in the page; of a promise, what it becomes."""
        answer = await self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, (script, answer["exceptionDetails"], self.console)
        return answer["result"].get("value")

    async def until(self, condition: str) -> None:
        """Wait, inside the page, until an expression is true after some change of it."""
        await self.run(
            f"""new Promise(done => {{
                const look = () => ({condition}) && (watch.disconnect(), done());
                const watch = new MutationObserver(look);
                const all = {{childList: true, subtree: true, attributes: true}};
                watch.observe(document, {{...all, characterData: true}});
                look();
            }})"""
        )

    async def choose_files(self, selector: str, *files: Path) -> None:
        """As a person does in the dialogue of a file field."""
        root = (await self.call("DOM.getDocument"))["root"]["nodeId"]
        node = await self.call("DOM.querySelector", nodeId=root, selector=selector)
        paths = [str(file) for file in files]
        await self.call("DOM.setFileInputFiles", nodeId=node["nodeId"], files=paths)


@asynccontextmanager
async def chromium(profile: Path) -> AsyncIterator[Tab]:
    """A browser with one tab, until the end."""
    # As root it cannot make its sandbox; what it opens here is our own.
    flags = [*_FLAGS, f"--user-data-dir={profile}", *(["--no-sandbox"] * (os.geteuid() == 0))]
    process = await asyncio.create_subprocess_exec(
        program("chromium"),
        *flags,
        env={**os.environ, "HOME": str(profile.parent), "http_proxy": "", "https_proxy": ""},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(60):
            lines = []
            async for line in process.stderr:
                lines.append(line)
                if line.startswith(_STARTED):
                    break
            else:
                pytest.fail(f"chromium did not start: {b''.join(lines).decode()}")
        rest = asyncio.create_task(process.stderr.read())  # or its pipe fills up
        address = line.removeprefix(_STARTED).decode().strip()
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(address, max_msg_size=0) as socket,
        ):
            tab = Tab(socket)
            listening = asyncio.create_task(tab.listen())
            await tab.open()
            yield tab
            listening.cancel()
        rest.cancel()
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
