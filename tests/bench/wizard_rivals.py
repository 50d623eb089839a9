"""Hold conversations with `zerowiz init` and with other wizards, and print a table of both.

$ python tests/bench/wizard_rivals.py [--gh PATH] [--hf PATH]

Each program is asked by keys at a pseudo-terminal, in an empty home. `accelerate` is the one beside
this Python; the others are those of PATH. Nobody is logged in anywhere. Without a network, which
takes `unshare -rn`, each conversation is tried once more. The result is in docs/comparison.md.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# The tests are found from their own folder.
sys.path[0] = str(Path(__file__).parents[1])

from bench.pty_screen import CTRL_C, DOWN, ENTER, ESC, TAB, PtyScreen  # noqa: E402
from cli.harness import HF_IN_CODE, clean_environ  # noqa: E402

RUNS = 5
RUNS_WORDS = "the job runs"
# Says that it runs, and ends there.
SCRIPT = f'print("{RUNS_WORDS}", flush=True)\nraise SystemExit\n{HF_IN_CODE}'
# Its loopback is there: ranks of one host meet on it. SIOCSIFFLAGS of linux/sockios.h, IFF_UP of if.h.
LOOPBACK_UP = """
import fcntl, os, socket, struct, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
    fcntl.ioctl(made, 0x8914, struct.pack("16sh14x", b"lo", 1))
os.execv(sys.argv[1], sys.argv[1:])
"""
NO_NETWORK = ("unshare", "-rn", sys.executable, "-c", LOOPBACK_UP)


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """A question, and the keys that answer it."""

    question: str
    keys: str = ENTER
    menu: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Wizard:
    """One program, and one conversation with it.

    Attributes:
        argv: The program and its words.
        turns: Every question until it ends, or until it needs an account.
        job: What starts the job after it; None where the conversation does, or nothing can.
        types: Letters at the first menu, and what stands there when they choose.
        at: The turn of that menu.
        path: Letters of a path at the first question, and what Tab makes of them.
    """

    argv: tuple[str, ...]
    turns: tuple[Turn, ...]
    job: tuple[str, ...] | None = None
    types: tuple[str, str] | None = None
    at: int = 0
    path: tuple[str, str] | None = None
    starts_job: bool = False


def wizards(found: Mapping[str, str | None]) -> dict[str, Wizard | None]:
    """What is compared; None for what is not installed."""
    python = sys.executable
    accelerate = (python, "-m", "accelerate.commands.accelerate_cli")
    all_of_them = {
        "zerowiz init": Wizard(
            argv=(python, "-m", "zerowiz", "init", "--accelerator", "cpu", "--gpus-per-node", "2"),
            turns=(
                Turn(question="Which training script?", menu=True),
                Turn(question="Which model?", keys="1m" + ENTER, menu=True),
                Turn(question="How many tokens per sequence?"),
                Turn(question="Launch now?", menu=True),
            ),
            types=("other", "Which training script? other.py"),
            path=("scr", "scripts/"),
            starts_job=True,
        ),
        "accelerate config": Wizard(
            argv=(*accelerate, "config", "--config_file", "accelerate.yaml"),
            turns=(
                Turn(question="compute environment", menu=True),
                Turn(question="type of machine", keys=DOWN * 4 + ENTER, menu=True),
                Turn(question="How many different machines"),
                Turn(question="checked while running"),
                Turn(question="torch dynamo"),
                Turn(question="use DeepSpeed?", keys="yes" + ENTER),
                Turn(question="json file to a DeepSpeed config"),
                Turn(question="ZeRO optimization stage", menu=True),
                Turn(question="offload optimizer states", menu=True),
                Turn(question="offload parameters", menu=True),
                Turn(question="gradient accumulation steps"),
                Turn(question="gradient clipping"),
                Turn(question="deepspeed.zero.Init"),
                Turn(question="Mixture-of-Experts"),
                Turn(question="How many GPU(s)"),
                Turn(question="mixed precision", menu=True),
            ),
            job=(*accelerate, "launch", "--config_file", "accelerate.yaml", "train.py"),
            types=("AWS", "AWS (Amazon SageMaker)\n"),
        ),
    }
    gh, hf = found["gh"] or "", found["hf"] or ""
    all_of_them["gh auth login"] = Wizard(
        argv=(gh, "auth", "login"),
        turns=(
            Turn(question="What account", menu=True),
            Turn(question="preferred protocol", menu=True),
            Turn(question="Authenticate Git"),
            Turn(question="How would you like", menu=True),
        ),
        types=("enter", "GitHub Enterprise Server\n"),
    )
    all_of_them["hf auth login"] = Wizard(
        argv=(hf, "auth", "login"),
        turns=(
            Turn(question="How would you like to log in?", keys=DOWN + ENTER, menu=True),
            # Behind it the token is checked, which needs the network.
            Turn(question="Enter your token"),
        ),
        types=("paste", "Paste an access token\n"),
    )
    return {name: each if each.argv[0] else None for name, each in all_of_them.items()}


class Workplace:
    """A folder with scripts, and an empty home."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("train.py", "other.py"):
            (folder / name).write_text(SCRIPT)
        self.empty = folder / "elsewhere"
        (self.empty / "scripts").mkdir(parents=True)
        home = folder / "home"
        home.mkdir()
        # Compiled once, as pip does it; not into the tree.
        cache = {"PYTHONPYCACHEPREFIX": str(folder / "cache"), "PYTHONDONTWRITEBYTECODE": ""}
        self.environ = clean_environ(TERM="xterm-256color", HOME=str(home), **cache)

    def start(self, argv: Sequence[str], *, empty: bool = False, **environ: str) -> PtyScreen:
        """A program at a terminal of its own; what it answered before is forgotten."""
        (self.folder / "zerowiz.toml").unlink(missing_ok=True)
        return PtyScreen(argv, self.empty if empty else self.folder, {**self.environ, **environ})

    def reach(self, wizard: Wizard, number: int) -> PtyScreen:
        """The conversation, up to this turn."""
        screen = self.start(wizard.argv)
        for turn in wizard.turns[:number]:
            self.answer(screen, turn)
        require(screen, wizard.turns[number].question)
        return screen

    def answer(self, screen: PtyScreen, turn: Turn) -> None:
        """One turn."""
        require(screen, turn.question)
        screen.press(turn.keys)

    def first_question(self, wizard: Wizard) -> float:
        """Seconds until it stands there, median."""
        taken = []
        for _ in range(RUNS + 1):
            screen = self.start(wizard.argv)
            taken.append(screen.wait(lambda s=screen: wizard.turns[0].question in s.text))  # type: ignore[misc]
            screen.close()
        return statistics.median(each for each in taken[1:] if each is not None)

    def goes_back(self, wizard: Wizard) -> bool:
        """Whether Esc at the second question asks the first one again."""
        screen = self.reach(wizard, 1)
        before = len(screen.received)
        screen.press(ESC)
        screen.settle()
        asked = wizard.turns[0].question.encode() in screen.received[before:]
        screen.close()
        return asked

    def chooses_by_letters(self, wizard: Wizard) -> bool:
        """Whether letters choose in a menu."""
        if wizard.types is None:
            return False
        letters, expected = wizard.types
        screen = self.reach(wizard, wizard.at)
        screen.press(letters)
        screen.settle()
        screen.press(ENTER)
        screen.settle()
        chosen = expected in screen.text + "\n"
        screen.close()
        return chosen

    def completes(self, wizard: Wizard) -> bool:
        """Whether Tab completes a path."""
        if wizard.path is None:
            return False
        letters, expected = wizard.path
        screen = self.start(wizard.argv, empty=True)
        require(screen, wizard.turns[0].question)
        screen.press(letters + TAB)
        screen.settle()
        completed = expected in screen.text
        screen.close()
        return completed

    def plain(self, wizard: Wizard) -> bool:
        """Whether a terminal that can only print gets no escape sequence."""
        screen = self.start(wizard.argv, TERM="dumb")
        require(screen, wizard.turns[0].question)
        is_plain = b"\x1b" not in screen.received
        screen.close()
        return is_plain

    def interrupted(self, wizard: Wizard) -> str:
        """What Ctrl-C at the first question ends with."""
        screen = self.reach(wizard, 0)
        screen.press(CTRL_C)
        status = screen.status()
        return f"{status}, a traceback" if b"Traceback" in screen.received else str(status)

    def offline(self, wizard: Wizard) -> str:
        """How the conversation ends without a network."""
        if subprocess.run(
            [*NO_NETWORK, shutil.which("true") or ""], capture_output=True, check=False
        ).returncode:
            return "not tried"
        screen = self.start([*NO_NETWORK, *wizard.argv])
        for turn in wizard.turns:
            self.answer(screen, turn)
        if wizard.starts_job:
            runs = screen.wait_for(RUNS_WORDS)
            screen.close()
            return "yes" if runs else "no"
        return "yes" if screen.status() == 0 else "no"

    def job(self, wizard: Wizard) -> float | None:
        """Seconds from the command to the first line of the script, with answers at once."""
        if not (wizard.job or wizard.starts_job):
            return None
        began_s = time.perf_counter()
        screen = self.start(wizard.argv)
        for turn in wizard.turns:
            self.answer(screen, turn)
        if wizard.job:
            screen.status()
            screen = self.start(wizard.job)
        runs = screen.wait_for(RUNS_WORDS)
        taken_s = time.perf_counter() - began_s
        screen.close()
        return taken_s if runs else None


