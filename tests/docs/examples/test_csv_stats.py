from __future__ import annotations

import csv
import statistics
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"


def table(path: Path) -> dict[str, dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return {row["column"]: row for row in csv.DictReader(file)}


def test_the_statistics_of_the_shipped_file_are_those_of_the_statistics_module(
    run_example, tmp_path
):
    ended = run_example("csv-stats")
    assert ended.returncode == 0, ended.stderr
    found = table(tmp_path / "job" / "measurements.stats.csv")
    with (EXAMPLES / "csv-stats" / "measurements.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(found) == list(rows[0])
    for column in ("sample", "temperature_K", "yield"):
        numbers = [float(row[column]) for row in rows if row[column] not in ("", "NA")]
        line = found[column]
        assert int(line["count"]) == len(numbers)
        assert int(line["missing"]) == len(rows) - len(numbers)
        assert float(line["mean"]) == pytest.approx(statistics.mean(numbers), rel=1e-9)
        assert float(line["sd"]) == pytest.approx(statistics.stdev(numbers), rel=1e-9)
        assert float(line["min"]) == min(numbers)
        assert float(line["max"]) == max(numbers)
    assert int(found["temperature_K"]["missing"]) > 0
    assert int(found["note"]["text"]) == sum(1 for row in rows if row["note"])
    assert found["note"]["mean"] == ""


def test_quotes_line_ends_of_windows_blank_lines_and_a_byte_order_mark_are_read(
    run_example, tmp_path
):
    text = '\ufeffplain,"with, comma","a ""quote"""\r\n1,-2e3,x\r\n\r\n 3 ,NaN,"1,5"\r\n'
    assert run_example("csv-stats", {"measurements.csv": text}).returncode == 0
    found = table(tmp_path / "job" / "measurements.stats.csv")
    assert list(found) == ["plain", "with, comma", 'a "quote"']
    assert list(found["plain"].values())[1:] == ["2", "0", "0", "2", "1.414213562", "1", "3"]
    assert list(found["with, comma"].values())[1:] == ["1", "1", "0", "-2000", "", "-2000", "-2000"]
    assert list(found['a "quote"'].values())[1:] == ["0", "0", "2", "", "", "", ""]


def test_a_small_spread_around_a_large_mean_is_not_cancelled_away(run_example, tmp_path):
    text = "x\n" + "\n".join(f"{10**9 + offset}" for offset in (4, 7, 13, 16)) + "\n"
    assert run_example("csv-stats", {"measurements.csv": text}).returncode == 0
    found = table(tmp_path / "job" / "measurements.stats.csv")["x"]
    assert float(found["sd"]) == pytest.approx(statistics.stdev([4, 7, 13, 16]), rel=1e-9)


def test_every_file_gets_its_own_statistics(run_example, tmp_path):
    ended = run_example("csv-stats", {"other.csv": "y\n1\n2\n"})
    assert ended.returncode == 0
    assert table(tmp_path / "job" / "other.stats.csv")["y"]["mean"] == "1.5"
    assert ended.stdout.splitlines()[-1] == "::progress value=2,total=2::other.csv"


def test_a_line_with_too_few_cells_is_named(run_example):
    ended = run_example("csv-stats", {"measurements.csv": "a,b\n1,2\n3\n"})
    assert ended.returncode == 2
    assert ended.stderr == "measurements.csv:3: 1 cells, but 2 column names\n"


def test_a_bundle_without_a_table_says_what_to_upload(run_example):
    ended = run_example("csv-stats", {"measurements.csv": None})
    assert ended.returncode == 2
    assert "no CSV file here" in ended.stderr
