"""Questions at a terminal: at one that draws, and at one that can only print lines."""

import json
import random
import re
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from termios import ECHO, ICANON, tcgetattr

import pytest
from cli.harness import BACKSPACE, CTRL_C, CTRL_D, DOWN, ENTER, ESCAPE, TAB, UP, Terminal
from ui.contrast import contrast

from zerowiz.ui.prompt_menu import PENDING, Background

PROGRAM = (str(Path(__file__).with_name("asking.py")),)
WHY = "This is why."
MENU = {
    "key": "menu",
    "flag": "$menu",
    "text": "Which goal?",
    "kind": "choice",
    "default": "own",
    "more": "The first line of it.\nThe second line of it.",
    "choices": [
        {"value": "fast", "title": "the fastest", "detail": "at the same batch"},
        {"value": "own", "title": "my own micro-batch"},
        {"value": "joke", "title": "jokes, quickly"},
    ],
}
TEXT = {"key": "text", "flag": "$text", "text": "Which one?", "why": WHY}
COUNT = {"key": "count", "flag": "$count", "text": "How many?", "kind": "count", "default": "8"}
PATH = {"key": "path", "flag": "PATH", "text": "Where?", "kind": "path"}
OPEN = {
    **PATH,
    "default": "./llama-7b",
    "choices": [
        {"value": "./llama-7b", "title": "llama-7b", "detail": "folder here"},
        {"value": "./qwen", "title": "qwen"},
    ],
}
CONFIRM = {
    "key": "confirm",
    "flag": "$yes",
    "text": "Go on?",
    "kind": "confirm",
    "default": "yes",
}
KINDS = (TEXT, COUNT, PATH, MENU, CONFIRM)
FOLDERS = ("models/llama", "models/llava", "models/qwen", "a b", "empty", "own folder")
FILES = ("train.py", "train_lora.py", ".hidden.py", "models/llama/config.json", "../home/home.py")

Questions = Sequence[Mapping[str, object]]
Ask = Callable[..., Terminal]


@pytest.fixture
def ask(tmp_path: Path) -> Iterator[Ask]:
    """Ask these questions in a folder with some files."""
    opened: list[Terminal] = []
    for name in ("home", *(f"work/{each}" for each in FOLDERS)):
        (tmp_path / name).mkdir(parents=True)
    for name in FILES:
        (tmp_path / "work" / name).touch()

    def run(
        *questions: Mapping[str, object], columns: int = 80, lines: int = 30, **env: str
    ) -> Terminal:
        listed = tmp_path / "questions.json"
        listed.write_text(json.dumps(questions))
        environ = {"HOME": str(tmp_path / "home"), **env}
        opened.append(
            Terminal(
                tmp_path / "work",
                [str(listed)],
                environ,
                program=PROGRAM,
                columns=columns,
                lines=lines,
            )
        )
        return opened[-1]

    yield run
    for one in opened:
        one.child.close(force=True)


@pytest.fixture
def ask_plainly(ask: Ask) -> Ask:
    """Ask at a terminal that can only print."""
    return partial(ask, lines=120, TERM="dumb", HOME="/home/somebody")


def answers(person: Terminal) -> list[str]:
    """What was answered, once all is."""
    assert 0 == person.end(), person.text
    got: list[str] = json.loads(person.text.splitlines()[-1])
    return got


def see(person: Terminal, words: str) -> list[str]:
    """What stands on the screen once these words do."""
    person.wait_for(words)
    person.quiet = False
    person.settle()
    return person.text.splitlines()


def press(person: Terminal, keys: str, words: str) -> list[str]:
    """What stands on the screen once these keys made these words appear."""
    person.settle()
    person.child.send(keys)
    return see(person, words)


# A terminal that can only print: numbers, lines, and no escape sequence at all.

