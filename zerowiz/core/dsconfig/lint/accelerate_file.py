"""Find what Accelerate refuses, ignores or misreads in its own file."""

import re
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches

from msgspec import Struct

from zerowiz.core.dsconfig.accelerate import FILE_KNOWN, KNOWN, PRECISION_KEYS, AccelerateFile
from zerowiz.core.dsconfig.hjson import Member, plain
from zerowiz.core.dsconfig.hjson_tokens import KeyToken
from zerowiz.core.dsconfig.lint.config import shown
from zerowiz.core.dsconfig.lint.finding import ConfigFinding, found_at
from zerowiz.core.dsconfig.lint.rules.keys import UNKNOWN_KEY
from zerowiz.core.dsconfig.lint.rules.refused import REFUSED_TOGETHER
from zerowiz.core.dsconfig.lint.rules.values import NOT_A_CHOICE, WRONG_TYPE
from zerowiz.core.rule import Rule, Severity
from zerowiz.words import _, joined

# Sources: accelerate 1.15, as core/dsconfig/accelerate.py names them.

_OR = _(" or ")
_AUTO = "auto"
_SLIP_RATE = 0.85
_FAILS = _("Accelerate cannot read the value, and fails")
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


_SWITCH = _("true or false")
# What offloads to where is not here: DeepSpeed refuses a wrong device, and `linter.py` finds it.
_FORMS: Mapping[str, _Form] = {
    "zero_stage": _Form(takes=_is_whole, wanted=_("a whole number")),
    "gradient_accumulation_steps": _Form(
        takes=lambda word: word == _AUTO or _is_whole(word),
        wanted=joined(_OR, (_("a whole number"), f"`{_AUTO}`")),
    ),
    "gradient_clipping": _Form(
        takes=lambda word: word.lower() == _AUTO or _is_number(word),
        wanted=joined(_OR, (_("a number"), f"`{_AUTO}`")),
    ),
    "zero3_init_flag": _Form(takes=lambda word: word.lower() in _TRUE | _FALSE, wanted=_SWITCH),
    "zero3_save_16bit_model": _Form(
        takes=lambda word: word.lower() in {"true", *_FALSE},
        wanted=_SWITCH,
        because=_("Accelerate reads every word but `true` as false"),
    ),
    # set_moe_leaf_modules splits it at its commas.
    "deepspeed_moe_layer_cls_names": _Form(
        takes=lambda word: not word.startswith(("[", "{")),
        wanted=_("a string with commas between the names"),
    ),
    # prepare_deepspeed_cmd_env; PyYAML reads a `no` without quotes as false.
    PRECISION_KEYS[0]: _Form(
        takes=lambda word: word.lower() in {"no", "fp8", "fp16", "bf16"},
        wanted=_("`bf16`, `fp16`, `fp8` or `'no'`"),
        rule=NOT_A_CHOICE,
        of_launcher=True,
    ),
}


def check_accelerate(file: AccelerateFile) -> tuple[ConfigFinding, ...]:
    """What is found of the keys of a file, beside what DeepSpeed makes of the config."""
    found = [_refused(file, key) for key in file.refused]
    found += map(_ignored, file.ignored)
    found += map(_unknown, file.unknown)
    found += map(_dropped, file.dropped)
    wrong = {each.key for each in found}
    found += (each for each in _misread(file) if each.key not in wrong)
    return tuple(sorted(found, key=lambda each: (each.line, each.column)))


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
        _(
            "`{label}` must be {wanted}, not `{entry}`",
            label=member.key.name,
            wanted=form.wanted,
            entry=shown(value),
        ),
        key=key,
        because=form.because,
        fix=_("write {wanted}", wanted=form.wanted),
        of_launcher=form.of_launcher,
    )


def _refused(file: AccelerateFile, key: KeyToken) -> ConfigFinding:
    is_of_section = key.name not in PRECISION_KEYS
    return found_at(
        key.place,
        REFUSED_TOGETHER,
        _("Accelerate rejects `{key}` beside `deepspeed_config_file`", key=key.name),
        key=f"deepspeed_config.{key.name}" if is_of_section else key.name,
        because=_("Accelerate takes these settings only from the file that is named"),
        fix=_("remove it, and set it in `{config_file}`", config_file=file.config_file),
    )


def _ignored(key: KeyToken) -> ConfigFinding:
    """What is found of a key of `deepspeed_config`, in a file of Accelerate, that it does not have.

    Source: accelerate 1.15, commands/launch.py: it sets variables for the keys that it knows.
    """
    near = get_close_matches(key.name, sorted(KNOWN), n=1)
    return found_at(
        key.place,
        UNKNOWN_KEY,
        _("Accelerate does not read `{key}` in `deepspeed_config`", key=shown(key.name)),
        key=f"deepspeed_config.{key.name}",
        fix=_("rename it to `{near}`", near=near[0])
        if near
        else _("remove it, or set it in a file that `deepspeed_config_file` names"),
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
        _("Accelerate does not know `{key}`", key=shown(key.name)),
        key=key.name,
        severity=Severity.ERROR if near else None,
        because=_("`accelerate launch` rejects the whole file"),
        fix=_("rename it to `{near}`", near=near[0]) if near else _("remove it"),
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
        _("`accelerate launch` does not pass `{key}` to the ranks", key=key.name),
        key=f"deepspeed_config.{key.name}",
        because=_("they offload into a folder with the name `none`"),
        fix=_(
            "set `{variable}`, or set the path in a file that `deepspeed_config_file` names",
            variable=f"ACCELERATE_DEEPSPEED_{key.name.upper()}",
        ),
        of_launcher=True,
    )
