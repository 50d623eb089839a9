"""Time a plan for a script of one file, for one whose imports reach 25,000 lines, and beside 10,000 files.

Run with `make bench`. Whole processes, in turn; the machine's other work slows all, so the seconds of
CPU stand beside those of the wall.
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUNS = 9
MODULES, FILES = 50, 10_000
PLAN = (
    *(sys.executable, "-m", "zerowiz", "plan", "--json", "--quiet", "--machine", "8xH100-80GB"),
    *("--model", str(ROOT / "tests" / "models" / "llama-2-7b")),
)
TRAINS = """from accelerate import Accelerator
def train(args):
    accelerator = Accelerator()
    accelerator.prepare(args)
"""
# What a module of a repository has, of which a tenth shows something.
HELPER = """
def helper_{n}(values, width=4):
    rows = [value for value in values if value is not None]
    for index, row in enumerate(rows):
        rows[index] = float(row) * width + {n}
    return sorted(rows)[: len(rows) // 2]

class Layer_{n}(Block):
    def __init__(self, width):
        super().__init__()
        self.width = width
        self.rows = [helper_{n}(range(width)) for _ in range(width)]

    def forward(self, x, mask=None):
        for row in self.rows:
            x = x + row[0] * self.width
        return x if mask is None else x * mask
"""
SHOWS = """
def add_arguments(parser):
    parser.add_argument("--option_{n}", type=int, default={n})
    return parser if {n} == 0 else module_{before}.add_arguments(parser)

class Model_{n}:
    def load(self, args):
        self.layers = [Layer_{n}0(args.option_{n}) for _ in range({n})]
        self.weights = Auto.from_pretrained(args.name, torch_dtype="auto")
        return module_{before}.Model_{before}().load(args)

    def save(self, folder):
        return helper_{n}0(folder)
"""


def write(folder: Path) -> dict[str, Path]:
    """Write the scripts, with the modules behind two of them."""
    package = folder / "many" / "lib"
    package.mkdir(parents=True)
    for number in range(FILES):
        after = f"from lib.m{number + 1} import train\n" if number + 1 < FILES else TRAINS
        (package / f"m{number}.py").write_text(after, encoding="utf-8")
    (folder / "many" / "train.py").write_text(
        f"from lib.m{FILES - 4} import train\nimport lib.m0\ntrain(1)\n", encoding="utf-8"
    )
    several = folder / "several"
    several.mkdir()
    for number in range(MODULES):
        parts = [f"import module_{max(0, number - 1)}\n"]
        parts += [HELPER.format(n=f"{number}{part}") for part in range(29)]
        parts.append(SHOWS.format(n=number, before=max(0, number - 1)))
        (several / f"module_{number}.py").write_text("".join(parts), encoding="utf-8")
    last = MODULES - 1
    (several / "train.py").write_text(
        f"import argparse\nfrom module_{last} import Model_{last}, add_arguments\n{TRAINS}"
        "args = add_arguments(argparse.ArgumentParser()).parse_args()\n"
        f"train(Model_{last}().load(args))\n",
        encoding="utf-8",
    )
    (folder / "one.py").write_text(f"{TRAINS}train(1)\n", encoding="utf-8")
    lines = sum(path.read_text().count("\n") for path in several.glob("*.py"))
    return {
        "one file": folder / "one.py",
        f"{lines} lines in {MODULES} modules": several / "train.py",
        f"a package of {FILES} files": folder / "many" / "train.py",
    }


def run(script: Path) -> tuple[float, float]:
    """The seconds of the wall, and of CPU, of one plan."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    argv = (*PLAN, str(script))
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, env=environ)
    wall_s, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Time each script in turn, and print the medians."""
    with tempfile.TemporaryDirectory() as name:
        scripts = write(Path(name))
        for script in scripts.values():
            run(script)
        taken = {label: [run(script) for _ in range(RUNS)] for label, script in scripts.items()}
    for label, runs in taken.items():
        wall_s, cpu_s = (statistics.median(each) for each in zip(*runs, strict=True))
        sys.stdout.write(f"{label:30} {wall_s:.3f} s, {cpu_s:.3f} s of CPU (medians of {RUNS})\n")


if __name__ == "__main__":
    main()