TITLES = ("the fastest", "my own micro-batch", "my other goal")
NUMBERED = {
    **MENU,
    "choices": [
        {"value": value, "title": title}
        for value, title in zip(("fast", "own", "other"), TITLES, strict=True)
    ],
}
BAD_FIRST = {
    **OPEN,
    "default": "bad",
    "choices": [{"value": "bad", "title": "b"}, *OPEN["choices"]],
}
MANY = [{"value": f"m{number}", "title": f"m{number}"} for number in range(40)]
ODD = "a\x1b[31mred\x07"
ODD_CHOICE = {"value": "odd", "title": ODD, "detail": ODD}
ONE_TO_THREE = "  ! a number from 1 to 3\n  number"
# The questions, what is waited for and then typed, and the answers.
PLAIN_TURNS: dict[str, tuple[Questions, Sequence[tuple[str, str]], list[str]]] = {
    "the default": ([NUMBERED], [("):", "")], ["own"]),
    "a number": ([NUMBERED], [("):", "3")], ["other"]),
    "a beginning": ([NUMBERED], [("):", "the")], ["fast"]),
    "a title in any case": ([NUMBERED], [("):", "MY OWN")], ["own"]),
    "a value": ([NUMBERED], [("):", "other")], ["other"]),
    "yes": ([CONFIRM], [("):", "")], ["yes"]),
    "n": ([CONFIRM], [("):", "n")], ["no"]),
    "YES": ([CONFIRM], [("):", "YES")], ["yes"]),
    "a path from home": ([PATH], [("answer:", "~/a/")], ["/home/somebody/a"]),
    "spaces around": ([TEXT], [("answer:", " x ")], ["x"]),
    "the default of a path": ([OPEN], [("):", "")], ["./llama-7b"]),
    "the number of a path": ([OPEN], [("):", "2")], ["./qwen"]),
    "a path": ([OPEN], [("):", "7b")], ["7b"]),
    "no such number": (
        [NUMBERED],
        [("):", "0"), (ONE_TO_THREE, "4"), (ONE_TO_THREE, "my"), (ONE_TO_THREE, "1")],
        ["fast"],
    ),
    "no count": ([COUNT], [(":", "many"), ("! a whole number from 1 on\n  ", "9")], ["9"]),
    "neither yes nor no": ([CONFIRM], [(":", "maybe"), ("! yes or no\n  ", "yes")], ["yes"]),
    "nothing": ([TEXT], [(":", ""), ("! an answer is needed\n  ", "x")], ["x"]),
    "refused": ([TEXT], [(":", "bad"), ("  ! `bad` is bad\n  say `good`\n  ", "x")], ["x"]),
    "refused is no default": ([BAD_FIRST], [("Enter: 1", ""), ("Enter: 2", "")], ["./llama-7b"]),
    "more": (
        [MENU],
        [("):", "?"), ("  The first line of it.\n  The second line of it.\n  number", "")],
        ["own"],
    ),
    "back, but not from the first": (
        [TEXT, COUNT],
        [
            ("answer:", "<"),
            ("(Enter: 8, <: back):", "<"),
            ("? Which one?\n  answer:", "again"),
            ("told after text\n\n? How many?\n  answer (Enter: 8, <: back):", "9"),
        ],
        ["again", "9"],
    ),
    "odd names steer nothing": (
        [{**TEXT, "default": ODD, "why": ODD}, {**MENU, "default": "odd", "choices": [ODD_CHOICE]}],
        [
            ("answer (Enter: a?[31mred?):", "x"),
            ("  1) a?[31mred? - a?[31mred?\n  number (Enter: 1, ?: more, <: back):", "1"),
        ],
        ["x", "odd"],
    ),
}


@pytest.mark.parametrize("name", PLAIN_TURNS)
def test_a_line_that_is_typed_is_an_answer_or_asked_for_again(ask_plainly: Ask, name: str) -> None:
    questions, turns, expected = PLAIN_TURNS[name]
    person = ask_plainly(*questions)
    person.talk(*((seen, f"{typed}\n") for seen, typed in turns))
    assert expected == answers(person)
    assert not {b"\x1b", b"\x07"} & {bytes([byte]) for byte in person.received}
    # A question that is asked again stands above, as it does on paper.
    assert len(turns) >= person.text.count(str(questions[0]["text"]))


@pytest.mark.parametrize("term", ["dumb", "unknown", ""])
def test_a_question_is_lines_and_choices_have_numbers(ask_plainly: Ask, term: str) -> None:
    person = ask_plainly(TEXT, MENU, TERM=term)
    person.talk(("answer:", "x\n"), ("number (Enter: 2, ?: more, <: back):", "1\n"))
    assert ["x", "fast"] == answers(person)
    assert [
        "a line before",
        "",
        WHY,
        "? Which one?",
        "  answer: x",
        "  -> leads to <x>",
        "told after text",
        "",
        "? Which goal?",
        "  1) the fastest - at the same batch",
        "  2) my own micro-batch",
        "  3) jokes, quickly",
        "  number (Enter: 2, ?: more, <: back): 1",
        "  -> leads to <fast>",
        "told after menu",
    ] == person.text.splitlines()[:-1]


