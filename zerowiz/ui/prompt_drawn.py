"""Draw a question at a terminal that can move its cursor, and take the answer by keys.

This is the only module that knows prompt_toolkit; it takes 0.1 s to load.
"""

import sys
import termios
import textwrap
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import FormattedText, StyleAndTextTuples
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import create_input
from prompt_toolkit.input.typeahead import clear_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import (
    BufferControl,
    ConditionalContainer,
    Dimension,
    FormattedTextControl,
    HSplit,
    Layout,
    VerticalAlign,
    Window,
)
from prompt_toolkit.layout.processors import BeforeInput
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.shortcuts import print_formatted_text
from prompt_toolkit.styles import Style
from prompt_toolkit.utils import get_cwidth

from zerowiz.core.command_words import spell
from zerowiz.core.decision.questions import AnswerKind, Back, Question
from zerowiz.translation import _, listing
from zerowiz.ui.prompt_menu import MUST_CHOOSE, Background, Menu, as_answer, choices_of, complete
from zerowiz.ui.text import fill_wide, plain

_WIDEST_COLUMNS = 100
# A menu of more rows scrolls.
_MOST_ROWS = 16
# So many are seen at a glance.
_FEW_LINES = 6
# Beside titles where so much is left for it, or each fits one line; else below each.
_NARROWEST_DETAIL_COLUMNS = 30
_WIDEST_TITLE_COLUMNS = 32
# What is typed starts a row of its own where the question leaves less.
_NARROWEST_INPUT_COLUMNS = 12
# A key that is Esc alone is known after this time; the bytes of an arrow come at once.
_ESCAPE_SECONDS = 0.05

# Each of these colours can be read on white and on black, and a sign or a word says the same.
STYLE = Style(
    [
        ("sign", "ansimagenta bold"),
        ("question", "bold"),
        ("pointed", "ansimagenta bold"),
        ("answer", "ansimagenta"),
        ("problem", "ansired"),
        ("consequence", "bold"),
    ]
)


def _end(event: KeyPressEvent, **how: Any) -> None:  # noqa: ANN401 - as `Application.exit` takes it
    """End the question, unless a key before this one did: Esc and Enter can come in one read."""
    if event.app.is_running and not event.app.is_done:
        event.app.exit(**how)


