"""Files are removed in a thread, together."""

from __future__ import annotations

import asyncio
import threading

from client_agent.storage.folders import Folders
from shared.clock import yield_to_loop
from tests.kit.agent import numbered


async def test_a_disk_that_does_not_answer_holds_up_nobody_but_who_removes(tmp_path, monkeypatch):
    folders, answers = Folders(tmp_path, numbered()), threading.Event()
    threads: list[int] = []
    remove = folders.remove_file

    def slow(path):
        threads.append(threading.get_ident())
        answers.wait(30)
        remove(path)

    monkeypatch.setattr(folders, "remove_file", slow)
    for number in (1, 2, 3):
        folders.result(number).touch()
    removals = [asyncio.create_task(folders.remove_results([one])) for one in (1, 2, 3)]
    await yield_to_loop()  # here it would stand still
    assert not any(removal.done() for removal in removals)
    answers.set()
    await asyncio.gather(*removals)
    assert len(threads) == 3
    assert threading.get_ident() not in threads
    assert not any(folders.result(number).exists() for number in (1, 2, 3))