def require(screen: PtyScreen, question: str) -> None:
    """Wait for a question until it is drawn."""
    if not screen.wait_for(question):
        sys.exit(f"{question!r} never came:\n{screen.text}")
    screen.settle()


def row(place: Workplace, name: str, wizard: Wizard) -> str:
    """One line of the table."""
    # Once before: programs and their libraries are read from the disk then.
    place.job(wizard)
    job_s = place.job(wizard)
    cells = (
        name,
        str(len(wizard.turns)),
        str(sum(turn.menu for turn in wizard.turns)),
        yes(place.chooses_by_letters(wizard)),
        yes(place.goes_back(wizard)),
        yes(place.completes(wizard)),
        yes(place.plain(wizard)),
        place.interrupted(wizard),
        place.offline(wizard),
        f"{place.first_question(wizard):.2f} s",
        "-" if job_s is None else f"{job_s:.1f} s",
    )
    return f"| {' | '.join(cells)} |"


def yes(holds: bool) -> str:
    """In a word."""
    return "yes" if holds else "no"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    for name in ("gh", "hf"):
        parser.add_argument(f"--{name}", default=shutil.which(name))
    found = vars(parser.parse_args())
    headings = (
        *("wizard", "questions", "menus", "letters choose", "Esc goes back", "Tab completes"),
        *("plain at `TERM=dumb`", "Ctrl-C", "offline", "first question", "until the job runs"),
    )
    lines = [f"| {' | '.join(headings)} |", "|---" * len(headings) + "|"]
    for name, wizard in wizards(found).items():
        with tempfile.TemporaryDirectory() as folder:
            place = Workplace(Path(folder))
            lines.append(
                f"| {name}: not installed |" if wizard is None else row(place, name, wizard)
            )
            sys.stdout.write(lines[-1] + "\n")
    sys.stdout.write("\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