@pytest.mark.parametrize(
    ("question", "columns", "shown"),
    [
        (
            {
                **MENU,
                "choices": [
                    {
                        "value": "own",
                        "title": "no, only write the files",
                        "detail": "writes the config and prints the command",
                    }
                ],
            },
            70,
            "  1) no, only write the files - writes the config and prints the\n    command\n",
        ),
        (
            {**PATH, "choices": MANY, "default": "m20", "more": "More."},
            48,
            # The answer has a line of its own where the prompt leaves no room for it.
            "  12) m11\n  and 28 more: type a name\n  number or answer (Enter: m20, ?: more):\n  >",
        ),
    ],
    ids=["a choice with a comma fills its lines", "a long menu is cut"],
)
def test_lines_are_folded_and_cut(
    ask_plainly: Ask, question: Mapping[str, object], columns: int, shown: str
) -> None:
    person = ask_plainly({**question, "why": "word " * 30}, columns=columns)
    person.reply("):", "\n")
    assert [question["default"]] == answers(person)
    assert shown in person.text
    assert 30 == person.text.count("word")


# What an answer leads to is worked out beside the keyboard.


def test_no_key_waits_and_what_was_typed_over_is_not_worked_out() -> None:
    begun, goes_on, drawn, asked = threading.Event(), threading.Event(), threading.Event(), []

    def slowly(answer: str) -> str:
        asked.append(answer)
        begun.set()
        goes_on.wait(10)
        return f"leads to {answer}"

    consequence = Background(slowly, drawn.set)
    assert consequence("7") == PENDING
    assert begun.wait(10)
    assert [PENDING] * 2 == [consequence(answer) for answer in ("70", "70b")]
    # Who waited for the first one would have begun another.
    assert ["7"] == asked
    goes_on.set()
    assert drawn.wait(10)
    assert "leads to 70b" == consequence("70b")
    assert ["7", "70b"] == asked


def test_what_is_known_at_once_is_shown_at_once() -> None:
    consequence = Background(str.upper, lambda: None)
    for answer in ("a", "b", "a"):
        until = time.monotonic() + 5
        while consequence(answer) == PENDING:
            assert time.monotonic() < until
        assert answer.upper() == consequence(answer)


# Each kind of question at a real pseudo-terminal: what is drawn, which keys do what, what stays.

