"""Check a DeepSpeed config without DeepSpeed, and fix in its text what is safe to fix."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches

from msgspec import Struct

from zerowiz.core.dsconfig.accelerate import FILE_KNOWN, KNOWN, PRECISION_KEYS, AccelerateFile
from zerowiz.core.dsconfig.hjson import (
    Dialect,
    JsonTextError,
    KeyToken,
    Member,
    Node,
    Object,
    parse,
    plain,
)
from zerowiz.core.dsconfig.schema import Schema
from zerowiz.core.findings import Rule, Severity, errors_of, rules_of
from zerowiz.core.lint import batch, keys, offload, optimizer, releases
from zerowiz.core.lint.config import Config, ConfigText, Context, read_config, shown
from zerowiz.core.lint.keys import NOT_A_CHOICE, UNKNOWN_KEY, WRONG_TYPE
from zerowiz.core.lint.releases import REFUSED_TOGETHER
from zerowiz.core.lint.report import ConfigFinding, Edit, found_at
from zerowiz.core.structs import replace

# Find what Accelerate refuses, ignores or misreads in its own file.

# Sources: accelerate 1.15, as core/dsconfig/accelerate.py names them.

_OR = " or "
_AUTO = "auto"
_SLIP_RATE = 0.85
_FAILS = "Accelerate cannot read the value, and fails"
# utils/environment.py, str_to_bool.
_TRUE = frozenset({"y", "yes", "t", "true", "on", "1"})
_FALSE = frozenset({"n", "no", "f", "false", "off", "0"})
_WHOLE = re.compile(r"[-+]?\d+")


class _Form(Struct, frozen=True, kw_only=True):
    """What a value has to be."""

    takes: Callable[[str], bool]
    """Whether Accelerate, which hands the value over as a word, reads it as it was meant."""
    wanted: str
    rule: Rule = WRONG_TYPE
    because: str = _FAILS
    of_launcher: bool = False


def _is_whole(word: str) -> bool:
    return _WHOLE.fullmatch(word) is not None


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


_SWITCH = "true or false"
# What offloads to where is not here: DeepSpeed refuses a wrong device, and `linter.py` finds it.
_FORMS: Mapping[str, _Form] = {
    "zero_stage": _Form(takes=_is_whole, wanted="a whole number"),
    "gradient_accumulation_steps": _Form(
        takes=lambda word: word == _AUTO or _is_whole(word),
        wanted=_OR.join(("a whole number", f"`{_AUTO}`")),
    ),
    "gradient_clipping": _Form(
        takes=lambda word: word.lower() == _AUTO or _is_number(word),
        wanted=_OR.join(("a number", f"`{_AUTO}`")),
    ),
    "zero3_init_flag": _Form(takes=lambda word: word.lower() in _TRUE | _FALSE, wanted=_SWITCH),
    "zero3_save_16bit_model": _Form(
        takes=lambda word: word.lower() in {"true", *_FALSE},
        wanted=_SWITCH,
        because="Accelerate reads every word but `true` as false",
    ),
    # set_moe_leaf_modules splits it at its commas.
    "deepspeed_moe_layer_cls_names": _Form(
        takes=lambda word: not word.startswith(("[", "{")),
        wanted="a string with commas between the names",
    ),
    # prepare_deepspeed_cmd_env; PyYAML reads a `no` without quotes as false.
    PRECISION_KEYS[0]: _Form(
        takes=lambda word: word.lower() in {"no", "fp8", "fp16", "bf16"},
        wanted="`bf16`, `fp16`, `fp8` or `'no'`",
        rule=NOT_A_CHOICE,
        of_launcher=True,
    ),
}


def check_accelerate(file: AccelerateFile) -> tuple[ConfigFinding, ...]:
    """What is found of the keys of a file, beside what DeepSpeed makes of the config."""
    findings = [_refused(file, key) for key in file.refused]
    findings += map(_ignored, file.ignored)
    findings += map(_unknown, file.unknown)
    findings += map(_dropped, file.dropped)
    wrong = {finding.key for finding in findings}
    findings += (finding for finding in _misread(file) if finding.key not in wrong)
    return tuple(sorted(findings, key=lambda finding: (finding.line, finding.column)))


def _misread(file: AccelerateFile) -> Iterator[ConfigFinding]:
    for member in file.section:
        yield from _of_value(member, f"deepspeed_config.{member.key.name}")
    if file.precision is not None:
        yield from _of_value(file.precision, file.precision.key.name)


def _of_value(member: Member, key: str) -> Iterator[ConfigFinding]:
    form, value = _FORMS.get(member.key.name), plain(member.value)
    if form is None or value is None or form.takes(str(value)):
        return
    yield found_at(
        member.key.place,
        form.rule,
        f"`{member.key.name}` must be {form.wanted}, not `{shown(value)}`",
        key=key,
        because=form.because,
        fix=f"write {form.wanted}",
        of_launcher=form.of_launcher,
    )


def _refused(file: AccelerateFile, key: KeyToken) -> ConfigFinding:
    is_of_section = key.name not in PRECISION_KEYS
    return found_at(
        key.place,
        REFUSED_TOGETHER,
        f"Accelerate rejects `{key.name}` beside `deepspeed_config_file`",
        key=f"deepspeed_config.{key.name}" if is_of_section else key.name,
        because="Accelerate takes these settings only from the file that is named",
        fix=f"remove it, and set it in `{file.config_file}`",
    )


def _ignored(key: KeyToken) -> ConfigFinding:
    """What is found of a key of `deepspeed_config`, in a file of Accelerate, that it does not have.

    Source: accelerate 1.15, commands/launch.py: it sets variables for the keys that it knows.
    """
    near = get_close_matches(key.name, sorted(KNOWN), n=1)
    return found_at(
        key.place,
        UNKNOWN_KEY,
        f"Accelerate does not read `{shown(key.name)}` in `deepspeed_config`",
        key=f"deepspeed_config.{key.name}",
        fix=f"rename it to `{near[0]}`"
        if near
        else "remove it, or set it in a file that `deepspeed_config_file` names",
    )


def _unknown(key: KeyToken) -> ConfigFinding:
    """What is found of a key beside `deepspeed_config` that Accelerate does not have.

    One that is nearly known is a slip; another one may be of another version.
    Source: accelerate 1.15, commands/config/config_args.py, from_yaml_file.
    """
    near = get_close_matches(key.name, sorted(FILE_KNOWN), n=1, cutoff=_SLIP_RATE)
    return found_at(
        key.place,
        UNKNOWN_KEY,
        f"Accelerate does not know `{shown(key.name)}`",
        key=key.name,
        severity=Severity.ERROR if near else None,
        because="`accelerate launch` rejects the whole file",
        fix=f"rename it to `{near[0]}`" if near else "remove it",
        of_launcher=True,
    )


def _dropped(key: KeyToken) -> ConfigFinding:
    """What is found of a path for NVMe that Accelerate's launcher leaves behind.

    Source: accelerate 1.15, utils/launch.py, prepare_deepspeed_cmd_env: no variable has it;
    utils/dataclasses.py, DeepSpeedPlugin: without the variable the path is `none`.
    """
    return found_at(
        key.place,
        UNKNOWN_KEY,
        f"`accelerate launch` does not pass `{key.name}` to the ranks",
        key=f"deepspeed_config.{key.name}",
        because="they offload into a folder with the name `none`",
        fix="set `{variable}`, or set the path in a file that `deepspeed_config_file` names".format(
            variable=f"ACCELERATE_DEEPSPEED_{key.name.upper()}"
        ),
        of_launcher=True,
    )


# In the order in which they look at a config.
_CHECKS: tuple[Callable[[Config], Iterator[ConfigFinding]], ...] = (
    keys.check_structure,
    keys.check_keys,
    keys.check_values,
    batch.check_auto,
    batch.check_batch,
    optimizer.check_precision,
    offload.check_offload,
    optimizer.check_optimizer,
    optimizer.check_optimizer_arguments,
    releases.check_refused,
    keys.check_effects,
    releases.check_against_script,
    offload.check_danger,
    releases.check_versions,
)

RULES = rules_of((keys, batch, optimizer, offload, releases))

_OLD_BF16 = "bfloat16."


def lint(text: str, schema: Schema, context: Context) -> tuple[ConfigFinding, ...]:
    """Everything that is found in a config, in the order of its text.

    Args:
        text: Of the file.
        schema: What the DeepSpeed knows that will read it.
        context: What else is known of the run.
    """
    refused_by_json = _refused_by_json(text, context)
    reader = context.integration
    strict = reader is not None and not reader.row.as_written and refused_by_json is None
    try:
        root = parse(text, Dialect.JSON if strict else Dialect.HJSON)
    except JsonTextError as error:
        if refused_by_json is not None and refused_by_json.severity is Severity.ERROR:
            return (refused_by_json,)
        return (keys.unreadable(error),)
    findings = [] if refused_by_json is None else [refused_by_json]
    findings += _of_tree(root, text, schema, context)
    return tuple(
        sorted(findings, key=lambda finding: (finding.line, finding.column, finding.rule.code))
    )


def _refused_by_json(text: str, context: Context) -> ConfigFinding | None:
    """What the Trainer and Accelerate refuse, which read with json.

    It is only advice where the integration is not known.
    """
    if context.integration is not None and context.integration.row.as_written:
        return None
    try:
        json.loads(text)
    except RecursionError:
        return None
    except ValueError:
        severity = Severity.INFO if context.integration is None else Severity.ERROR
        try:
            parse(text, Dialect.JSON)
        except JsonTextError as error:
            return keys.unreadable(error, severity)
    return None


def _of_tree(root: Node, text: str, schema: Schema, context: Context) -> Iterator[ConfigFinding]:
    if not isinstance(root, Object):
        yield keys.not_an_object(root)
        return
    config = read_config(text, root, schema, context)
    if keys.is_no_config(config):
        yield keys.no_config(config)
        return
    for check in _CHECKS:
        yield from filter(None, (_as_read(config, finding) for finding in check(config)))


def _as_read(config: Config, finding: ConfigFinding) -> ConfigFinding | None:
    """What is left of a finding in a section that only DeepSpeed by itself reads.

    Accelerate sets a `bf16`, which DeepSpeed looks for before the old `bfloat16`
    (accelerate/utils/dataclasses.py, set_mixed_precision; runtime/precision_config.py).
    """
    if config.by_deepspeed or not finding.key.startswith(_OLD_BF16):
        return finding
    if finding.rule in (batch.AUTO_NOT_FILLED, keys.DUPLICATE_KEY):
        return finding
    return None if config.by_accelerate else replace(finding, severity=Severity.WARNING)


# Check a config, with the places and the keys of the file that it comes from.


def check_config(config: ConfigText, schema: Schema, context: Context) -> tuple[ConfigFinding, ...]:
    """What is found in a config, and in the file of Accelerate that it is built of.

    Args:
        config: One that has a text.
        schema: What the DeepSpeed knows that will read it.
        context: What else is known of the run.
    """
    if not config.places:
        return lint(config.text, schema, context)
    of_accelerate: tuple[ConfigFinding, ...] = ()
    if config.accelerate is not None:
        of_accelerate = check_accelerate(config.accelerate)
        context = replace(context, file_keys=config.accelerate.file_keys)
    merged = [*of_accelerate]
    # DeepSpeed gets nothing of what Accelerate cannot read.
    misread = {finding.key for finding in of_accelerate}
    for finding in lint(config.text, schema, context):
        if finding.key not in misread:
            place = config.places[min(finding.line, len(config.places)) - 1]
            merged.append(replace(finding, line=place.line, column=place.column, edits=()))
    return tuple(sorted(merged, key=lambda finding: (finding.line, finding.column)))


# Fix a text with the edits of its findings.

# A fix can make room for another: a renamed key turns out to have a wrong value. More rounds than
# a key can have mistakes mean that one fix undoes another.
_ROUNDS = 10


class OverlapError(ValueError):
    """Two edits change the same characters."""


class FixedText(Struct, frozen=True, kw_only=True):
    """A text after its fixes."""

    text: str
    findings: tuple[ConfigFinding, ...]
    """The findings in it."""
    fixed: tuple[ConfigFinding, ...]
    """The findings that are gone, in the order of the rounds."""


def apply_edits(text: str, edits: Sequence[Edit]) -> str:
    """The text with every edit in it.

    Raises:
        OverlapError: Two of them change the same characters, or insert at the same place.
    """
    pieces: list[str] = []
    done = 0
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
        if edit.start < done or (pieces and edit.start == edit.end == done):
            raise OverlapError(f"two edits at character {edit.start}")
        pieces += [text[done : edit.start], edit.text]
        done = edit.end
    return "".join([*pieces, text[done:]])


def fix_text(text: str, check: Callable[[str], tuple[ConfigFinding, ...]]) -> FixedText:
    """Apply every edit that can be, and look again, until there is none.

    A finding is fixed whole or not at all. A round after which there are more errors than before
    is taken back.

    Args:
        text: What was checked.
        check: What finds mistakes in a text.
    """
    findings = check(text)
    fixed: tuple[ConfigFinding, ...] = ()
    for _round in range(_ROUNDS):
        chosen = _together(findings)
        if not chosen:
            break
        changed = apply_edits(text, [edit for finding in chosen for edit in finding.edits])
        rest = check(changed)
        if len(errors_of(rest)) > len(errors_of(findings)):
            break
        text, findings, fixed = changed, rest, (*fixed, *chosen)
    return FixedText(text=text, findings=findings, fixed=fixed)


def _together(findings: Sequence[ConfigFinding]) -> tuple[ConfigFinding, ...]:
    """The findings, from the first on, whose edits do not overlap."""
    chosen: list[ConfigFinding] = []
    edits: list[Edit] = []
    for finding in findings:
        try:
            apply_edits("", [*edits, *finding.edits])
        except OverlapError:
            continue
        if finding.edits:
            chosen.append(finding)
            edits += finding.edits
    return tuple(chosen)
