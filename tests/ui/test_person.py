"""Questions at a terminal that can only print: numbers, lines, and no escape sequence at all."""

import itertools
import json
import random
import re
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from termios import ECHO, ICANON, tcgetattr

import pytest
from cli.harness import BACKSPACE, CTRL_C, CTRL_D, DOWN, ENTER, ESCAPE, TAB, UP, Terminal
from ui.contrast import contrast

from zerowiz.ui.prompt_menu import PENDING, Background

PROGRAM = (str(Path(__file__).with_name("asking.py")),)
MENU = {
    "key": "menu",
    "flag": "$menu",
    "text": "Which goal?",
    "why": "This is why.",
    "kind": "choice",
    "default": "own",
    "more": "The first line of it.\nThe second line of it.",
    "choices": [
        {"value": "fast", "title": "the fastest", "detail": "at the same batch"},
        {"value": "own", "title": "my own micro-batch"},
        {"value": "other", "title": "my other goal"},
    ],
}
TEXT = {"key": "text", "flag": "$text", "text": "Which one?"}
COUNT = {"key": "count", "flag": "$count", "text": "How many?", "kind": "count", "default": "8"}
PATH = {"key": "path", "flag": "PATH", "text": "Where?", "kind": "path"}
OPEN_CHOICES = [{"value": "./llama", "title": "llama"}, {"value": "./qwen", "title": "qwen"}]
OPEN = {**PATH, "default": "./llama", "choices": OPEN_CHOICES}
CONFIRM = {"key": "go", "flag": "$yes", "text": "Go on?", "kind": "confirm", "default": "yes"}

Ask = Callable[..., Terminal]


@pytest.fixture
def ask(tmp_path: Path) -> Iterator[Ask]:
    """Ask these questions at a dumb terminal."""
    opened: list[Terminal] = []

    def run(*questions: Mapping[str, object], columns: int = 80, term: str = "dumb") -> Terminal:
        listed = tmp_path / "questions.json"
        listed.write_text(json.dumps(questions))
        words, env = [str(listed)], {"TERM": term, "HOME": "/home/somebody"}
        opened.append(Terminal(tmp_path, words, env, program=PROGRAM, columns=columns))
        return opened[-1]

    yield run
    for one in opened:
        one.child.close(force=True)


def answers(person: Terminal) -> list[str]:
    """What was answered, once all is; no byte steered the terminal."""
    assert 0 == person.end(), person.text
    assert b"\x1b" not in person.received
    got: list[str] = json.loads(person.text.splitlines()[-1])
    return got


def test_a_question_is_lines_and_choices_have_numbers(ask: Ask) -> None:
    person = ask(TEXT, MENU)
    person.reply("answer:", "x\n")
    person.reply("number (Enter: 2, ?: more, <: back):", "1\n")
    assert ["x", "fast"] == answers(person)
    assert [
        "a line before",
        "",
        "? Which one?",
        "  answer: x",
        "  -> leads to <x>",
        "told after text",
        "",
        "This is why.",
        "? Which goal?",
        "  1) the fastest - at the same batch",
        "  2) my own micro-batch",
        "  3) my other goal",
        "  number (Enter: 2, ?: more, <: back): 1",
        "  -> leads to <fast>",
        "told after menu",
    ] == person.text.splitlines()[:-1]


@pytest.mark.parametrize("term", ["dumb", "unknown", ""])
def test_what_terminal_can_only_print(ask: Ask, term: str) -> None:
    person = ask(COUNT, term=term)
    person.reply("answer (Enter: 8):", "\n")
    assert ["8"] == answers(person)


@pytest.mark.parametrize(
    ("question", "typed", "answer"),
    [
        (MENU, "", "own"),
        (MENU, "3", "other"),
        (MENU, "the", "fast"),
        (MENU, "MY OWN", "own"),
        (MENU, "other", "other"),
        (CONFIRM, "", "yes"),
        (CONFIRM, "n", "no"),
        (CONFIRM, "YES", "yes"),
        (PATH, "~/a/", "/home/somebody/a"),
        (TEXT, " x ", "x"),
        (OPEN, "", "./llama"),
        (OPEN, "2", "./qwen"),
        (OPEN, "7b", "7b"),
    ],
)
def test_what_a_line_means(
    ask: Ask, question: Mapping[str, object], typed: str, answer: str
) -> None:
    person = ask(question)
    person.reply("):" if question in (MENU, CONFIRM, OPEN) else "answer:", typed + "\n")
    assert [answer] == answers(person)


