"""Ask by questionary at a terminal that can move its cursor: its menus, lines and paths.

This is the only module that knows questionary and prompt_toolkit; they take 0.15 s to load.
"""

import signal
import sys
import termios
from collections.abc import Callable
from typing import Any

import questionary
from prompt_toolkit.application import Application
from prompt_toolkit.filters import Always, Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.input import create_input
from prompt_toolkit.input.typeahead import get_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent, merge_key_bindings
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import (
    Dimension,
    FormattedTextControl,
    HSplit,
    Layout,
    VerticalAlign,
    Window,
)
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.output.vt100 import Vt100_Output
from questionary.prompts.common import InquirerControl

from zerowiz.core.command_words import spell
from zerowiz.core.decision.questions import AnswerKind, Back, Question
from zerowiz.translation import _, listing
from zerowiz.ui.prompt_menu import MUST_CHOOSE, Background, as_answer
from zerowiz.ui.text import cells, columns_of, fold, pad, plain

# A menu of more rows scrolls; so few are seen at a glance.
_MOST_ROWS, _FEW_ROWS = 16, 6
# Beside titles where so much is left for it, or each fits one line; else below each.
_NARROWEST_DETAIL_COLUMNS, _WIDEST_TITLE_COLUMNS = 30, 32
_BELOW_COLUMNS = 8
# A key that is Esc alone is known after this time; the bytes of an arrow come at once.
_ESCAPE_SECONDS = 0.05
# What a menu answers whose reader goes on to type a path.
_TYPES = object()

# Each of these colours can be read on white and on black, and a sign or a word says the same.
STYLE = questionary.Style(
    [
        ("qmark", "noinherit ansimagenta bold"),
        ("pointer", "ansimagenta bold"),
        ("highlighted", "ansimagenta bold"),
        ("answer", "noinherit ansimagenta"),
        ("search_success", "noinherit"),
        ("search_none", "noinherit"),
        ("problem", "ansired"),
        ("consequence", "bold"),
    ]
)