SIXTY = [{"value": str(n), "title": f"number {n} of them"} for n in range(60)]
# The questions, the answers, and keys with what they make appear, and what is then gone.
TURNS: dict[str, tuple[Questions, list[str], Sequence[Sequence[str]]]] = {
    "what an answer leads to": (
        [COUNT],
        ["8"],
        [
            ("1", "leads to <1>"),
            ("6", "leads to <16>"),
            (BACKSPACE, "leads to <1>"),
            ("x", "1x", "leads to"),
            (BACKSPACE * 2, "leads to <8>"),
        ],
    ),
    "the arrows of a menu": (
        [MENU],
        ["joke"],
        [
            ("", "leads to <own>"),
            ("", "  > my own micro-batch"),
            (DOWN, "leads to <joke>"),
            (DOWN, "leads to <fast>"),
            ("", "  > the fastest         at the same batch"),
            (UP, "leads to <joke>"),
        ],
    ),
    "no default": ([{**MENU, "default": None}], ["fast"], [("", "leads to <fast>")]),
    "a default that is no choice": (
        [{**MENU, "default": "what is not in it"}],
        ["fast"],
        [("", "leads to <fast>")],
    ),
    "words that filter a menu": (
        [MENU],
        ["joke"],
        [
            ("st", "leads to <fast>", "my own"),
            (BACKSPACE * 2 + "QUIC", "leads to <joke>", "the fastest"),
        ],
    ),
    "an answer that is typed and taken at once": (
        [OPEN, TEXT],
        ["7b", "x"],
        [("", "Where?"), ("7b" + ENTER, "Which one?"), ("x", "leads to <x>")],
    ),
    "words that no line has": (
        [MENU],
        ["fast"],
        [
            ("zz", "! no line has `zz`", "leads to"),
            (ENTER, "/ zz", "leads to"),
            (BACKSPACE * 2, "leads to <fast>", "no line has"),
        ],
    ),
    "a menu higher than the terminal": (
        [{**MENU, "default": None, "choices": SIXTY}],
        ["42"],
        [
            ("", "> number 0 of them"),
            (UP, "> number 59 of them"),
            ("", "? Which goal?\n"),
            (DOWN * 9, "> number 8 of them"),
            ("42", "leads to <42>"),
        ],
    ),
    "y": ([CONFIRM], ["yes"], [("", "? Go on? (Y/n)"), ("y", "(Y/n) Yes")]),
    "no": ([CONFIRM], ["no"], [("", "? Go on? (Y/n)"), ("no", "(Y/n) No")]),
    "a no by default": ([{**CONFIRM, "default": "no"}], ["no"], [("", "? Go on? (y/N)")]),
    "the wrong kind": (
        [COUNT],
        ["12"],
        [
            ("zero" + ENTER, "before\n\n? How many? (8) zero\n  ! a whole number from 1 on"),
            ("", "? How many? (8) zero"),
            (BACKSPACE * 4 + "12", "leads to <12>"),
        ],
    ),
    "refused by the world": (
        [COUNT, TEXT],
        ["8", "good"],
        [
            ("", "How many?"),
            (ENTER, "Which one?"),
            ("bad one" + ENTER, "? Which one? bad one\n  ! `bad one` is bad\n    say `good`"),
            (BACKSPACE * 7 + "good", "leads to <good>"),
        ],
    ),
    "nothing": ([TEXT], ["x"], [(ENTER, "! an answer is needed"), ("x", "leads to <x>")]),
    "Ctrl-D in a line": ([TEXT], ["x"], [("x" + CTRL_D, "leads to <x>")]),
    "a pasted line": (
        [TEXT],
        ["what? is this"],
        [("\x1b[200~what?\tis\r\n this\x1b[201~", "leads to <what? is this>")],
    ),
    "a completed path": (
        [PATH],
        ["models/llama"],
        [
            ("models/l" + TAB, "llava/"),
            (DOWN, "Where? models/llama/"),
            (ENTER, "leads to <models/llama>", "llava"),
            (TAB, "Where? models/llama/config.json"),
            (BACKSPACE * len("config.json"), "Where? models/llama/"),
        ],
    ),
    "a path below what was found": (
        [OPEN],
        ["models/llava"],
        [
            ("", "leads to <./llama-7b>"),
            ("models/" + TAB, "? Where? models/"),
            (TAB, "llava/", "models/llava"),
            (DOWN + DOWN + ENTER, "? Where? models/llava/"),
        ],
    ),
    **{
        f"{keys!r} at what was found": (
            [OPEN],
            [answer],
            [("", "leads to <./llama-7b>"), (keys, f"leads to <{answer}>")],
        )
        for keys, answer in (
            (DOWN, "./qwen"),
            ("7b", "7b"),
            ("7b" + UP, "./llama-7b"),
            ("q", "./qwen"),
            ("q" + DOWN, "q"),
            ("QWEN", "./qwen"),
            ("./qwen", "./qwen"),
            ("owner/name", "owner/name"),
            ("own" + TAB + TAB, "own folder"),
            ("q" + BACKSPACE, "./llama-7b"),
            ("7b" + BACKSPACE * 2 + UP, "./qwen"),
        )
    },
}


@pytest.mark.parametrize("name", TURNS)
def test_keys_make_appear_what_they_lead_to(ask: Ask, name: str) -> None:
    questions, expected, turns = TURNS[name]
    person = ask(*questions, lines=12)
    see(person, str(questions[0]["text"]))
    for keys, seen, *gone in turns:
        shown = "\n".join(press(person, keys, seen))
        assert not [words for words in gone if words in shown]
    person.child.send(ENTER)
    assert expected == answers(person)


def test_a_question_shows_why_and_leaves_one_line_for_its_answer(ask: Ask) -> None:
    person = ask(TEXT, {**COUNT, "why": WHY})
    assert ["a line before", "", WHY, "? Which one?"] == see(person, "Which one?")[:4]
    assert "? Which one? seven" == press(person, "seven", "leads to <seven>")[3]
    shown = press(person, ENTER, "How many?")
    assert ["a line before", "? Which one? seven", "told after text", "", WHY] == shown[:5]
    person.child.send(ENTER)
    assert ["seven", "8"] == answers(person)
    assert [
        "a line before",
        "? Which one? seven",
        "told after text",
        "? How many? 8",
        "told after count",
    ] == person.text.splitlines()[:-1]


