"""At a terminal a wait for the hub is seen while it lasts, and is gone afterwards."""

import json
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from cli.harness import Terminal
from paths import ROOT

CONFIG = (ROOT / "tests" / "models" / "qwen2.5-0.5b" / "config.json").read_bytes()
PLAN = ("plan", "--machine", "1xH100-80GB", "--model", "someone/slow")


@pytest.fixture
def slow_hub() -> Iterator[str]:
    """A hub that answers after two seconds."""

    class Slow(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            time.sleep(2)
            self.send_response(200)
            self.send_header("Content-Length", str(len(CONFIG)))
            self.end_headers()
            self.wfile.write(CONFIG)

        def log_message(self, *_: object) -> None:
            """Silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_wait_for_the_hub_is_shown_while_it_lasts(
    terminal: Callable[..., Terminal], slow_hub: str
) -> None:
    asks = {"HF_ENDPOINT": slow_hub, "HF_HUB_OFFLINE": ""}
    person = terminal(*PLAN, **asks)
    program = terminal(*PLAN, "--json", **asks)
    dumb = terminal(*PLAN, TERM="dumb", **asks)

    person.wait_for("reading config.json of `someone/slow`  0:0")
    assert 0 == person.end()
    assert "reading" not in person.text
    assert "Chosen" in person.text

    assert 0 == program.end()
    assert b"reading" not in program.received
    shown = program.received.decode()
    assert json.loads(shown[shown.index("{") : shown.rindex("}") + 1])["strategies"]

    assert 0 == dumb.end()
    assert b"\x1b" not in dumb.received
    assert dumb.text.count("reading config.json") == 1