class DrawnQuestion:
    """One question on the screen, until Enter answers it or Esc goes back.

    Args:
        question: What is asked.
        consequence: What an answer leads to, in a line; empty where that is not known.
        problem: Why the answer before was not taken, in lines; empty for the first.
        typed: The answer before, to be mended.
    """

    def __init__(
        self,
        question: Question,
        consequence: Callable[[str], str],
        *,
        can_go_back: bool,
        problem: str = "",
        typed: str = "",
    ) -> None:
        self._question = question
        self._leads_to = consequence
        self._problem, self._can_go_back, self._typed = problem, can_go_back, typed
        self._more, self.was_suspended = "", False
        self._takes_typed = question.kind not in MUST_CHOOSE
        # None where a line is typed.
        self._menu: InquirerControl | None = None

    def run(self) -> str | Back:
        """What the person answers.

        Raises:
            KeyboardInterrupt: Ctrl-C.
            EOFError: Ctrl-D, or the terminal is gone.
        """
        keyboard = create_input(sys.stdin)
        if not self._takes_typed:
            # Enter that was pressed before this could be read is no answer to it: it may launch.
            with keyboard.raw_mode():
                early = [*get_typeahead(keyboard), *keyboard.read_keys()]
                termios.tcflush(keyboard.fileno(), termios.TCIFLUSH)
            if any(press.key == Keys.ControlC for press in early):
                raise KeyboardInterrupt
        output = Vt100_Output.from_pty(sys.stderr, default_color_depth=ColorDepth.from_env())
        # Nothing here has to know where on the screen it stands.
        output.enable_cpr = False
        asked: dict[str, Any] = {"input": keyboard, "output": output, "erase_when_done": True}
        answer = self._ask(self._rows(), **asked)
        if answer is _TYPES:
            self._menu = None
            answer = self._ask([], **asked)
        return answer if isinstance(answer, Back) else self._meant(answer)

    def _ask(self, rows: list[questionary.Choice], **how: Any) -> Any:  # noqa: ANN401 - as questionary's
        """What the prompt of questionary answers, with rows and keys besides its own."""
        question = self._question
        # The line of a menu that is pointed at is its default.
        has_default = question.default and self._takes_typed and not question.choices
        text = f"? {_(question.text)}" + (f" ({question.default})" if has_default else "")
        heading = f"\n    {question.heading}" if question.heading and rows else ""
        how |= {"message": _fold(text, hang=2)[2:] + heading, "style": STYLE}
        if rows:
            self._typed = ""
            is_line = question.default in {row.value for row in rows}
            how |= {"choices": rows, "default": question.default if is_line else None}
            how |= {"pointer": " >", "instruction": " ", "use_jk_keys": False}
            prompt = questionary.select(use_search_filter=True, **how)
        elif question.kind is AnswerKind.CONFIRM:
            how |= {"default": question.default == "yes"}
            prompt = questionary.confirm(auto_enter=False, **how)
        else:
            how |= {"default": self._typed, "complete_while_typing": False}
            prompt = {AnswerKind.PATH: questionary.path}.get(question.kind, questionary.text)(**how)
        self._app: Application[Any] = prompt.application
        app, self._consequence = self._app, Background(self._leads_to, self._app.invalidate)
        app.ttimeoutlen = app.timeoutlen = _ESCAPE_SECONDS
        # Esc and Enter can come in one read, and each ends the question.
        app.exit = lambda leave=app.exit, **end: None if app.is_done else leave(**end)  # type: ignore[method-assign]
        for window in app.layout.find_all_windows():
            window.dont_extend_height = Always()
            if rows and isinstance(window.content, InquirerControl):
                window.height, window.wrap_lines = Dimension(min=1, max=_MOST_ROWS), Always()
                self._menu = window.content
                # Nothing is chosen before Enter.
                self._menu.selected_options.clear()
        app.key_processor.after_key_press += lambda _keys: self._sort(rows)
        above, below = (
            Window(FormattedTextControl(text), dont_extend_height=True, wrap_lines=True)
            for text in (self._above, self._below)
        )
        parts = HSplit([above, app.layout.container, below], align=VerticalAlign.TOP)
        app.layout = Layout(parts, focused_element=app.layout.current_window)
        app.key_bindings = merge_key_bindings([app.key_bindings or KeyBindings(), self._keys()])
        return _run(app)

    def _meant(self, taken: str | bool) -> str:
        """The answer that is meant by what was taken or typed."""
        text = ("yes" if taken else "no") if isinstance(taken, bool) else taken.strip()
        is_path = self._question.kind is AnswerKind.PATH
        return (as_answer(text) if is_path else text) or self._question.default or ""

    @property
    def _has_no_hit(self) -> bool:
        """Whether no line has what is typed."""
        # Without a hit questionary shows all lines.
        return bool(
            (menu := self._menu) and menu.search_filter and menu.filtered_choices is menu.choices
        )

    # Keys

    def _keys(self) -> KeyBindings:
        """Those that questionary has not, or has otherwise."""
        keys, question = KeyBindings(), self._question
        menu, is_path = Condition(lambda: self._menu is not None), question.kind is AnswerKind.PATH
        pressed: dict[str, tuple[Any, Callable[[KeyPressEvent], object]]] = {
            "escape": (self._can_go_back, lambda event: event.app.exit(result=Back.BACK)),
            Keys.Any: (menu, self._type),
            Keys.BracketedPaste: (True, self._type),
            "/": (~menu, self._type),
            "c-z": (True, self._suspend),
            "c-d": (
                Condition(lambda: not self._app.current_buffer.text),
                lambda event: event.app.exit(exception=EOFError),
            ),
            "c-c": (True, lambda event: event.app.exit(exception=KeyboardInterrupt)),
            "tab": (menu, lambda event: event.app.exit(result=_TYPES) if is_path else None),
            "enter": (Condition(lambda: self._has_no_hit), lambda _event: None),
            "?": (True if question.more else menu, self._toggle_more),
        }
        for key, (when, press) in pressed.items():
            # With another behind it, in one read, Esc is Alt.
            keys.add(key, filter=when, eager=key not in {"escape", Keys.Any})(press)
        return keys

    def _type(self, event: KeyPressEvent) -> None:
        """Type what is pasted, and what questionary takes for no letter of a filter."""
        text = " ".join(event.data.split())
        if text.isprintable() and self._menu is None:
            event.current_buffer.insert_text(text)
        elif text.isprintable() and self._menu is not None:
            self._menu.search_filter = f"{self._menu.search_filter or ''}{text}"

    def _sort(self, rows: list[questionary.Choice]) -> None:
        """Lines that start with what is typed come first, then itself where it is an answer."""
        menu, before = self._menu, self._typed
        if menu is None or before == (text := menu.search_filter or ""):
            return
        self._typed, start = text, text.casefold()
        titles = {str(row.value): str(row.title).casefold() for row in rows}
        is_own = self._takes_typed and bool(text) and start not in titles.get(text, "")
        own = [questionary.Choice(f"{text}  ({_('as typed')})", text)] if is_own else []
        menu.choices = sorted(
            [*rows, *own],
            key=lambda row: (
                is_own or row.value != text,
                not str(row.title).casefold().startswith(start),
            ),
        )
        menu.pointed_at = 0

    def _toggle_more(self, _event: KeyPressEvent) -> None:
        self._more = "" if self._more else self._question.more

    def _suspend(self, event: KeyPressEvent) -> None:
        """Leave the terminal to the shell until `fg`."""
        self.was_suspended = True
        event.app.suspend_to_background()

    # Rows

    def _rows(self) -> list[questionary.Choice]:
        """The lines with what each means, beside its title where there is room, else below."""
        lines = [(_(each.title), _(each.detail), each.value) for each in self._question.choices]
        widest = max((cells(title) for title, _detail, _value in lines), default=0)
        longest = max((cells(detail) for _title, detail, _value in lines), default=0)
        start, left = widest + 6, columns_of(sys.stderr) - widest - 7
        fits = widest <= _WIDEST_TITLE_COLUMNS and left >= _NARROWEST_DETAIL_COLUMNS
        is_beside, rows = fits or longest <= left, []
        for title, detail, value in lines:
            beside = pad(title, widest + 2) + _fold(detail, start)[start:]
            below = f"{_fold(title, 4)[4:]}\n{_fold(detail, _BELOW_COLUMNS)}"
            text = (beside if is_beside else below) if detail else _fold(title, 4)[4:]
            rows.append(questionary.Choice(text, value))
        return rows

    def _above(self) -> StyleAndTextTuples:
        why = f"\n{_fold(_(self._question.why))}" if self._question.why else ""
        # A low terminal shows the end of it.
        return [("", why), ("[SetCursorPosition]", "")]

    def _below(self) -> StyleAndTextTuples:
        """What is wrong, what there is to know, what the answer leads to, which keys there are."""
        menu, question, problem = self._menu, self._question, self._problem
        answer = self._meant(self._app.current_buffer.text)
        if menu is not None and self._has_no_hit:
            problem, answer = _("no line has `{text}`; delete it", text=menu.search_filter), ""
        elif menu is not None or question.kind is AnswerKind.CONFIRM:
            answer = "" if menu is None else str(menu.get_pointed_at().value)
        leads_to = "" if question.problem(answer) else self._consequence(answer)
        what, *hints = problem.splitlines() or [""]
        rows: StyleAndTextTuples = [
            ("class:problem", f"{_fold(f'! {what}', 2, 2)}\n" if what else ""),
            *(("", f"{_fold(line, 4)}\n") for line in hints),
            *(("", f"{_fold(line, 2)}\n") for line in _(self._more).splitlines()),
            ("class:consequence", f"{_fold(f'-> {leads_to}', 2, 3)}\n" if leads_to else ""),
            ("", _fold(self._known_keys(), 2)),
        ]
        return rows

    def _known_keys(self) -> str:
        rows, kind = 0 if self._menu is None else self._menu.choice_count, self._question.kind
        # Some of them may have no room on the screen.
        among = _(" among {lines}", lines=rows) if rows > _FEW_ROWS else ""
        keys = {
            _("Up/Down to choose{among}", among=among): rows > 1,
            _("type to filter"): rows > 0 and not self._takes_typed,
            _("type to filter or to name another"): rows > 0 and self._takes_typed,
            _("y or n"): kind is AnswerKind.CONFIRM,
            _("Tab to complete"): kind is AnswerKind.PATH,
            _("? for more"): bool(self._question.more),
            _("Esc to go back"): self._can_go_back,
            _("Ctrl-C to stop"): not self._can_go_back,
        }
        return listing(key for key, is_known in keys.items() if is_known)


def _run(app: Application[Any]) -> Any:  # noqa: ANN401 - as questionary's
    """What ends the application.

    While the mode of the terminal changes, Ctrl-C is a signal; asyncio and prompt_toolkit lose it
    where they are about to start or to end.

    Raises:
        KeyboardInterrupt: Ctrl-C, at whatever time.
    """
    interrupts = list[int]()

    def leave() -> None:
        if interrupts and app.future is not None:
            app.exit(exception=KeyboardInterrupt)

    def interrupt(number: int, _frame: object) -> None:
        interrupts.append(number)
        if app.loop is not None:
            app.loop.call_soon_threadsafe(leave)

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        answer = app.run(pre_run=leave, handle_sigint=False)
    finally:
        signal.signal(signal.SIGINT, before)
    if interrupts:
        raise KeyboardInterrupt
    return answer


def _fold(text: str, indent: int = 0, hang: int = 0) -> str:
    """The text in lines that fit; all but the first start with `hang` blanks more."""
    shown = " " * indent + plain(spell(text))
    return fold(shown, sys.stderr, hang=indent + hang, in_parts=False)