@pytest.mark.parametrize("question", KINDS[:-1], ids=lambda question: question["key"])
def test_letters_and_digits_are_never_keys(ask: Ask, question: Mapping[str, object]) -> None:
    """Each is typed, so that it can be seen; none answers, moves or ends anything."""
    person, letters = ask(question), "yYnNjkqhlbx0129"
    see(person, str(question["text"]))
    for typed in letters:
        press(person, typed, typed)
    see(person, letters)
    typed_at = {"menu": f"/ {letters}..."}.get(str(question["key"]), f" {letters}")
    assert any(each.endswith(typed_at) for each in person.lines)
    person.child.send(CTRL_C)
    assert 130 == person.end()


@pytest.mark.parametrize(
    ("question", "shown", "keys", "other"),
    [(CONFIRM, "(Y/n)", "n", "no"), (MENU, "leads to <own>", DOWN, "joke")],
)
def test_an_enter_before_a_menu_is_drawn_is_no_answer_to_it(
    ask: Ask, question: Mapping[str, object], shown: str, keys: str, other: str
) -> None:
    person = ask(TEXT, question, CHECK_SECONDS="0.7")
    person.reply("Which one?", "x" + ENTER)
    person.child.send(ENTER * 3)
    see(person, shown)
    person.child.send(keys + ENTER)
    assert ["x", other] == answers(person)


def test_while_an_answer_is_checked_it_stands_there_and_what_is_typed_ahead_counts(
    ask: Ask,
) -> None:
    person = ask(TEXT, COUNT, CHECK_SECONDS="1.5")
    person.reply("Which one?", "x" + ENTER)
    assert ["a line before", "? Which one? x"] == see(person, "? Which one? x")
    person.child.send("12")
    shown = see(person, "leads to <12>")
    assert ["told after text", "", "? How many? (8) 12"] == shown[2:5]
    person.child.send(ENTER)
    assert ["x", "12"] == answers(person)


def test_question_marks_show_more_and_hide_it_again(ask: Ask) -> None:
    person = ask(MENU)
    before = see(person, "? for more")
    shown = press(person, "?", "The second line")
    assert {"  The first line of it.", "  The second line of it."} == set(shown) - set(before)
    person.child.send("?")
    time.sleep(0.2)
    assert before == see(person, "? for more")


def test_going_back_leaves_no_trace(ask: Ask) -> None:
    questions = (TEXT, MENU, COUNT)
    end = (("leads to <own>", ENTER), ("leads to <8>", "12" + ENTER))
    straight, person = ask(*questions), ask(*questions)
    straight.talk(("Which one?", "x" + ENTER), *end)
    long = "an answer that is so long that it needs two rows of it " * 2
    person.talk(("Which one?", long + ENTER), ("leads to <own>", DOWN + ENTER))
    see(person, "leads to <8>")
    press(person, ESCAPE, "leads to <own>")
    shown = press(person, ESCAPE, WHY)
    assert ["a line before", "", WHY, "? Which one?"] == shown[:4]
    assert "an answer that" not in person.text
    person.talk(("", "x" + ENTER), *end)
    assert ["x", "own", "12"] == answers(person) == answers(straight)
    assert straight.text == person.text


def test_the_first_question_goes_nowhere_and_says_how_to_leave(ask: Ask) -> None:
    person = ask(TEXT, MENU)
    before = see(person, "Ctrl-C to stop")
    assert "Esc" not in person.text
    person.child.send(ESCAPE)
    time.sleep(0.3)
    assert before == see(person, "Ctrl-C to stop")
    person.child.send("x" + ENTER)
    assert not any("Ctrl-C" in line for line in see(person, "Esc to go back"))
    person.child.send(ENTER)
    assert ["x", "own"] == answers(person)


def test_escape_does_not_lag_and_arrows_and_alt_are_none(ask: Ask) -> None:
    person = ask(TEXT, MENU)
    person.talk(("Which one?", "x" + ENTER), ("leads to <own>", DOWN * 2 + "\x1bb\x1b[C\x1b[D"))
    see(person, "leads to <fast>")
    person.child.send(ESCAPE)
    looks_at_an_idle_program = 0
    while WHY not in person.text:
        assert person.look(), person.text
        looks_at_an_idle_program += person.quiet
    # Of 50 ms each. Libraries wait half a second by themselves, and one more where Alt has meanings.
    assert looks_at_an_idle_program < 8