@pytest.mark.parametrize(
    ("question", "typed", "problem", "good"),
    [
        (MENU, "0", "a number from 1 to 3", "1"),
        (MENU, "4", "a number from 1 to 3", "1"),
        (MENU, "my", "a number from 1 to 3", "1"),
        (COUNT, "many", "a whole number from 1 on", "8"),
        (CONFIRM, "maybe", "yes or no", "yes"),
        (TEXT, "", "an answer is needed", "x"),
        (TEXT, "bad", "`bad` is bad\n  say `good`", "x"),
    ],
)
def test_an_answer_that_is_none_is_asked_again(
    ask: Ask, question: Mapping[str, object], typed: str, problem: str, good: str
) -> None:
    person = ask(question)
    person.reply(":", typed + "\n")
    person.reply(f"  ! {problem}\n  ", good + "\n")
    assert 1 == len(answers(person))
    # The question itself stands above, as it does on paper.
    assert 1 == person.text.count(str(question["text"]))


def test_a_question_mark_tells_more(ask: Ask) -> None:
    person = ask(MENU)
    person.reply("):", "?\n")
    person.reply("  The first line of it.\n  The second line of it.\n  number", "\n")
    assert ["own"] == answers(person)


def test_what_others_named_steers_nothing_as_a_choice_and_as_the_default(ask: Ask) -> None:
    odd = "a\x1b[31mred\x07"
    listed = {**MENU, "default": "odd", "choices": [{"value": "odd", "title": odd, "detail": odd}]}
    person = ask({**TEXT, "default": odd, "why": odd}, listed)
    person.reply("answer (Enter: a?[31mred?):", "x\n")
    person.reply("number (Enter: 1, ?: more, <: back):", "1\n")
    assert ["x", "odd"] == answers(person)
    assert "  1) a?[31mred? - a?[31mred?" in person.text.splitlines()
    assert b"\x07" not in person.received


def test_less_than_goes_back_but_not_from_the_first(ask: Ask) -> None:
    person = ask(TEXT, COUNT)
    person.reply("answer:", "<\n")
    person.reply("(Enter: 8, <: back):", "<\n")
    person.reply("? Which one?\n  answer:", "again\n")
    person.reply("told after text\n\n? How many?\n  answer (Enter: 8, <: back):", "9\n")
    assert ["again", "9"] == answers(person)


def test_lines_are_folded_between_words(ask: Ask) -> None:
    person = ask({**MENU, "why": "word " * 30}, columns=50)
    person.reply("):", "\n")
    assert ["own"] == answers(person)
    assert 30 == person.text.count("word")


def test_a_choice_fills_its_lines_though_it_has_a_comma(ask: Ask) -> None:
    detail = "writes the config and prints the command"
    choices = [{"value": "own", "title": "no, only write the files", "detail": detail}]
    person = ask({**MENU, "choices": choices}, columns=70)
    person.reply("):", "\n")
    assert ["own"] == answers(person)
    assert f"  1) no, only write the files - {detail[:-8]}\n    command\n" in person.text


def test_a_long_menu_is_cut_and_its_other_lines_can_be_typed(ask: Ask) -> None:
    many = [{"value": f"m{number}", "title": f"m{number}"} for number in range(40)]
    person = ask({**PATH, "choices": many, "default": "m20", "more": "More."}, columns=48)
    # The answer has a line of its own where the prompt leaves no room for it.
    person.reply("  number or answer (Enter: m20, ?: more):\n  >", "13\n")
    assert ["13"] == answers(person)
    assert "  12) m11\n  and 28 more: type a name" in person.text


@pytest.mark.parametrize("key", [CTRL_C, CTRL_D], ids=["ctrl-c", "ctrl-d"])
@pytest.mark.parametrize("question", [TEXT, MENU, CONFIRM], ids=lambda question: question["key"])
def test_the_end_is_130_and_on_a_line_of_its_own(
    ask: Ask, question: Mapping[str, object], key: str
) -> None:
    person = ask(question)
    person.reply(":", key)
    assert 130 == person.end()
    assert "error: interrupted; nothing was written" == person.text.splitlines()[-1]
    assert b"\x1b" not in person.received


def test_enter_alone_does_not_give_again_what_was_refused(ask: Ask) -> None:
    bad = {**OPEN, "default": "bad", "choices": [{"value": "bad", "title": "bad"}, *OPEN_CHOICES]}
    person = ask(bad)
    person.reply("Enter: 1", "\r")
    person.reply("Enter: 2", "\r")
    assert ["./llama"] == answers(person)


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
    began = time.perf_counter()
    assert [PENDING] * 2 == [consequence(answer) for answer in ("70", "70b")]
    assert time.perf_counter() - began < 1
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

