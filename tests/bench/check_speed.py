"""How long `zerowiz check` takes for a thousand configs in one process."""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES, RUNS = 1000, 5
LIMIT_SECONDS = 2.0
TEMPLATES = sorted((ROOT / "templates").glob("ds_config_*.json"))


def write_configs(folder: Path) -> None:
    """The shipped configs in turn, no two alike, every tenth with a mistake."""
    for number in range(FILES):
        config = json.loads(TEMPLATES[number % len(TEMPLATES)].read_text(encoding="utf-8"))
        config["steps_per_print"] = number
        if number % 10 == 0:
            config["gradient_acumulation_steps"] = 4
        path = folder / f"ds_config_{number}.json"
        path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def seconds(folder: Path) -> float:
    """One run from start to end, the interpreter's own start included."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "zerowiz", "check", "--json", str(folder)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    taken = time.perf_counter() - start
    if len(json.loads(done.stdout)["files"]) != FILES:
        raise SystemExit(f"not every config was checked: {done.stderr}")
    return taken


def main() -> None:
    """Check them several times, print the times, fail when even the best is too slow."""
    with tempfile.TemporaryDirectory() as name:
        write_configs(Path(name))
        taken = sorted(seconds(Path(name)) for _ in range(RUNS))
    said = " ".join(f"{each:.2f}" for each in taken)
    sys.stdout.write(f"{FILES} configs, {RUNS} runs, seconds: {said} (limit {LIMIT_SECONDS})\n")
    sys.exit(taken[0] > LIMIT_SECONDS)


if __name__ == "__main__":
    main()