@pytest.mark.parametrize("keys", [ESCAPE + ENTER, ENTER + ENTER, ESCAPE + CTRL_C, "x" + CTRL_C * 2])
def test_a_key_that_comes_in_one_read_behind_the_last_one_of_a_question_breaks_nothing(
    ask: Ask, keys: str
) -> None:
    person = ask(TEXT, COUNT, MENU)
    person.talk(("Which one?", "x" + ENTER), ("leads to <8>", keys))
    time.sleep(0.5)
    person.child.send(CTRL_C)
    assert 130 == person.end(), person.text
    assert "not running" not in person.text
    assert "Exception" not in person.text


@pytest.mark.parametrize(
    ("typed", "completed", "listed"),
    [
        ("mo", "models/", []),
        ("models/", "models/", ["llama/", "llava/", "qwen/"]),
        ("models/l", "models/lla", ["llama/", "llava/"]),
        ("./models/q", "./models/qwen/", []),
        ("tr", "train", ["train.py", "train_lora.py"]),
        ("train_", "train_lora.py", []),
        (".h", ".hidden.py", []),
        ("a", "a b/", []),
        ("empty/", "empty/", []),
        ("no/such/folder", "no/such/folder", []),
        ("~/ho", "~/home.py", []),
    ],
)
def test_tab_completes_a_path(ask: Ask, typed: str, completed: str, listed: list[str]) -> None:
    person = ask(PATH)
    person.reply("Where?", typed)
    see(person, typed)
    person.child.send(TAB)
    time.sleep(0.1)
    line = f"? Where? {completed}".rstrip()
    shown = see(person, line)
    below = [row.strip() for row in shown[shown.index(line) + 1 :]]
    assert listed == [row for row in below if row in {*listed, "llama/", "llava/", "train.py"}]


def is_cooked(person: Terminal) -> bool:
    return bool(tcgetattr(person.child.fileno())[3] & (ECHO | ICANON) == ECHO | ICANON)


@pytest.mark.parametrize("key", [CTRL_C, CTRL_D], ids=["ctrl-c", "ctrl-d"])
@pytest.mark.parametrize("term", ["xterm-256color", "dumb"])
@pytest.mark.parametrize("question", KINDS, ids=lambda question: question["key"])
def test_the_end_leaves_nothing_behind(
    ask: Ask, question: Mapping[str, object], term: str, key: str
) -> None:
    person = ask(TEXT, {**question, "key": "last", "text": "The last?"}, TERM=term)
    person.reply("Which one?", "x" + ENTER)
    see(person, "The last?")
    assert is_cooked(person) == (term == "dumb")
    person.child.send(key)
    assert 130 == person.end()
    shown = person.text.splitlines()
    assert "error: interrupted; nothing was written" == shown[-1]
    assert "Traceback" not in person.text
    if term == "dumb":
        assert b"\x1b" not in person.received
        return
    assert ["a line before", "? Which one? x", "told after text"] == shown[:-1]
    # The cursor is shown, lines wrap, and what is pasted is typed as before.
    for on, off in ((b"\x1b[?25h", b"\x1b[?25l"), (b"\x1b[?7h", b"\x1b[?7l")):
        assert person.received.rindex(on) > person.received.rindex(off)
    assert person.received.rindex(b"\x1b[?2004l") > person.received.rindex(b"\x1b[?2004h")


def test_a_signal_ends_as_ctrl_c_does(ask: Ask) -> None:
    person = ask(MENU)
    see(person, "Which goal?")
    person.child.kill(signal.SIGINT)
    assert 130 == person.end()
    assert ["a line before", "error: interrupted; nothing was written"] == person.text.splitlines()


DETAIL = "ZeRO-3 fits: 32.1 of 39.4 GiB, about 15 % slower than the one before it"
LONG = {
    **MENU,
    "text": "Which of these many goals is the one that you have in mind for this job today?",
    "why": "It decides what is searched, and what is kept as the script has it, in every case.",
    "choices": [
        {
            "value": "a",
            "title": "the fastest",
            "detail": DETAIL,
        },
        {"value": "own", "title": "a title of so many words that no detail can stand beside it"},
    ],
}


@pytest.mark.parametrize(
    "question", [LONG, {**LONG, "kind": "text", "default": "a default", "choices": []}]
)
@pytest.mark.parametrize("columns", [50, 30, 200])
def test_every_word_can_be_read_in_any_width(
    ask: Ask, question: Mapping[str, object], columns: int
) -> None:
    person = ask(question, columns=columns, lines=60)
    see(person, "leads")
    press(person, "?", "second line")
    texts = [str(question[name]) for name in ("why", "text", "more")]
    choices: Sequence[Mapping[str, str]] = question["choices"]  # type: ignore[assignment]
    texts += [text for choice in choices for text in (choice["title"], choice.get("detail", ""))]
    shown = " ".join(person.text.split())
    assert [] == [word for text in texts for word in text.split() if word not in shown]
    assert columns != 50 or texts[0] in shown
    assert all(len(line) <= min(columns, 100) for line in person.lines)