WHY = "This is why."
PROMPTS_TEXT = {"key": "text", "flag": "$text", "text": "Which one?", "why": WHY}
PROMPTS_MENU = {
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
PROMPTS_CONFIRM = {
    "key": "confirm",
    "flag": "$yes",
    "text": "Go on?",
    "kind": "confirm",
    "default": "yes",
}
KINDS = (PROMPTS_TEXT, COUNT, PATH, PROMPTS_MENU, PROMPTS_CONFIRM)


@pytest.fixture
def ask_prompts(tmp_path: Path) -> Iterator[Ask]:
    """Ask these questions."""
    opened: list[Terminal] = []
    (tmp_path / "work").mkdir()

    def run(
        *questions: Mapping[str, object], columns: int = 80, lines: int = 30, **env: str
    ) -> Terminal:
        listed = tmp_path / "questions.json"
        listed.write_text(json.dumps(questions))
        opened.append(
            Terminal(
                tmp_path / "work",
                [str(listed)],
                env,
                program=PROGRAM,
                columns=columns,
                lines=lines,
            )
        )
        return opened[-1]

    yield run
    for one in opened:
        one.child.close(force=True)


def answers_prompts(person: Terminal) -> list[str]:
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


def pointed(person: Terminal) -> str:
    """The line that the pointer stands before."""
    (line,) = (line for line in person.lines if line.startswith("  > "))
    return line[4:]


def test_a_question_shows_why_and_leaves_one_line_for_its_answer(ask_prompts: Ask) -> None:
    person = ask_prompts(PROMPTS_TEXT, {**COUNT, "why": WHY})
    assert ["a line before", "", WHY, "? Which one?"] == see(person, "Which one?")[:4]
    assert "? Which one? seven" == press(person, "seven", "leads to <seven>")[3]
    shown = press(person, ENTER, "How many?")
    assert ["a line before", "? Which one? seven", "told after text", "", WHY] == shown[:5]
    person.child.send(ENTER)
    assert ["seven", "8"] == answers_prompts(person)
    assert [
        "a line before",
        "? Which one? seven",
        "told after text",
        "? How many? 8",
        "told after count",
    ] == person.text.splitlines()[:-1]


def test_what_an_answer_leads_to_is_shown_as_it_is_typed(ask_prompts: Ask) -> None:
    person = ask_prompts(COUNT)
    see(person, "leads to <8>")
    press(person, "1", "leads to <1>")
    press(person, "6", "leads to <16>")
    press(person, BACKSPACE, "leads to <1>")
    assert "leads to" not in "\n".join(press(person, "x", "1x"))
    press(person, BACKSPACE * 2, "leads to <8>")


def test_what_a_choice_leads_to_is_shown_as_it_is_pointed_at(ask_prompts: Ask) -> None:
    person = ask_prompts(PROMPTS_MENU)
    see(person, "leads to <own>")
    assert "my own micro-batch" == pointed(person)
    press(person, DOWN, "leads to <joke>")
    press(person, DOWN, "leads to <fast>")
    assert "the fastest         at the same batch" == pointed(person)
    press(person, UP, "leads to <joke>")
    person.child.send(ENTER)
    assert ["joke"] == answers_prompts(person)
    assert "? Which goal? jokes, quickly" in person.lines


@pytest.mark.parametrize("default", [None, "what is not in it"])
def test_a_menu_without_a_default_starts_at_its_first_line(
    ask_prompts: Ask, default: str | None
) -> None:
    person = ask_prompts({**PROMPTS_MENU, "default": default})
    see(person, "leads to <fast>")
    person.child.send(ENTER)
    assert ["fast"] == answers_prompts(person)


def test_typing_filters_a_menu_by_words(ask_prompts: Ask) -> None:
    person = ask_prompts(PROMPTS_MENU)
    see(person, "Which goal?")
    assert "my own" not in "\n".join(press(person, "st", "leads to <fast>"))
    assert "the fastest" not in "\n".join(
        press(person, BACKSPACE * 2 + "QUI JO", "leads to <joke>")
    )
    person.child.send(ENTER)
    assert ["joke"] == answers_prompts(person)


def test_where_no_line_is_left_enter_takes_none_and_says_why(ask_prompts: Ask) -> None:
    person = ask_prompts(PROMPTS_MENU)
    see(person, "Which goal?")
    shown = "\n".join(press(person, "zz", "zz"))
    assert "leads to" not in shown
    press(person, ENTER, "! no line has `zz`")
    shown = "\n".join(press(person, BACKSPACE * 2, "the fastest"))
    assert "no line has" not in shown
    person.child.send(ENTER)
    assert ["fast"] == answers_prompts(person)


@pytest.mark.parametrize("question", KINDS, ids=lambda question: question["key"])
def test_letters_and_digits_are_never_keys(
    ask_prompts: Ask, tmp_path: Path, question: Mapping[str, object]
) -> None:
    """Each is typed, so that it can be seen; none answers, moves or ends anything."""
    (tmp_path / "work" / "here.py").touch()
    person = ask_prompts(question)
    see(person, str(question["text"]))
    for typed in "yYnNjkqhlbx0129":
        press(person, typed, typed)
    see(person, "yYnNjkqhlbx0129")
    (line,) = (each for each in person.lines if str(question["text"]) in each)
    assert line.endswith(" yYnNjkqhlbx0129")
    person.child.send(CTRL_C)
    assert 130 == person.end()


@pytest.mark.parametrize(("keys", "answer"), [("", "yes"), ("y", "yes"), ("n", "no"), (UP, "no")])
def test_a_yes_or_no_takes_enter(ask_prompts: Ask, keys: str, answer: str) -> None:
    person = ask_prompts(PROMPTS_CONFIRM)
    see(person, "leads to <yes>")
    press(person, keys, f"leads to <{answer}>")
    person.child.send(ENTER)
    assert [answer] == answers_prompts(person)


def test_a_no_may_be_the_default(ask_prompts: Ask) -> None:
    person = ask_prompts({**PROMPTS_CONFIRM, "default": "no"})
    person.reply("leads to <no>", ENTER)
    assert ["no"] == answers_prompts(person)


@pytest.mark.parametrize(
    ("question", "default", "other"),
    [(PROMPTS_CONFIRM, "yes", "no"), (PROMPTS_MENU, "own", "joke")],
)
def test_an_enter_before_a_menu_is_drawn_is_no_answer_to_it(
    ask_prompts: Ask, question: Mapping[str, object], default: str, other: str
) -> None:
    person = ask_prompts(PROMPTS_TEXT, question, CHECK_SECONDS="0.7")
    person.reply("Which one?", "x" + ENTER)
    person.child.send(ENTER * 3)
    see(person, f"leads to <{default}>")
    person.child.send(DOWN + ENTER)
    assert ["x", other] == answers_prompts(person)


def test_what_is_typed_ahead_of_other_questions_counts(ask_prompts: Ask) -> None:
    person = ask_prompts(PROMPTS_TEXT, COUNT, CHECK_SECONDS="0.7")
    person.reply("Which one?", "x" + ENTER)
    see(person, "? Which one? x")
    person.child.send("12")
    shown = see(person, "leads to <12>")
    assert ["told after text", "", "? How many? (8) 12"] == shown[2:5]
    person.child.send(ENTER)
    assert ["x", "12"] == answers_prompts(person)


def test_an_answer_of_the_wrong_kind_is_asked_again_with_the_reason(
    ask_prompts: Ask,
) -> None:
    person = ask_prompts(COUNT)
    person.reply("How many?", "zero" + ENTER)
    shown = see(person, "! a whole number from 1 on")
    assert ["a line before", "", "? How many? (8)", "  ! a whole number from 1 on"] == shown[:4]
    shown = press(person, UP, "zero")
    assert "? How many? (8) zero" in shown
    press(person, BACKSPACE * 4 + "12", "leads to <12>")
    person.child.send(ENTER)
    assert ["12"] == answers_prompts(person)


def test_an_answer_that_the_world_refuses_is_asked_again_with_the_reason(
    ask_prompts: Ask,
) -> None:
    person = ask_prompts(COUNT, PROMPTS_TEXT)
    person.reply("How many?", ENTER)
    person.reply("Which one?", "bad one" + ENTER)
    shown = see(person, "is bad")
    assert ["  ! `bad one` is bad", "    say `good`"] == shown[6:8]
    assert "? Which one? bad one" not in shown
    person.child.send("good" + ENTER)
    assert ["8", "good"] == answers_prompts(person)
    assert [
        "a line before",
        "? How many? 8",
        "told after count",
        "? Which one? good",
        "told after text",
    ] == person.text.splitlines()[:-1]


def test_while_an_answer_is_checked_it_stands_there(ask_prompts: Ask) -> None:
    person = ask_prompts(PROMPTS_TEXT, CHECK_SECONDS="1")
    person.reply("Which one?", "good" + ENTER)
    assert ["a line before", "? Which one? good"] == see(person, "? Which one? good")


def test_an_empty_answer_without_a_default_is_asked_again(ask_prompts: Ask) -> None:
    person = ask_prompts(PROMPTS_TEXT)
    person.reply("Which one?", ENTER)
    person.reply("! an answer is needed", "x" + ENTER)
    assert ["x"] == answers_prompts(person)


def test_question_marks_show_more_and_hide_it_again(ask_prompts: Ask) -> None:
    person = ask_prompts(PROMPTS_MENU)
    before = see(person, "? for more")
    shown = press(person, "?", "The second line")
    assert {"  The first line of it.", "  The second line of it."} == set(shown) - set(before)
    person.child.send("?")
    time.sleep(0.2)
    assert before == see(person, "? for more")


def test_going_back_leaves_no_trace(ask_prompts: Ask) -> None:
    questions = (PROMPTS_TEXT, PROMPTS_MENU, COUNT)
    straight = ask_prompts(*questions)
    straight.reply("Which one?", "x" + ENTER)
    straight.reply("leads to <own>", ENTER)
    straight.reply("leads to <8>", "12" + ENTER)
    person = ask_prompts(*questions)
    person.reply(
        "Which one?", "an answer that is so long that it needs two rows of it " * 2 + ENTER
    )
    person.reply("leads to <own>", DOWN + ENTER)
    see(person, "leads to <8>")
    press(person, ESCAPE, "leads to <own>")
    shown = press(person, ESCAPE, WHY)
    assert ["a line before", "", WHY, "? Which one?"] == shown[:4]
    assert "an answer that" not in person.text
    person.child.send("x" + ENTER)
    person.reply("leads to <own>", ENTER)
    person.reply("leads to <8>", "12" + ENTER)
    assert ["x", "own", "12"] == answers_prompts(person) == answers_prompts(straight)
    assert straight.text == person.text


def test_the_first_question_goes_nowhere_and_says_how_to_leave(ask_prompts: Ask) -> None:
    person = ask_prompts(PROMPTS_TEXT, PROMPTS_MENU)
    before = see(person, "Ctrl-C to stop")
    assert "Esc" not in person.text
    person.child.send(ESCAPE)
    time.sleep(0.3)
    assert before == see(person, "Ctrl-C to stop")
    person.child.send("x" + ENTER)
    shown = see(person, "Esc to go back")
    assert not any("Ctrl-C" in line for line in shown)
    person.child.send(ENTER)
    assert ["x", "own"] == answers_prompts(person)


def test_escape_does_not_lag_and_arrows_and_alt_are_none(ask_prompts: Ask) -> None:
    person = ask_prompts(PROMPTS_TEXT, PROMPTS_MENU)
    person.reply("Which one?", "x" + ENTER)
    see(person, "leads to <own>")
    person.child.send(DOWN * 2 + "\x1bb\x1b[C\x1b[D")
    see(person, "leads to <fast>")
    start = time.monotonic()
    person.child.send(ESCAPE)
    person.wait_for(WHY)
    # Half a second is what libraries wait by themselves, and one more where Alt has meanings.
    assert time.monotonic() - start < 0.4


@pytest.mark.parametrize("keys", [ESCAPE + ENTER, ENTER + ENTER, ESCAPE + CTRL_C, "x" + CTRL_C * 2])
def test_a_key_that_comes_in_one_read_behind_the_last_one_of_a_question_breaks_nothing(
    ask_prompts: Ask, keys: str
) -> None:
    person = ask_prompts(PROMPTS_TEXT, COUNT, PROMPTS_MENU)
    person.reply("Which one?", "x" + ENTER)
    see(person, "leads to <8>")
    person.child.send(keys)
    time.sleep(0.5)
    person.child.send(CTRL_C)
    assert 130 == person.end(), person.text
    assert "not running" not in person.text
    assert "Exception" not in person.text


def write_paths(folder: Path) -> None:
    for name in ("models/llama", "models/llava", "models/qwen", "a b", "empty"):
        (folder / name).mkdir(parents=True)
    for name in ("train.py", "train_lora.py", ".hidden.py", "models/llama/config.json"):
        (folder / name).touch()


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
        ("", "", ["a b/", "empty/", "models/", "train.py", "train_lora.py"]),
        ("empty/", "empty/", []),
        ("no/such/folder", "no/such/folder", []),
        ("~/ho", "~/home.py", []),
    ],
)
def test_tab_completes_a_path(
    ask_prompts: Ask, tmp_path: Path, typed: str, completed: str, listed: list[str]
) -> None:
    person = ask_prompts(PATH, HOME=str(tmp_path / "home"))
    write_paths(tmp_path / "work")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "home.py").touch()
    person.reply("Where?", typed)
    person.child.send(TAB)
    time.sleep(0.1)
    shown = see(person, f"? Where? {completed}".rstrip())
    assert f"? Where? {completed}".rstrip() in shown
    below = shown[shown.index(f"? Where? {completed}".rstrip()) + 1 :]
    rows = itertools.takewhile(lambda line: line.startswith("    "), below)
    assert listed == [line.strip() for line in rows]


