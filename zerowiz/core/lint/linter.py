"""Check a DeepSpeed config without DeepSpeed, and fix in its text what is safe to fix."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import pairwise

from msgspec import Struct

from zerowiz.core.dsconfig.accelerate import (
    FILE_KNOWN,
    KNOWN,
    PARALLEL_KEYS,
    PRECISION_KEYS,
    SHARED_SIZE,
    SHARING,
    AccelerateFile,
)
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
from zerowiz.core.dsconfig.merge import BATCH_KEYS, TRUTHS
from zerowiz.core.dsconfig.schema import Schema
from zerowiz.core.findings import Edit, Finding, Rule, Severity, errors_of, rules_of
from zerowiz.core.lint import batch, keys, offload, optimizer, releases
from zerowiz.core.lint.config import (
    AUTO,
    Config,
    ConfigText,
    Context,
    Relation,
    find_broken,
    read_config,
    shown,
)
from zerowiz.core.structs import replace

# Find what Accelerate refuses, ignores or misreads in its own file.

# Sources: accelerate 1.15, as core/dsconfig/accelerate.py names them.

_SLIP_RATE = 0.85
# utils/environment.py, str_to_bool.
_WHOLE = re.compile(r"[-+]?\d{1,19}")


class _Form(Struct, frozen=True, kw_only=True):
    """What a value has to be."""

    takes: Callable[[str], object]
    """Whether Accelerate, which hands the value over as a word, reads it as it was meant."""
    wanted: str
    rule: Rule = keys.WRONG_TYPE
    because: str = "Accelerate cannot read the value, and fails"
    of_launcher: bool = False


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


# What offloads to where is not here: DeepSpeed refuses a wrong device, and that is found too.
_FORMS: Mapping[str, _Form] = {
    "zero_stage": _Form(takes=_WHOLE.fullmatch, wanted="a whole number"),
    "gradient_accumulation_steps": _Form(
        takes=lambda word: word == AUTO or _WHOLE.fullmatch(word),
        wanted=f"a whole number or `{AUTO}`",
    ),
    "gradient_clipping": _Form(
        takes=lambda word: word.lower() == AUTO or _is_number(word),
        wanted=f"a number or `{AUTO}`",
    ),
    "zero3_init_flag": _Form(takes=lambda word: word.lower() in TRUTHS, wanted="true or false"),
    "zero3_save_16bit_model": _Form(
        takes=lambda word: word.lower() == "true" or TRUTHS.get(word.lower()) is False,
        wanted="true or false",
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
        rule=keys.NOT_A_CHOICE,
        of_launcher=True,
    ),
}
# More digits are no number of processes, and Python reads no text of thousands of them.
_SIZE = re.compile(r"0*[1-9]\d{0,18}")
_COMPARED = frozenset({SHARED_SIZE, "parallelism_config_cp_size"})


def check_accelerate(file: AccelerateFile, context: Context) -> tuple[Finding, ...]:
    """What is found of the keys of a file, beside what DeepSpeed makes of the config."""
    findings = [*_wrong_keys(file), *_wrong_sharing(file)]
    wrong = {finding.key for finding in findings}
    misread = map(_misread, (*file.section, *filter(None, [file.precision])))
    findings += (finding for finding in misread if finding and finding.key not in wrong)
    return kept(findings, file.text, context)


def _at(
    key: KeyToken,
    rule: Rule,
    message: str,
    fix: str,
    *,
    is_top: bool = False,
    severity: Severity | None = None,
    because: str | None = None,
    of_launcher: bool = False,
) -> Finding:
    """A finding at a key of `deepspeed_config`, or of the file itself."""
    return Finding(
        rule=rule,
        severity=severity or rule.severity,
        message=message,
        fixes=(fix,),
        because=because,
        key=key.name if is_top else f"deepspeed_config.{key.name}",
        line=key.place.line,
        column=key.place.column,
        of_launcher=of_launcher,
    )


def _misread(member: Member) -> Finding | None:
    form, value = _FORMS.get(member.key.name), plain(member.value)
    if form is None or value is None or form.takes(str(value)):
        return None
    return _at(
        member.key,
        form.rule,
        f"`{member.key.name}` must be {form.wanted}, not `{shown(value)}`",
        f"write {form.wanted}",
        is_top=member.key.name in PRECISION_KEYS,
        because=form.because,
        of_launcher=form.of_launcher,
    )


def _wrong_sharing(file: AccelerateFile) -> Iterator[Finding]:
    """Sizes of groups of ranks that Accelerate cannot read, or that are not those of all ranks."""
    sizes: dict[str, int] = {}
    for member in file.sharing:
        name, value, backend = member.key.name, plain(member.value), SHARING.get(member.key.name)
        wanted = "a whole number above 0" if backend is None else f"`{backend}`"
        # utils/launch.py, prepare_extend_env_parallelism_config compares these two as they are.
        word = repr(value) if name in _COMPARED else str(value)
        if name.endswith("_size") and _SIZE.fullmatch(word):
            sizes[name] = int(word)
        elif name.endswith("_size") or (backend is not None and value != backend):
            yield _at(
                member.key,
                keys.WRONG_TYPE if backend is None else keys.NOT_A_CHOICE,
                f"`{name}` must be {wanted}, not `{shown(value)}`",
                f"write {wanted}",
                is_top=True,
                because="Accelerate cannot read the value, and fails",
            )
    # accelerator.py, _prepare_deepspeed makes `train_batch_size` of the sizes, and DeepSpeed
    # compares that with all ranks; parallelism_config.py, _validate_accelerator.
    total, ranks, shared = math.prod(sizes.values()), file.ranks, sizes.get(SHARED_SIZE, 1)
    if ranks is not None and total not in {1, ranks}:
        yield _at(
            next(m.key for m in reversed(file.sharing) if sizes.get(m.key.name, 1) > 1),
            keys.WRONG_TYPE,
            f"the sizes of `parallelism_config` make {total} processes, but `num_processes`"
            f" is {ranks}",
            "write sizes whose product is `num_processes`: `parallelism_config_dp_shard_size` is of"
            " the groups of processes that share sequences",
            is_top=True,
            because="the job ends with an error at its start",
            of_launcher=total == shared and ranks % shared == 0,
        )


def _wrong_keys(file: AccelerateFile) -> Iterator[Finding]:
    for key in file.refused:
        yield _at(
            key,
            releases.REFUSED_TOGETHER,
            f"Accelerate rejects `{key.name}` beside `deepspeed_config_file`",
            f"remove it, and set it in `{file.config_file}`",
            is_top=key.name in PRECISION_KEYS,
            because="Accelerate takes these settings only from the file that is named",
        )
    # commands/launch.py: it sets variables for the keys that it knows.
    for key in file.ignored:
        near = get_close_matches(key.name, sorted(KNOWN), n=1)
        yield _at(
            key,
            keys.UNKNOWN_KEY,
            f"Accelerate does not read `{shown(key.name)}` in `deepspeed_config`",
            f"rename it to `{near[0]}`"
            if near
            else "remove it, or set it in a file that `deepspeed_config_file` names",
        )
    # commands/config/config_args.py, from_yaml_file. A key that is nearly known is a slip; another
    # one may be of another version.
    for key in file.unknown:
        near = get_close_matches(key.name, sorted(FILE_KNOWN), n=1, cutoff=_SLIP_RATE)
        yield _at(
            key,
            keys.UNKNOWN_KEY,
            f"Accelerate does not know `{shown(key.name)}`",
            f"rename it to `{near[0]}`" if near else "remove it",
            is_top=True,
            severity=Severity.ERROR if near else None,
            because="`accelerate launch` rejects the whole file",
            of_launcher=True,
        )
    for member in file.parallel:
        yield _at(
            member.key,
            releases.OTHER_PARALLELISM,
            f"`{member.key.name}` is {plain(member.value)}: {PARALLEL_KEYS[member.key.name]}",
            releases.WITHOUT_ZEROWIZ,
            is_top=True,
        )
    # utils/launch.py, prepare_deepspeed_cmd_env: no variable has a path for NVMe;
    # utils/dataclasses.py, DeepSpeedPlugin: without the variable the path is `none`.
    for key in file.dropped:
        yield _at(
            key,
            keys.UNKNOWN_KEY,
            f"`accelerate launch` does not pass `{key.name}` to the ranks",
            f"set `ACCELERATE_DEEPSPEED_{key.name.upper()}`, or set the path in a file that"
            " `deepspeed_config_file` names",
            because="they offload into a folder with the name `none`",
            of_launcher=True,
        )


# In the order in which they look at a config.
_CHECKS: tuple[Callable[[Config], Iterator[Finding]], ...] = (
    keys.check_structure,
    keys.check_keys,
    keys.check_values,
    batch.check_auto,
    optimizer.check_arguments,
    keys.check_effects,
    releases.check_against_script,
    releases.check_release,
)
_RELATIONS: tuple[Mapping[Rule, Sequence[Relation]], ...] = (
    keys.RELATIONS,
    batch.RELATIONS,
    optimizer.PRECISIONS,
    offload.OFFLOADS,
    optimizer.CLASSES,
    optimizer.SCHEDULERS,
    releases.RELATIONS,
    offload.SIZES,
)

RULES = rules_of((keys, batch, optimizer, offload, releases), _RELATIONS)

_OLD_BF16 = "bfloat16."
_BY_JSON = "the Trainer and Accelerate read strict JSON, and refuse the whole config"


def lint(text: str, schema: Schema, context: Context) -> tuple[Finding, ...]:
    """Everything that is found in a config, in the order of its text.

    Args:
        text: Of the file.
        schema: What the DeepSpeed knows that will read it.
        context: What else is known of the run.
    """
    reader = context.integration
    root: Node | None = None
    fault: JsonTextError | None = None
    try:
        if reader is None or not reader.row.as_written:
            # The Trainer and Accelerate read it with json.
            root = parse(text, Dialect.JSON)
    except JsonTextError as error:
        fault = error
    try:
        root = root or parse(text, Dialect.HJSON)
    except JsonTextError as error:
        return kept([keys.unreadable(fault if fault and reader else error)], text, context)
    findings = [*_of_tree(root, text, schema, context)]
    if fault is not None:
        # DeepSpeed by itself does not take `auto` for a batch key.
        values = plain(root)
        is_filled = isinstance(values, dict) and AUTO in map(values.get, BATCH_KEYS)
        severity = Severity.ERROR if is_filled or reader is not None else Severity.INFO
        findings.append(keys.unreadable(fault, severity, _BY_JSON))
    return kept(findings, text, context)


def _of_tree(root: Node, text: str, schema: Schema, context: Context) -> Iterator[Finding]:
    if not isinstance(root, Object):
        yield Finding(
            rule=keys.NOT_AN_OBJECT,
            severity=Severity.ERROR,
            message="a config must be an object, `{...}`",
            fixes=("put the keys of the config in braces",),
            line=root.place.line,
            column=root.place.column,
        )
        return
    config = read_config(text, root, schema, context)
    whole = keys.check_whole(config)
    if whole is not None:
        yield whole
        return
    broken = (find_broken(config, relations) for relations in _RELATIONS)
    for findings in (*(check(config) for check in _CHECKS), *broken):
        yield from filter(None, (_as_read(config, finding) for finding in findings))


def _as_read(config: Config, finding: Finding) -> Finding | None:
    """What is left of a finding in a section that only DeepSpeed by itself reads.

    Accelerate sets a `bf16`, which DeepSpeed looks for before the old `bfloat16`
    (accelerate/utils/dataclasses.py, set_mixed_precision; runtime/precision_config.py).
    """
    if config.by_deepspeed or not finding.key.startswith(_OLD_BF16):
        return finding
    if finding.rule in (batch.AUTO_NOT_FILLED, keys.DUPLICATE_KEY):
        return finding
    return None if config.by_accelerate else replace(finding, severity=Severity.WARNING)


# Leave out what nobody wants to hear of.

# `# zerowiz: ignore ZW301` behind a value, or alone above it.
_IGNORED_LINE = re.compile(r"(.*?)(?:#|//|/\*)\s*zerowiz:\s*ignore\b([^*]*)")
# `"//zerowiz": "ignore ZW301"`, for the whole file: JSON has no comments.
_IGNORED_FILE = re.compile(r"[\"']//zerowiz[\"']\s*:\s*[\"']ignore\b([^\"']*)")
_CODE = re.compile(r"ZW\d+", re.IGNORECASE)


def kept(findings: Iterable[Finding], text: str, context: Context) -> tuple[Finding, ...]:
    """The findings that the context takes and the text does not ignore, in the order of the text.

    Args:
        findings: What was found; what the text ignores by no code is added.
        text: Of the file where they stand.
        context: Which codes are looked for.
    """
    ignored: dict[int, tuple[str, ...]] = {}
    unknown: list[Finding] = []
    of_file: list[str] = []
    for number, line in enumerate(text.splitlines() if "zerowiz" in text else (), start=1):
        said = [code for codes in _IGNORED_FILE.findall(line) for code in _CODE.findall(codes)]
        of_file += said
        if match := _IGNORED_LINE.match(line):
            # Without a code, all of them.
            codes = tuple(_CODE.findall(match[2])) or ("",)
            ignored[number] = (*ignored.get(number, ()), *codes)
            if not match[1].strip():
                ignored[number + 1] = codes
            said += codes
        unknown += (
            keys.unknown_code(code, number, line.index(code) + 1)
            for code in said
            if not any(rule.code.startswith(code) for rule in RULES)
        )
    left = (
        finding
        for finding in (*findings, *unknown)
        if context.takes(finding.rule.code)
        and not finding.rule.code.startswith((*of_file, *ignored.get(finding.line, ())))
    )
    return tuple(
        sorted(
            dict.fromkeys(left),
            key=lambda finding: (finding.line, finding.column, finding.rule.code),
        )
    )


# Check a config, with the keys of the file that it comes from.


def check_config(config: ConfigText, schema: Schema, context: Context) -> tuple[Finding, ...]:
    """What is found in a config, and in the file of Accelerate that it is built of.

    Args:
        config: One that can be read.
        schema: What the DeepSpeed knows that will read it.
        context: What else is known of the run.
    """
    if config.root is None:
        return lint(config.text, schema, context)
    merged: list[Finding] = []
    if config.accelerate is not None:
        merged += check_accelerate(config.accelerate, context)
        context = replace(context, file_keys=config.accelerate.file_keys)
    # DeepSpeed gets nothing of what Accelerate cannot read.
    misread = {finding.key for finding in merged}
    merged += (
        replace(finding, edits=())
        for finding in _of_tree(config.root, config.text, schema, context)
        if finding.key not in misread
    )
    return kept(merged, config.text, context)


# Fix a text with the edits of its findings.

# A fix can make room for another: a renamed key turns out to have a wrong value. More rounds than
# a key can have mistakes mean that one fix undoes another.
_ROUNDS = 10


class FixedText(Struct, frozen=True, kw_only=True):
    """A text after its fixes."""

    text: str
    findings: tuple[Finding, ...]
    """The findings in it."""
    fixed: tuple[Finding, ...]
    """The findings that are gone, in the order of the rounds."""


def fix_text(text: str, check: Callable[[str], tuple[Finding, ...]]) -> FixedText:
    """Apply every edit that can be, and look again, until there is none.

    A finding is fixed whole or not at all. A round after which there are more errors than before
    is taken back.

    Args:
        text: What was checked.
        check: What finds mistakes in a text.
    """
    findings = check(text)
    fixed: tuple[Finding, ...] = ()
    for _round in range(_ROUNDS):
        chosen = _together(findings)
        changed = apply_edits(text, [edit for finding in chosen for edit in finding.edits])
        rest = check(changed)
        if not chosen or len(errors_of(rest)) > len(errors_of(findings)):
            break
        text, findings, fixed = changed, rest, (*fixed, *chosen)
    return FixedText(text=text, findings=findings, fixed=fixed)


def apply_edits(text: str, edits: Sequence[Edit]) -> str:
    """The text with every edit in it; no two of them change the same characters."""
    for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


def _together(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings, from the first on, whose edits do not overlap."""
    chosen: list[Finding] = []
    for finding in findings:
        edits = [edit for one in (*chosen, finding) for edit in one.edits]
        edits.sort(key=lambda edit: (edit.start, edit.end))
        is_free = all(one.end <= two.start and one.end < two.end for one, two in pairwise(edits))
        if finding.edits and is_free:
            chosen.append(finding)
    return tuple(chosen)
