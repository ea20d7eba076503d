from __future__ import annotations

import pytest

from client_agent.report.health import CpuLoad


@pytest.fixture
def stat(tmp_path):
    path = tmp_path / "stat"

    def now(**ticks):
        names = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal", "guest")
        words = " ".join(str(ticks.get(name, 0)) for name in names)
        path.write_text(f"cpu  {words} 0\ncpu0 1 2 3\n")
        return path

    return now


def test_load_is_the_busy_share_since_the_last_call(stat):
    load = CpuLoad(stat(user=100, idle=100))
    assert load.percent() == 0.0
    stat(user=130, idle=200)
    assert load.percent() == pytest.approx(23.08)
    stat(user=230, idle=200)
    assert load.percent() == 100.0


def test_waiting_for_a_disk_is_no_load_and_guests_count_once(stat):
    load = CpuLoad(stat())
    load.percent()
    stat(user=50, guest=50, iowait=50)
    assert load.percent() == 50.0


def test_no_time_passed_or_no_such_file_is_no_load(stat, tmp_path):
    load = CpuLoad(stat(user=1))
    load.percent()
    assert load.percent() == 0.0
    assert CpuLoad(tmp_path / "missing").percent() == 0.0