def test_completed_paths_can_be_pointed_at_and_go_on(ask_prompts: Ask, tmp_path: Path) -> None:
    person = ask_prompts(PATH)
    write_paths(tmp_path / "work")
    person.reply("Where?", "models/l" + TAB)
    press(person, DOWN, "> llama/")
    press(person, ENTER, "Where? models/llama/")
    assert "llava" not in person.text
    press(person, TAB, "Where? models/llama/config.json")
    press(person, BACKSPACE * len("config.json"), "Where? models/llama/")
    person.child.send(ENTER)
    assert ["models/llama"] == answers_prompts(person)


def test_a_path_from_home_is_answered_in_full(ask_prompts: Ask) -> None:
    person = ask_prompts(PATH, HOME="/home/somebody")
    person.reply("Where?", "~/work/" + ENTER)
    assert ["/home/somebody/work"] == answers_prompts(person)


PROMPTS_OPEN = {
    **PATH,
    "default": "./llama-7b",
    "choices": [
        {"value": "./llama-7b", "title": "llama-7b", "detail": "folder here"},
        {"value": "./qwen", "title": "qwen"},
    ],
}


@pytest.mark.parametrize(
    ("keys", "answer"),
    [
        ("", "./llama-7b"),
        (DOWN, "./qwen"),
        ("7b", "7b"),
        ("7b" + UP, "./llama-7b"),
        ("q", "./qwen"),
        ("q" + DOWN, "q"),
        ("QWEN", "./qwen"),
        ("./qwen", "./qwen"),
        ("owner/name", "owner/name"),
        ("own" + TAB, "own folder"),
        ("q" + BACKSPACE, "./qwen"),
        ("7b" + BACKSPACE * 2 + UP, "./qwen"),
    ],
)
def test_what_is_found_is_a_menu_and_what_is_typed_is_an_answer_too(
    ask_prompts: Ask, tmp_path: Path, keys: str, answer: str
) -> None:
    person = ask_prompts(PROMPTS_OPEN)
    (tmp_path / "work" / "own folder").mkdir()
    see(person, "leads to <./llama-7b>")
    person.child.send(keys)
    see(person, f"leads to <{answer}>")
    person.child.send(ENTER)
    assert [answer] == answers_prompts(person)


