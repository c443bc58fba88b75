"""generate_data.ipynb, run as a user runs it, at a small size."""

from pathlib import Path

import nbformat
import pytest
from harness.data import dataset
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[1] / "benchmarking/vllm/generate_data.ipynb"


def test_the_notebook_makes_the_five_datasets(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    knobs = {"MODEL_NAME": model_folder, "DATASETS_PATH": tmp_path, "DATASET_ROWS": 4500}
    for name, value in knobs.items():
        monkeypatch.setenv(f"BENCH_{name}", str(value))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": NOTEBOOK.parent}}).execute()
    made = {path.name: dataset.read_manifest(path) for path in tmp_path.glob("*.parquet")}
    prefixes = {"8": 8, "64": 64, "512": 512, "4096": 4096}
    expected = {f"4500_0-5_{name}.parquet": (count, 256, 256) for name, count in prefixes.items()}
    expected["4500_0.parquet"] = (0, 0, 512)
    for name, manifest in made.items():
        assert manifest is not None
        request = manifest["request"]
        assert (request["prefixes"], request["prefix_len"], request["suffix_len"]) == expected[name]
        assert (request["seed"], request["sampler"], manifest["rows"]) == (42, "words", 4500)
        batches = dataset.read_batches(tmp_path / name, ["id", "prompt"])
        assert dataset.fingerprint(batches) == manifest["fingerprint"]
    assert set(made) == set(expected)


def test_the_notebook_is_committed_without_outputs() -> None:
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    assert not [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")]
