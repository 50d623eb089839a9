"""What is read from outside is read once, however many remedies are weighed."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cli.harness import Run
from paths import MODELS

CONFIG = (MODELS / "llama-2-7b" / "config.json").read_bytes()


@pytest.fixture
def asked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A hub with one model; the paths it was asked for."""
    paths: list[str] = []

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(CONFIG)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its own name
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_HOME", str(folder / "hub"))
    yield paths
    server.shutdown()
    server.server_close()


def test_a_model_of_the_hub_is_fetched_once_for_all_remedies(here: Run, asked: list[str]) -> None:
    result = here("plan", "--machine", "4xA100-40GB", "--model", "some/model")
    assert 4 == result.code
    assert result.stderr.count("hint: ") > 3
    assert ["/some/model/resolve/main/config.json"] == asked