def test_paths_can_be_completed_below_what_was_found(ask_prompts: Ask, tmp_path: Path) -> None:
    person = ask_prompts(PROMPTS_OPEN)
    write_paths(tmp_path / "work")
    see(person, "leads to <./llama-7b>")
    assert "models/llava" not in "\n".join(press(person, "models/" + TAB, "llava/"))
    press(person, DOWN + DOWN + ENTER, "? Where? models/llava/")
    person.child.send(ENTER)
    assert ["models/llava"] == answers_prompts(person)


def test_a_pasted_line_is_typed_and_not_yet_answered(ask_prompts: Ask) -> None:
    person = ask_prompts(PROMPTS_TEXT)
    person.reply("Which one?", "\x1b[200~what?\tis\r\n this\x1b[201~")
    see(person, "leads to <what? is this>")
    person.child.send(ENTER)
    assert ["what? is this"] == answers_prompts(person)


def is_cooked(person: Terminal) -> bool:
    return bool(tcgetattr(person.child.fileno())[3] & (ECHO | ICANON) == ECHO | ICANON)


@pytest.mark.parametrize("key", [CTRL_C, CTRL_D], ids=["ctrl-c", "ctrl-d"])
@pytest.mark.parametrize("term", ["xterm-256color", "dumb"])
@pytest.mark.parametrize("question", KINDS, ids=lambda question: question["key"])
def test_the_end_leaves_nothing_behind(
    ask_prompts: Ask, question: Mapping[str, object], term: str, key: str
) -> None:
    person = ask_prompts(PROMPTS_TEXT, {**question, "key": "last", "text": "The last?"}, TERM=term)
    person.reply("Which one?", "x" + ENTER)
    see(person, "The last?")
    assert is_cooked(person) == (term == "dumb")
    person.child.send(key)
    assert 130 == person.end()
    shown = person.text.splitlines()
    assert "error: interrupted; nothing was written" == shown[-1]
    assert "Traceback" not in person.text
    if term == "dumb":
        return
    assert ["a line before", "? Which one? x", "told after text"] == shown[:-1]
    # The cursor is shown, lines wrap, and what is pasted is typed as before.
    for on, off in ((b"\x1b[?25h", b"\x1b[?25l"), (b"\x1b[?7h", b"\x1b[?7l")):
        assert person.received.rindex(on) > person.received.rindex(off)
    assert person.received.rindex(b"\x1b[?2004l") > person.received.rindex(b"\x1b[?2004h")


