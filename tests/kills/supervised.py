"""Supervise a command as `zerowiz launch` does: FOLDER RANKS GRACE_S COMMAND..."""

import json
import os
import signal
import sys
from pathlib import Path

from zerowiz.core.structs import encode
from zerowiz.emit.job import Watch, supervise


def say(text: str) -> None:
    """Pass on what a person would read."""
    sys.stderr.write(f"{text}\n")


def main() -> None:
    """Run the command to its end, write how it ended, and leave with its status."""
    # A shell without job control has what it starts in the background ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    folder, ranks, grace_s, *argv = sys.argv[1:]
    watch = Watch(
        folder=Path(folder),
        ranks=int(ranks),
        local_ranks=tuple(range(int(ranks))),
        grace_s=float(grace_s),
        stopped_s=float(os.environ.get("STAND_IN_STOPPED_S", "25")),
        silent_s=float(os.environ.get("STAND_IN_SILENT_S", "120")),
    )
    end = supervise(argv, os.environ, watch, notice=say)
    content = json.dumps(encode(end), indent=2)
    Path(folder).with_suffix(".json").write_text(content, encoding="utf-8")
    sys.exit(end.status)


if __name__ == "__main__":
    main()
