"""The notebook of the documents runs from its first cell to its last."""

import json
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from paths import ROOT

NOTEBOOK = ROOT / "docs" / "notebooks" / "plan.ipynb"


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A kernel of this very interpreter, which finds this checkout."""
    folder = tmp_path / "kernels" / "here"
    folder.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": argv, "display_name": "here", "language": "python"}
    (folder / "kernel.json").write_text(json.dumps(spec), encoding="utf-8")
    for name, value in {
        "JUPYTER_PATH": str(tmp_path),
        "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime"),
        "IPYTHONDIR": str(tmp_path / "ipython"),
        "PYTHONPATH": str(ROOT),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }.items():
        monkeypatch.setenv(name, value)
    return "here"


# zmq and asyncio of the client leave sockets to the end of the process.
@pytest.mark.filterwarnings("default")
def test_the_notebook_runs_and_shows_the_table(kernel: str, tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(
        notebook, kernel_name=kernel, timeout=60, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    shown = "".join(output["data"].get("text/html", "") for output in outputs if "data" in output)
    assert "<b>zero3</b>" in shown
    printed = "".join(output["text"] for output in outputs if output.output_type == "stream")
    assert ["1024", "2048", "4096", "8192"] == [line.split()[0] for line in printed.splitlines()]


def test_the_committed_notebook_has_no_outputs() -> None:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert [] == [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