def test_ctrl_d_in_a_line_ends_nothing(ask_prompts: Ask) -> None:
    person = ask_prompts(PROMPTS_TEXT)
    see(person, "Which one?")
    press(person, "x" + CTRL_D, "leads to <x>")
    person.child.send(ENTER)
    assert ["x"] == answers_prompts(person)


def test_a_signal_ends_as_ctrl_c_does(ask_prompts: Ask) -> None:
    person = ask_prompts(PROMPTS_MENU)
    see(person, "Which goal?")
    person.child.kill(signal.SIGINT)
    assert 130 == person.end()
    assert ["a line before", "error: interrupted; nothing was written"] == person.text.splitlines()


LONG = {
    **PROMPTS_MENU,
    "text": "Which of these many goals is the one that you have in mind for this job today?",
    "why": "It decides what is searched, and what is kept as the script has it, in every case.",
    "choices": [
        {
            "value": "a",
            "title": "the fastest",
            "detail": "ZeRO-3 fits: 32.1 of 39.4 GiB, about 15 % slower than the one before it",
        },
        {"value": "own", "title": "a title of so many words that no detail can stand beside it"},
    ],
}


@pytest.mark.parametrize("question", [LONG, {**LONG, "kind": "text", "default": "a default"}])
@pytest.mark.parametrize("columns", [50, 30, 200])
def test_every_word_can_be_read_in_any_width(
    ask_prompts: Ask, question: Mapping[str, object], columns: int
) -> None:
    if question["kind"] == "text":
        question = {**question, "choices": []}
    person = ask_prompts(question, columns=columns, lines=60)
    see(person, "leads")
    press(person, "?", "second line")
    texts = [str(question[name]) for name in ("why", "text", "more")]
    choices: Sequence[Mapping[str, str]] = question["choices"]  # type: ignore[assignment]
    texts += [text for choice in choices for text in (choice["title"], choice.get("detail", ""))]
    shown = " ".join(person.text.split())
    for text in texts:
        for words in text.splitlines():
            assert all(word in shown for word in words.split()), person.text
    if columns == 50:
        assert " ".join(texts[0].split()) in shown
    assert all(len(line) < min(columns, 100) for line in person.lines)


