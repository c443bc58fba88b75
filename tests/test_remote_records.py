"""Records on S3, against a real S3-speaking server."""

from pathlib import Path

import config
import pytest
from harness import record_file, records, remote_records
from harness.data import storage
from harness.engine_metrics import SERIES
from harness.preflight import disk

URL = "s3://data/runs/results"


@pytest.mark.usefixtures("s3_endpoint")
def test_a_record_and_its_series_written_to_s3_are_fetched_once_as_lines_and_files(tmp_path: Path) -> None:
    first, second = (records.new(Path("naive-batch.py")) | {"started_at": f"2026-01-0{day}T00:00:00"} for day in (2, 1))
    sample = dict.fromkeys(SERIES, 0) | {"engine": "a", "t_s": 1.0}
    records.append(first, [sample], URL)
    assert records.append(second, [], URL) == f"{URL}/records/{second['run_id']}.json"

    assert remote_records.fetch(URL, tmp_path) == (2, 2)
    assert record_file.load(tmp_path) == [second, first]  # oldest first
    assert [file.stem for file in (tmp_path / "timeseries").iterdir()] == [first["run_id"]]
    assert remote_records.fetch(URL, tmp_path) == (0, 2)


@pytest.mark.usefixtures("s3_endpoint")
def test_a_results_path_on_s3_that_cannot_be_written_is_refused_before_engines_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(config, "RESULTS_PATH", URL)
    assert not [problem for problem in disk.problems(0) if "RESULTS_PATH" in str(problem)]
    monkeypatch.setattr(config, "RESULTS_PATH", "s3://absent/results")
    (problem,) = [problem for problem in disk.problems(0) if "RESULTS_PATH" in str(problem)]
    assert "expected a folder for records that can be written, found s3://absent/results" in str(problem)


@pytest.mark.usefixtures("s3_endpoint")
def test_fetching_from_where_nothing_is_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(config, "RESULTS_PATH", str(tmp_path))
    assert remote_records.main(["s3://data/nothing"]) == 1
    assert capsys.readouterr().err.startswith("expected records under s3://data/nothing/records, found none")
    assert remote_records.main(["s3://absent/results"]) == 1
    assert "s3://absent/results at endpoint" in capsys.readouterr().err
    assert remote_records.main(["results"]) == 2


@pytest.mark.usefixtures("s3_endpoint")
@pytest.mark.parametrize(
    ("content", "said"), [(b'{"schema": 1, "run', "not JSON"), (b'{"schema": 1}', "expected a record with run_id")]
)
def test_an_object_that_is_no_record_is_named_and_nothing_is_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], content: bytes, said: str
) -> None:
    monkeypatch.setattr(config, "RESULTS_PATH", str(tmp_path))
    records.append(records.new(Path("naive-batch.py")), [], URL)
    files, folder = storage.filesystem(URL)
    with files.open_output_stream(f"{folder}/records/bad.json") as stream:
        stream.write(content)
    assert remote_records.main([URL]) == 1
    assert capsys.readouterr().err.startswith(f"{URL}/records/bad.json: {said}")
    assert record_file.load(tmp_path) == []
