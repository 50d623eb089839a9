"""Let the tests beside this file import the harness that starts real ranks."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "ranks"))