def test_a_question_is_drawn_anew_in_another_size(ask: Ask) -> None:
    person = ask(TEXT, LONG, columns=80)
    person.reply("Which one?", "x" + ENTER)
    see(person, "leads to <own>")
    for columns, lines in ((50, 30), (100, 30), (60, 40)):
        person.resize(columns, lines)
        time.sleep(0.2)
        shown = "\n".join(see(person, "leads to <own>"))
        for words in ("? Which of these", "It decides", "> a title of", "Up/Down to choose"):
            assert 1 == shown.count(words), shown
        # What was folded for another width goes on in the next row.
        assert "".join(DETAIL.split()) in "".join(shown.split())
    fresh = ask(TEXT, LONG, columns=60, lines=40)
    fresh.reply("Which one?", "x" + ENTER)
    see(fresh, "leads to <own>")
    for each in (person, fresh):
        each.child.send(ENTER)
    assert ["x", "own"] == answers(person) == answers(fresh)
    assert fresh.text == person.text


def test_a_terminal_of_few_lines_still_takes_answers(ask: Ask) -> None:
    person = ask(MENU, lines=4)
    person.reply("> my own micro-batch", DOWN + ENTER)
    assert ["joke"] == answers(person)


@pytest.mark.parametrize("kind", ["text", "choice"])
def test_a_terminal_of_few_lines_shows_the_question_and_not_why(ask: Ask, kind: str) -> None:
    choices = [] if kind == "text" else MENU["choices"]
    text = "Which goal is it that you have?"
    question = {**MENU, "kind": kind, "text": text, "why": "A reason of many words. " * 3}
    person = ask({**question, "choices": choices}, columns=40, lines=5)
    see(person, "->")
    assert "you have?" in person.text


def test_odd_characters_steer_nothing(ask: Ask) -> None:
    odd = {"value": "odd", "title": "a\x1b[31mred\x07 名前\x9b one", "detail": "日本" * 30}
    menu = {**MENU, "default": "odd", "choices": [odd]}
    person = ask(menu, TEXT, PYTHONIOENCODING="utf-8")
    see(person, "leads to <odd>")
    assert b"\x1b[31m" not in person.received
    assert b"\x07" not in person.received
    shown = press(person, ENTER, "Which one?")
    assert 1 == "\n".join(shown).count("? Which goal? a?[31mred? ")
    press(person, ESCAPE, "leads to <odd>")
    assert 1 == person.text.count("Which goal?")
    assert "told after" not in person.text


