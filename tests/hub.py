"""A Hub that runs on a thread."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import NamedTuple


class Answer(NamedTuple):
    """What it says, and how long it thinks."""

    status: int = 200
    body: str = ""
    headers: Mapping[str, str] = {}
    after_s: float = 0.0


@dataclass(kw_only=True)
class Hub:
    """What huggingface.co would say, and what it was asked."""

    server: ThreadingHTTPServer
    answers: dict[str, Answer] = field(default_factory=dict)
    asked: list[tuple[str, str | None]] = field(default_factory=list)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"


@contextmanager
def serving() -> Iterator[Hub]:
    """Run one."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            hub.asked.append((self.path, self.headers["Authorization"]))
            unknown = Answer(404, "", {"X-Error-Code": "RepoNotFound"})
            answer = hub.answers.get(self.path, unknown)
            time.sleep(answer.after_s)
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.body.encode())

        def log_message(self, *args: object) -> None:
            """Nothing: pytest's output is for failures."""

    hub = Hub(server=ThreadingHTTPServer(("127.0.0.1", 0), Handler))
    thread = Thread(target=hub.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield hub
    hub.server.shutdown()
    thread.join()
    hub.server.server_close()