class Screen:
    """The terminal at stderr; results go to stdout."""

    def __init__(self) -> None:
        self.output = Vt100_Output.from_pty(
            sys.stderr, default_color_depth=ColorDepth.from_env(), enable_bell=False
        )
        # Nothing here has to know where on the screen it stands.
        self.output.enable_cpr = False

    @property
    def width(self) -> int:
        """How many columns text may fill; the last one stays free, so that no terminal wraps."""
        return min(self.output.get_size().columns, _WIDEST_COLUMNS) - 1

    def fold(self, text: str, indent: int = 0, hang: int = 0) -> list[str]:
        """The text in lines that fit; all but the first start with `hang` blanks more."""
        first, others = " " * indent, " " * (indent + hang)
        if get_cwidth(text) > len(text):
            return fill_wide(text, self.width, first, others)
        lines = textwrap.wrap(
            text,
            max(self.width, len(others) + 1),
            initial_indent=first,
            subsequent_indent=others,
            break_on_hyphens=False,
        )
        return lines or [""]

    def show_answer(self, question: Question, answer: str) -> int:
        """A line for what was answered; how many rows it takes."""
        titles = {choice.value: _(choice.title) for choice in choices_of(question)}
        shown = _printable(titles.get(answer, answer))
        lines = self.fold(f"? {_printable(_(question.text))} {shown}", hang=2)
        # The answer is what stands last.
        text, at = "\n".join(lines), len("\n".join(lines)) - len(shown)
        same = text.endswith(shown)
        fragments: StyleAndTextTuples = [
            ("class:sign", text[:1]),
            ("", text[1 : at if same else None]),
            ("class:answer", text[at:] if same else ""),
        ]
        print_formatted_text(FormattedText(fragments), style=STYLE, output=self.output)
        return self.rows_of(lines)

    def show(self, lines: Sequence[str]) -> int:
        """Lines of plain text; how many rows they take."""
        folded = [row for line in lines for row in self.fold(_printable(line), hang=2)]
        self.clear_line()
        sys.stderr.writelines(f"{row}\n" for row in folded)
        sys.stderr.flush()
        return self.rows_of(folded)

    def rows_of(self, lines: list[str]) -> int:
        """How many rows these lines take on the screen."""
        columns = self.output.get_size().columns
        return sum(max(1, -(-get_cwidth(line) // columns)) for line in lines)

    def clear_line(self) -> None:
        """Take off what a terminal echoed of keys that nobody waited for."""
        self.output.write_raw("\r")
        self.output.erase_down()
        self.output.flush()

    def erase(self, rows: int) -> None:
        """Take the last rows off the screen."""
        if rows:
            self.output.cursor_up(rows)
            self.clear_line()


def _printable(text: str) -> str:
    return plain(spell(text))


class DrawnQuestion:
    """One question on the screen, until Enter answers it or Esc goes back.

    Args:
        question: What is asked.
        consequence: What an answer leads to, in a line; empty where that is not known.
        problem: Why the answer before was not taken, in lines; empty for the first.
        typed: The answer before; the key Up brings it back.
    """

    def __init__(
        self,
        screen: Screen,
        question: Question,
        consequence: Callable[[str], str],
        *,
        can_go_back: bool,
        problem: str = "",
        typed: str = "",
    ) -> None:
        self._screen, self._question = screen, question
        self._consequence = Background(consequence, self._redraw)
        self._application: Application[str | Back] | None = None
        self._problem, self._can_go_back = problem, can_go_back
        self._shows_more = False
        self.was_suspended = False
        choices = choices_of(question)
        takes_typed = question.kind not in MUST_CHOOSE
        self._must_choose = not takes_typed
        self._choices = Menu(choices, takes_typed=takes_typed and bool(choices))
        self._choices.point_at(question.default)
        # The choices, or the paths that go on from what is typed.
        self._menu = self._choices
        self._buffer = Buffer(
            multiline=False,
            history=InMemoryHistory([typed] if typed else []),
            on_text_changed=lambda _buffer: self._type(),
        )

    def run(self) -> str | Back:
        """What the person answers.

        Raises:
            KeyboardInterrupt: Ctrl-C.
            EOFError: Ctrl-D, or the terminal is gone.
        """
        keyboard = create_input(sys.stdin)
        self._screen.clear_line()
        if self._must_choose:
            # Enter that was pressed before this could be read is no answer to it: it may launch.
            termios.tcflush(keyboard.fileno(), termios.TCIFLUSH)
            clear_typeahead(keyboard)
        application: Application[str | Back] = Application(
            layout=Layout(self._rows()),
            style=STYLE,
            key_bindings=self._keys(),
            erase_when_done=True,
            output=self._screen.output,
            input=keyboard,
        )
        application.ttimeoutlen = application.timeoutlen = _ESCAPE_SECONDS
        self._application = application
        return application.run()

    def _redraw(self) -> None:
        """May be called in any thread."""
        application = self._application
        loop = None if application is None else application.loop
        if application is not None and loop is not None:
            # Once the question is answered its loop is closed.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(application.invalidate)

    # Keys

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()
        is_empty = Condition(lambda: not self._buffer.text)
        can_point = Condition(lambda: bool(self._menu.shown))
        can_go_back = Condition(lambda: self._can_go_back)
        keys.add("enter")(self._enter)
        keys.add("tab")(lambda _event: self._complete())
        keys.add("?")(lambda _event: self._toggle_more())
        keys.add("down", filter=can_point)(lambda _event: self._menu.move(1))
        keys.add("up", filter=can_point)(lambda _event: self._menu.move(-1))
        keys.add("escape", filter=can_go_back)(lambda event: _end(event, result=Back.BACK))
        keys.add(Keys.BracketedPaste)(
            lambda event: self._buffer.insert_text(" ".join(event.data.split()))
        )
        keys.add("c-c")(lambda event: _end(event, exception=KeyboardInterrupt))
        keys.add("<sigint>")(lambda event: _end(event, exception=KeyboardInterrupt))
        keys.add("c-d", filter=is_empty)(lambda event: _end(event, exception=EOFError))
        keys.add("c-z")(self._suspend)
        return keys

    def _enter(self, event: KeyPressEvent) -> None:
        choice = self._menu.choice
        if choice is not None and self._menu is not self._choices:
            self._take(choice.value)
        elif choice is None and self._must_choose:
            self._problem = _(
                "no line has `{text}`; delete it to see all lines", text=self._buffer.text
            )
        else:
            _end(event, result=self._answer())

    def _suspend(self, event: KeyPressEvent) -> None:
        """Leave the terminal to the shell until `fg`."""
        self.was_suspended = True
        event.app.suspend_to_background()

    def _answer(self) -> str:
        """What Enter would answer now."""
        choice = None if self._menu is not self._choices else self._menu.choice
        if self._must_choose:
            return "" if choice is None else choice.value
        typed = self._buffer.text.strip() if choice is None else choice.value
        if self._question.kind is AnswerKind.PATH:
            typed = as_answer(typed)
        return typed or self._question.default or ""

    def _type(self) -> None:
        """What is typed filters a menu; paths that went on from it are not listed any more."""
        self._problem = ""
        self._menu = self._choices
        self._menu.keep(self._buffer.text)

    def _take(self, text: str) -> None:
        self._buffer.set_document(Document(text))

    def _toggle_more(self) -> None:
        self._shows_more = not self._shows_more

    def _complete(self) -> None:
        if self._question.kind is AnswerKind.PATH:
            pointed = None if self._menu is self._choices else self._menu.choice
            longer, paths = complete(pointed.value if pointed else self._buffer.text)
            self._take(longer)
            self._menu = Menu(paths) if paths else self._choices

    # Rows

    def _rows(self) -> HSplit:
        """From top to bottom: why, the question with what is typed, its menu, and what it means."""
        typed = BufferControl(self._buffer, input_processors=[BeforeInput(self._before_input)])
        listed = Dimension(min=1, max=_MOST_ROWS)
        has_menu = Condition(lambda: bool(self._menu.shown))
        return HSplit(
            [
                _window(self._above_input),
                Window(typed, height=Dimension(min=1), dont_extend_height=True, wrap_lines=True),
                ConditionalContainer(_window(self._listed, listed), has_menu),
                _window(self._remarks),
            ],
            align=VerticalAlign.TOP,
        )

    def _prompt(self) -> list[str]:
        """The question in lines; what is typed goes on in the last."""
        question = self._question
        # The line of a menu that is pointed at is its default.
        has_menu = bool(choices_of(question))
        default = f" ({question.default})" if question.default and not has_menu else ""
        lines = self._screen.fold(_printable(f"? {_(question.text)}{default}"), hang=2)
        if self._screen.width - get_cwidth(lines[-1]) < _NARROWEST_INPUT_COLUMNS:
            lines.append(" ")
        return lines

    def _above_input(self) -> StyleAndTextTuples:
        why = self._screen.fold(_printable(_(self._question.why))) if self._question.why else []
        fragments: StyleAndTextTuples = [("", "\n".join(["", *why]))]
        for index, line in enumerate(self._prompt()[:-1]):
            fragments += [("", "\n"), *_as_question(line, is_first=index == 0)]
        # A low terminal shows the end of it, which is the question, and not why it is asked.
        return [*fragments, ("[SetCursorPosition]", "")]

    def _before_input(self) -> StyleAndTextTuples:
        lines = self._prompt()
        return [*_as_question(lines[-1], is_first=len(lines) == 1), ("", " ")]

    def _listed(self) -> StyleAndTextTuples:
        """The menu; the pointer stands before the line that Enter takes."""
        shown = self._menu.shown
        widest = max(get_cwidth(_(choice.title)) for choice in shown)
        left = self._screen.width - widest - len("  > ") - 2
        longest = max(get_cwidth(_(choice.detail)) for choice in shown)
        fits = widest <= _WIDEST_TITLE_COLUMNS and left >= _NARROWEST_DETAIL_COLUMNS
        beside = fits or longest <= left
        fragments: StyleAndTextTuples = []
        for index, choice in enumerate(shown):
            is_pointed = index == self._menu.pointed
            title = self._screen.fold(_printable(_(choice.title)), indent=4)
            if is_pointed:
                fragments.append(("[SetCursorPosition]", ""))
                title[0] = f"  > {title[0][4:]}"
            style = "class:pointed" if is_pointed else ""
            fragments.append((style, "\n".join(title)))
            if choice.detail:
                fragments.append(("", self._detail(_(choice.detail), title, widest, beside=beside)))
            fragments.append(("", "\n"))
        return fragments[:-1]

    def _detail(self, detail: str, title: list[str], widest: int, *, beside: bool) -> str:
        """What a choice means, beside its title or below it."""
        if not beside:
            return "\n" + "\n".join(self._screen.fold(_printable(detail), indent=8))
        start = len("  > ") + widest + 2
        lines = self._screen.fold(_printable(detail), indent=start)
        return "\n".join([" " * (start - get_cwidth(title[0])) + lines[0][start:], *lines[1:]])

    def _remarks(self) -> StyleAndTextTuples:
        """What is wrong, what there is to know, what the answer leads to, which keys there are."""
        fold = self._screen.fold
        lines: StyleAndTextTuples = []
        for index, line in enumerate(self._problem.splitlines()):
            # The first says what is wrong, the others what to do.
            folded = fold(
                _printable(line if index else f"! {line}"), indent=4 if index else 2, hang=2
            )
            lines.append(("" if index else "class:problem", "\n".join(folded)))
        if self._shows_more:
            more = (
                self._question.more
                or self._question.why
                or _("There is no more help for this question.")
            )
            paragraphs = more.splitlines()
            lines += [("", "\n".join(fold(_printable(line), indent=2))) for line in paragraphs]
        answer = self._answer()
        leads_to = "" if self._question.problem(answer) else self._consequence(answer)
        if leads_to:
            folded = fold(_printable(f"-> {leads_to}"), indent=2, hang=3)
            lines.append(("class:consequence", "\n".join(folded)))
        lines.append(("", "\n".join(fold(self._known_keys(), indent=2))))
        return [part for line in lines for part in (line, ("", "\n"))][:-1]

    def _known_keys(self) -> str:
        has_choices = bool(choices_of(self._question))
        lines = len(self._menu.shown)
        # Some of them may have no room on the screen.
        among = _(" among {lines}", lines=lines) if lines > _FEW_LINES else ""
        keys = {
            _("Up/Down to choose{among}", among=among): lines > 1,
            _("type to filter"): has_choices and self._must_choose,
            _("type to filter or to name another"): has_choices and not self._must_choose,
            _("Tab to complete"): self._question.kind is AnswerKind.PATH,
            _("? for more"): bool(self._question.more),
            _("Esc to go back"): self._can_go_back,
            _("Ctrl-C to stop"): not self._can_go_back,
        }
        return listing(key for key, is_known in keys.items() if is_known)


def _window(text: Callable[[], StyleAndTextTuples], height: Dimension | None = None) -> Window:
    control = FormattedTextControl(text)
    return Window(control, height=height, dont_extend_height=True, wrap_lines=True)


def _as_question(line: str, *, is_first: bool) -> StyleAndTextTuples:
    if is_first:
        return [("class:sign", line[:1]), ("class:question", line[1:])]
    return [("class:question", line)]
