"""Every notebook of docs/notebooks runs as it stands, and has the outputs of a run."""

from pathlib import Path

import pytest

from .libraries import library_or_skip

NOTEBOOKS = sorted((Path(__file__).parents[3] / "docs" / "notebooks").glob("*.ipynb"))
LIBRARIES = {"llama_lora": ["transformers", "peft"], "resnet_cifar10": ["timm"]}


def read(path):
    return library_or_skip("nbformat").read(path, as_version=4)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path, monkeypatch, tmp_path):
    for library in LIBRARIES[path.stem]:
        library_or_skip(library)
    client = library_or_skip("nbclient")
    library_or_skip("ipykernel")
    monkeypatch.setenv("ACTCORE_QUICK", "1")  # few steps, and no download
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    client.NotebookClient(read(path), timeout=600, kernel_name="python3").execute(cwd=str(tmp_path))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_stored(path):
    cells = [cell for cell in read(path).cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in cells)
    kinds = {kind for cell in cells for output in cell.outputs for kind in output.get("data", {})}
    assert "image/png" in kinds
    assert not any(output.output_type == "error" for cell in cells for output in cell.outputs)


def test_all_notebooks_are_here():
    assert [path.stem for path in NOTEBOOKS] == sorted(LIBRARIES)