def test_an_ascii_terminal_is_enough(ask: Ask) -> None:
    person = ask(MENU, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    see(person, "leads to <own>")
    assert person.text.isascii()
    person.child.send(ENTER)
    assert ["own"] == answers(person)


SGR = re.compile(rb"\x1b\[([0-9;]*)m")
# xterm's own palette, of which a terminal without a theme shows these.
XTERM = {31: (205, 0, 0), 35: (205, 0, 205)}


def colours(received: bytes) -> set[int]:
    """What sets a colour: 30 to 49, 90 to 107."""
    codes = {int(code) for found in SGR.findall(received) for code in found.split(b";") if code}
    return {code for code in codes if code >= 30}


def test_no_color_takes_the_colours_alone_and_each_can_be_read_on_white_and_on_black(
    ask: Ask,
) -> None:
    """At 3:1 at least, which WCAG asks of large text; all of it is also said by a sign."""
    coloured, plain = ask(MENU, COUNT), ask(MENU, COUNT, NO_COLOR="1")
    for person in (coloured, plain):
        person.talk(("Which goal?", ENTER), ("How many?", "x" + ENTER))
        see(person, "! a whole number")
    assert coloured.text == plain.text
    assert (set(XTERM), set()) == (colours(coloured.received), colours(plain.received))
    for colour in XTERM.values():
        for ground in ((255, 255, 255), (0, 0, 0)):
            assert 3 <= contrast(colour, ground)


def test_every_coloured_word_has_a_sign(ask: Ask) -> None:
    person = ask(MENU, COUNT)
    see(person, "leads to <own>")
    coloured = {
        line.strip()
        for y, line in enumerate(person.lines)
        if any(person.screen.buffer[y][x].fg != "default" for x in range(80))
    }
    assert {"? Which goal?", "> my own micro-batch"} == coloured
    press(person, ENTER, "leads to <8>")
    person.reply("How many?", "x" + ENTER)
    see(person, "! a whole number")
    red = [y for y in range(30) if person.screen.buffer[y][2].fg == "red"]
    assert [True] == [person.lines[y].startswith("  ! ") for y in red]


@pytest.mark.parametrize("seconds", ["0.02", "0.05", "0.3"])
def test_a_slow_consequence_holds_up_no_key_and_no_answer(ask: Ask, seconds: str) -> None:
    person = ask(COUNT, TEXT, MENU, CONFIRM, CONSEQUENCE_SECONDS=seconds)
    person.talk(
        ("How many?", "16" + ENTER),
        ("Which one?", "name" + ENTER),
        ("Which goal?", DOWN + ENTER),
        ("Go on?", "n" + ENTER),
    )
    assert ["16", "name", "joke", "no"] == answers(person)
    assert [
        "a line before",
        "? How many? 16",
        "told after count",
        "? Which one? name",
        "told after text",
        "? Which goal? jokes, quickly",
        "told after menu",
        "? Go on? no",
        "told after confirm",
    ] == person.text.splitlines()[:-1]


# Where a question starts and ends, the terminal's mode changes, and Ctrl-C is a signal for a moment.
PLACES = (
    *("run_async", "set_loop", "reset", "raw_mode", "attach", "store_typeahead"),
    *("cancel_and_wait_for_background_tasks", "_cancel_all_tasks"),
)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("before", ["", "show_answer "])
def test_ctrl_c_ends_a_question_wherever_it_comes(ask: Ask, place: str, before: str) -> None:
    person = ask(TEXT, PATH, COUNT, INTERRUPT_AT=f"{before}{place}")
    person.child.send("x" + ENTER + "y" + ENTER)
    assert 130 == person.end(patience_seconds=20), person.text
    assert "Traceback" not in person.text


def test_ctrl_c_before_a_menu_stands_there_ends_it(ask: Ask) -> None:
    person = ask(TEXT, MENU)
    see(person, "Which one?")
    person.child.send("x" + ENTER + ENTER + CTRL_C)
    assert 130 == person.end(), person.text


SPECIAL_KEYS = [UP, DOWN, "\x1b[C", "\x1b[5~", "\x1bOP", "\x1b\x1b", TAB, ENTER, "?", ESCAPE]
SPECIAL_KEYS += [chr(code) for code in range(32) if chr(code) not in "\x03\x04\x1a\x1c"]


@pytest.mark.parametrize("seed", range(6))
def test_no_keys_end_in_a_traceback(ask: Ask, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - keys, not secrets
    person = ask(TEXT, PATH, MENU, COUNT, TEXT, PATH, MENU)
    see(person, "Which one?")
    for _ in range(150):
        odd = rng.choice(SPECIAL_KEYS) if rng.random() < 0.7 else chr(rng.randrange(32, 0x2000))
        person.child.send(odd)
        if not person.child.isalive():
            break
        if rng.random() < 0.1:
            person.quiet = False
            while not person.quiet and person.look():
                pass
    person.child.send("\x07\x15\x03")
    assert person.end() in {0, 130}, person.text
    assert "Traceback" not in person.text
    assert "Error" not in person.text


def test_a_stopped_question_goes_on_and_takes_no_row_of_the_shell(tmp_path: Path) -> None:
    (tmp_path / "questions.json").write_text(json.dumps([TEXT, COUNT]))
    start = ["-c", "import os; os.execlp('sh', 'sh', '-i')"]
    shell = Terminal(tmp_path, start, {"PS1": "shell> ", "ENV": ""}, program=())
    command = shlex.join([sys.executable, *PROGRAM, "questions.json"])
    shell.talk(("shell>", command + ENTER), ("Which one?", "x" + ENTER))
    # Between two questions the keys are the terminal's own, and it is the shell that is seen to wait.
    shell.talk(("? How many?", "1\x1a"))
    shell.talk(("Stopped", "echo of the $((1 + 1))nd" + ENTER), ("of the 2nd", "fg" + ENTER))
    see(shell, "? How many? (8) 1")
    press(shell, ESCAPE, WHY)
    assert "of the 2nd" in shell.text
    shell.child.send(CTRL_C)
    see(shell, "error: interrupted")
    shell.child.close(force=True)
