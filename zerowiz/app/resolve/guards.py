"""Refuse a run that would not be the one that was planned."""

from collections.abc import Sequence

from zerowiz.app.options import Options
from zerowiz.app.reporter import Reporter
from zerowiz.core import shell
from zerowiz.core.flags import flags
from zerowiz.core.launch.provenance import hide_secrets
from zerowiz.core.machine.types import Machine
from zerowiz.core.script.facts import ScriptFacts
from zerowiz.core.script.options import LOCAL_RANK_FLAG
from zerowiz.core.workload.choices import Accounting
from zerowiz.errors import PreflightError, UsageError
from zerowiz.words import _, listing

# Words that fingers put last, and that hardly a training script takes. Where every option of the
# script is known, or it reads no words at all, no option of zerowiz is taken for one of its words.
_OWN_WORDS = ("dry_run", "yes", "as_json", "stage", "accelerator", "machine")


def check_accounting(options: Options) -> None:
    """Check that a run is planned with what DeepSpeed allocates.

    Raises:
        UsageError: It was to be planned by the rule of thumb.
    """
    if options.accounting is Accounting.TEXTBOOK:
        raise UsageError(
            _(
                "`$accounting textbook` works with `zerowiz plan` only: a real run needs more"
                " memory than the rule of thumb"
            ),
            _("remove `$accounting textbook`"),
        )


def check_words(
    facts: ScriptFacts, script_args: Sequence[str], reporter: Reporter | None = None
) -> None:
    """Check that no option of zerowiz follows the script, which alone would read it.

    Args:
        facts: Of the script.
        script_args: The words after it.
        reporter: Gets a note where the script surely reads no words; None notes nothing.

    Raises:
        UsageError: One does, and the script has no such option of its own.
    """
    sees_all = facts.parser.complete and bool(facts.parser.options)
    sees_all = sees_all or facts.reads_no_words
    own = set(flags().values()) if sees_all else {flags()[name] for name in _OWN_WORDS}
    own -= {facts.parser.config_flag}
    words = script_args[: script_args.index("--")] if "--" in script_args else script_args
    said = dict.fromkeys(word.partition("=")[0] for word in words)
    misplaced = [flag for flag in said if flag in own and not facts.parser.find(flag)]
    if misplaced:
        named = listing(f"`{flag}`" for flag in misplaced)
        raise UsageError(
            _("{flags} after {path} would go to the script", flags=named, path=facts.path),
            _("put {flags} before {path}", flags=named, path=facts.path),
            _("or put `--` before `{flag}` if the script reads it", flag=misplaced[0]),
        )
    if reporter is not None and facts.reads_no_words and script_args:
        reporter.note(
            _(
                "`{words}` after {path} has no effect: the script does not read its command line",
                words=shell.join(hide_secrets(script_args)),
                path=facts.path,
            )
        )


def check_local_rank(facts: ScriptFacts, script_args: Sequence[str]) -> None:
    """Check that a script gets its local rank by the word that DeepSpeed's launcher passes.

    Raises:
        PreflightError: It spells the word differently, so that the launcher's would end it, and
            without it every rank would take the default.
    """
    if not facts.parser.refuses_local_rank(tuple(script_args)):
        return
    for option in facts.parser.of("local_rank"):
        if LOCAL_RANK_FLAG in option.flags:
            continue  # a settings file leaves no room for words
        raise PreflightError(
            _(
                "DeepSpeed's launcher passes `{local_rank_flag}`, and {path} line {line} "
                "takes `{flag}`",
                local_rank_flag=LOCAL_RANK_FLAG,
                path=facts.text_path,
                line=option.line,
                flag=option.flag,
            ),
            _(
                'accept both there: `add_argument("{flag}", "{local_rank_flag}", ...)`',
                flag=option.flag,
                local_rank_flag=LOCAL_RANK_FLAG,
            ),
        )


def check_own_config(
    options: Options,
    machine: Machine,
    facts: ScriptFacts | None,
    script_args: Sequence[str],
    reporter: Reporter,
) -> None:
    """See that a person's own config will do what it says; what else is found is noted.

    Raises:
        ConfigMistakeError: It holds an error, and nobody forces it.
    """
    if options.config is not None:
        from zerowiz.app.resolve.user_config import lint_own_config  # noqa: PLC0415 - takes long to load

        lint_own_config(options.config, options, machine, facts, script_args, reporter)
