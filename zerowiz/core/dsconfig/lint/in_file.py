"""Check a config, with the places and the keys of the file that it comes from."""

from collections.abc import Sequence

from zerowiz.core.dsconfig.hjson_tokens import Span
from zerowiz.core.dsconfig.lint.accelerate_file import check_accelerate
from zerowiz.core.dsconfig.lint.context import Context
from zerowiz.core.dsconfig.lint.finding import ConfigFinding
from zerowiz.core.dsconfig.lint.linter import lint
from zerowiz.core.dsconfig.lint.source import ConfigText
from zerowiz.core.dsconfig.schema import Schema
from zerowiz.core.values import replace


def check_config(config: ConfigText, schema: Schema, context: Context) -> tuple[ConfigFinding, ...]:
    """What is found in a config, and in the file of Accelerate that it is built of.

    Args:
        config: One that has a text.
        schema: What the DeepSpeed knows that will read it.
        context: What else is known of the run.
    """
    if not config.places:
        return lint(config.text, schema, context)
    own: tuple[ConfigFinding, ...] = ()
    if config.accelerate is not None:
        own = check_accelerate(config.accelerate)
        context = replace(context, file_keys=config.accelerate.file_keys)
    found = (_placed(each, config.places) for each in lint(config.text, schema, context))
    # DeepSpeed gets nothing of what Accelerate cannot read.
    misread = {each.key for each in own}
    merged = [*own, *(each for each in found if each.key not in misread)]
    return tuple(sorted(merged, key=lambda each: (each.line, each.column)))


def _placed(finding: ConfigFinding, places: Sequence[Span]) -> ConfigFinding:
    place = places[min(finding.line, len(places)) - 1]
    return replace(finding, line=place.line, column=place.column, edits=())
