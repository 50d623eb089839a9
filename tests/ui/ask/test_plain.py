"""Questions at a terminal that can only print: numbers, lines, and no escape sequence at all."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from cli.harness import CTRL_C, CTRL_D, Terminal

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
