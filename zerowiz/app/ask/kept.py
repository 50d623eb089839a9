"""Keep what a person says of a script, not of a job, so that it is said once."""

import json
from collections.abc import Mapping
from pathlib import Path

from zerowiz.app.ask.answers import said_by_config
from zerowiz.app.options import Options, added, as_words, rows, said, with_recorded
from zerowiz.app.reporter import Reporter
from zerowiz.app.resolve.request import stated_settings
from zerowiz.core import shell
from zerowiz.core.script.facts import ScriptFacts
from zerowiz.core.script.settings import settle
from zerowiz.emit.files import replace_file
from zerowiz.errors import ZerowizError
from zerowiz.probe.launch.kept import SCHEMA_VERSION, kept_path, read_kept, script_key
from zerowiz.words import _


def recall_kept(script: str, options: Options, reporter: Reporter) -> Options:
    """The options with what was kept of a script, where the person says nothing now.

    Args:
        script: Its path.
        options: What the person says.
        reporter: Hears what was kept.

    Raises:
        ZerowizError: An option does not take what was kept.
    """
    folder, everything = _find_kept(script, options.output_dir or Path())
    if not everything:
        return options
    by_config = {rows()[name].key for name in said_by_config(options)}
    try:
        known = with_recorded(options, {k: v for k, v in everything.items() if k not in by_config})
    except ZerowizError as error:
        raise ZerowizError(
            _(
                "`{kept_path}` cannot be used: {message}",
                kept_path=kept_path(folder),
                message=error.message,
            ),
            f"rm {shell.quote(kept_path(folder))}",
        ) from None
    words = as_words(added(options, known))
    if words:
        reporter.note(
            _(
                "arguments as in your last run of {script}: `{words}`",
                script=script,
                words=shell.join(words),
            )
        )
    return known


def _find_kept(script: str, folder: Path) -> tuple[Path, Mapping[str, object]]:
    """The folder where something was kept of a script, and what; nothing where none has it."""
    # Configs may be written elsewhere today: what was said of the script holds all the same.
    for each in (folder, Path()):
        if entry := read_kept(each).get(script_key(script)):
            return each, entry
    return folder, {}


def keep(facts: ScriptFacts, script_args: tuple[str, ...], options: Options) -> None:
    """Keep what was said of a script, if anything was; `--config-via` asks for it.

    Args:
        facts: What the script shows.
        script_args: The words after it.
        options: What was said of this job.

    Raises:
        ZerowizError: The file cannot be written.
    """
    if options.config_via is None:
        return
    names = {"config_via", "integration", *stated_settings(options, settle(facts, script_args))}
    keys = {rows()[name].key for name in names}
    folder = options.output_dir or Path()
    known = read_kept(folder)
    before = known.get(script_key(facts.target), {})
    # What a config says of this job changes nothing of what holds without it.
    by_config = {rows()[name].key for name in said_by_config(options)}
    left = {key: value for key, value in before.items() if key in by_config}
    now = left | {row.key: value for row, value in said(options) if row.key in keys}
    text = json.dumps(
        {"schema_version": SCHEMA_VERSION, "scripts": {**known, script_key(facts.target): now}},
        indent=2,
        default=str,
    )
    if before != json.loads(json.dumps(now, default=str)):
        replace_file(kept_path(folder), text + "\n")