def test_a_question_is_drawn_anew_in_another_size(ask_prompts: Ask) -> None:
    person = ask_prompts(PROMPTS_TEXT, LONG, columns=80)
    person.reply("Which one?", "x" + ENTER)
    see(person, "leads to <own>")
    for columns, lines in ((50, 30), (100, 30), (60, 40)):
        person.resize(columns, lines)
        time.sleep(0.2)
        shown = "\n".join(see(person, "leads to <own>"))
        for words in ("? Which of these", "It decides", "> a title of", "Up/Down to choose"):
            assert 1 == shown.count(words), shown
        assert all(len(line) < columns for line in person.lines)
    fresh = ask_prompts(PROMPTS_TEXT, LONG, columns=60, lines=40)
    fresh.reply("Which one?", "x" + ENTER)
    see(fresh, "leads to <own>")
    person.child.send(ENTER)
    fresh.child.send(ENTER)
    assert ["x", "own"] == answers_prompts(person) == answers_prompts(fresh)
    assert fresh.text == person.text


def test_a_menu_that_is_higher_than_the_terminal_scrolls(ask_prompts: Ask) -> None:
    choices = [{"value": str(n), "title": f"number {n} of them"} for n in range(60)]
    person = ask_prompts({**PROMPTS_MENU, "default": None, "choices": choices}, lines=12)
    see(person, "> number 0 of them")
    assert "? Which goal?" in person.lines
    press(person, UP, "> number 59 of them")
    assert "? Which goal?" in person.lines
    press(person, DOWN * 9, "> number 8 of them")
    press(person, "42", "leads to <42>")
    person.child.send(ENTER)
    assert ["42"] == answers_prompts(person)


def test_a_terminal_of_few_lines_still_takes_answers(ask_prompts: Ask) -> None:
    person = ask_prompts(PROMPTS_MENU, lines=4)
    person.wait_for("> my own micro-batch")
    person.settle()
    person.child.send(DOWN + ENTER)
    assert ["joke"] == answers_prompts(person)


@pytest.mark.parametrize("kind", ["text", "choice"])
def test_a_terminal_of_few_lines_shows_the_question_and_not_why(
    ask_prompts: Ask, kind: str
) -> None:
    choices = [] if kind == "text" else PROMPTS_MENU["choices"]
    text = "Which goal is it that you have?"
    question = {**PROMPTS_MENU, "kind": kind, "text": text, "why": "A reason of many words. " * 3}
    person = ask_prompts({**question, "choices": choices}, columns=20, lines=5)
    see(person, "->")
    assert "you have?" in person.text


def test_odd_characters_steer_nothing(ask_prompts: Ask) -> None:
    odd = {"value": "odd", "title": "a\x1b[31mred\x07 名前\x9b one", "detail": "日本" * 30}
    person = ask_prompts(
        {**PROMPTS_MENU, "default": "odd", "choices": [odd]}, PROMPTS_TEXT, PYTHONIOENCODING="utf-8"
    )
    see(person, "leads to <odd>")
    assert b"\x1b[31m" not in person.received
    assert b"\x07" not in person.received
    shown = press(person, ENTER, "Which one?")
    assert 1 == "\n".join(shown).count("? Which goal? a?[31mred? ")
    press(person, ESCAPE, "leads to <odd>")
    assert 1 == person.text.count("Which goal?")
    assert "told after" not in person.text


def test_an_ascii_terminal_is_enough(ask_prompts: Ask) -> None:
    person = ask_prompts(PROMPTS_MENU, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    see(person, "leads to <own>")
    assert person.text.isascii()
    person.child.send(ENTER)
    assert ["own"] == answers_prompts(person)


SGR = re.compile(rb"\x1b\[([0-9;]*)m")


def colours(received: bytes) -> set[int]:
    """What sets a colour: 30 to 49, 90 to 107."""
    codes = {int(code) for found in SGR.findall(received) for code in found.split(b";") if code}
    return {code for code in codes if code >= 30}


def test_no_color_takes_the_colours_alone(ask_prompts: Ask) -> None:
    texts = []
    for env in ({}, {"NO_COLOR": "1"}):
        person = ask_prompts(PROMPTS_MENU, COUNT, **env)
        person.reply("Which goal?", ENTER)
        person.reply("How many?", "x" + ENTER)
        see(person, "! a whole number")
        texts.append(person.text)
        assert bool(env) is not bool(colours(person.received))
    assert texts[0] == texts[1]


# xterm's own palette, of which a terminal without a theme shows these.
XTERM = {31: (205, 0, 0), 35: (205, 0, 205)}


def test_every_colour_can_be_read_on_white_and_on_black(ask_prompts: Ask) -> None:
    """At 3:1 at least, which WCAG asks of large text; all of it is also said by a sign."""
    person = ask_prompts(PROMPTS_MENU, COUNT)
    person.reply("Which goal?", ENTER)
    person.reply("How many?", "x" + ENTER)
    see(person, "! a whole number")
    used = colours(person.received)
    assert set(XTERM) == used
    for code in used:
        for ground in ((255, 255, 255), (0, 0, 0)):
            assert 3 <= contrast(XTERM[code], ground)


def test_every_coloured_word_has_a_sign(ask_prompts: Ask) -> None:
    person = ask_prompts(PROMPTS_MENU, COUNT)
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
def test_a_slow_consequence_holds_up_no_key_and_no_answer(ask_prompts: Ask, seconds: str) -> None:
    person = ask_prompts(
        COUNT, PROMPTS_TEXT, PROMPTS_MENU, PROMPTS_CONFIRM, CONSEQUENCE_SECONDS=seconds
    )
    person.reply("How many?", "16" + ENTER)
    person.reply("Which one?", "name" + ENTER)
    person.reply("Which goal?", DOWN + ENTER)
    person.reply("Go on?", "n" + ENTER)
    assert ["16", "name", "joke", "no"] == answers_prompts(person)
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


@pytest.mark.parametrize("seed", range(6))
def test_no_keys_end_in_a_traceback(ask_prompts: Ask, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - keys, not secrets
    special = [
        "\x1b[A",
        "\x1b[B",
        "\x1b[C",
        "\x1b[5~",
        "\x1bOP",
        "\x1b\x1b",
        TAB,
        ENTER,
        "?",
        "\x1b",
    ]
    special += [chr(code) for code in range(32) if chr(code) not in "\x03\x04\x1a\x1c"]
    person = ask_prompts(
        PROMPTS_TEXT,
        PATH,
        PROMPTS_MENU,
        COUNT,
        PROMPTS_TEXT,
        PATH,
        PROMPTS_MENU,
    )
    see(person, "Which one?")
    for _ in range(150):
        odd = rng.choice(special) if rng.random() < 0.7 else chr(rng.randrange(32, 0x2000))
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
    (tmp_path / "questions.json").write_text(json.dumps([PROMPTS_TEXT, COUNT]))
    shell = Terminal(
        tmp_path,
        ["-c", "import os; os.execlp('sh', 'sh', '-i')"],
        {"PS1": "shell> ", "ENV": ""},
        program=(),
    )
    shell.reply("shell>", shlex.join([sys.executable, *PROGRAM, "questions.json"]) + ENTER)
    shell.reply("Which one?", "x" + ENTER)
    press(shell, "1\x1a", "Stopped")
    shell.reply("Stopped", "echo of the $((1 + 1))nd" + ENTER)
    shell.reply("of the 2nd", "fg" + ENTER)
    see(shell, "? How many? (8) 1")
    press(shell, ESCAPE, WHY)
    assert "of the 2nd" in shell.text
    shell.child.send(CTRL_C)
    see(shell, "error: interrupted")
    shell.child.close(force=True)
