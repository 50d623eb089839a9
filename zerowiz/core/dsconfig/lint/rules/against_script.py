"""Find values that the script contradicts."""

from collections.abc import Iterator

from zerowiz.core.dsconfig.accelerate import PRECISION_KEYS
from zerowiz.core.dsconfig.lint.config import AUTO, BATCH_KEYS, Config, Entry, shown
from zerowiz.core.dsconfig.lint.finding import ConfigFinding
from zerowiz.core.rule import Rule, Severity
from zerowiz.core.script.settings import ScriptSettings
from zerowiz.core.workload.choices import Integration, Precision
from zerowiz.words import _

SCRIPT_DISAGREES = Rule(
    code="ZW701",
    name="script-disagrees",
    severity=Severity.ERROR,
    why=_("the Trainer fails if the config and its TrainingArguments have different values"),
)


def check_against_script(config: Config) -> Iterator[ConfigFinding]:
    """What the Trainer compares (transformers, HfTrainerDeepSpeedConfig.fill_match)."""
    yield from _two_rates(config)
    settings = config.context.settings
    if settings is None:
        return
    for path, value, source in _set_by_script(settings, config.context.world_size):
        entry = config.last.get(path)
        if entry is None or entry.value in (None, value) or isinstance(entry.value, str):
            continue
        is_trainer = config.context.integration is Integration.HF
        takes_auto = is_trainer and entry.file_key not in PRECISION_KEYS
        here, there = _compared(entry, value, settings)
        yield entry.found(
            SCRIPT_DISAGREES,
            _(
                "`{path}` is {entry} here and {value} in {source}",
                path=path if entry.file_key is None else entry.label,
                entry=here,
                value=there,
                source=source,
            ),
            severity=Severity.ERROR if is_trainer else Severity.WARNING,
            fix=_('write `"auto"`') if takes_auto else _("set both to the same value"),
        )


def _compared(entry: Entry, value: object, settings: ScriptSettings) -> tuple[str, str]:
    """What stands in the file and in the script.

    Accelerate's file names the precision, and what is built of it has a switch for each.
    """
    if entry.file_key in PRECISION_KEYS and settings.precision is not None:
        return entry.known_path.partition(".")[0], settings.precision.value
    return shown(entry.value), shown(value)


def _two_rates(config: Config) -> Iterator[ConfigFinding]:
    rate = config.get("optimizer.params.lr")
    peak = config.last.get("scheduler.params.warmup_max_lr")
    if config.context.integration is not Integration.HF or peak is None:
        return
    if None not in (rate, peak.value) and AUTO not in (rate, peak.value) and rate != peak.value:
        yield peak.found(
            SCRIPT_DISAGREES,
            _(
                "`warmup_max_lr` is {peak}, `lr` is {rate}: the Trainer has one learning rate",
                peak=shown(peak.value),
                rate=shown(rate),
            ),
            fix=_('write `"auto"` for both'),
        )


def _set_by_script(
    settings: ScriptSettings, ranks: int | None
) -> Iterator[tuple[str, object, str]]:
    """Keys, what the script makes of them, and where."""
    micro, steps, precision = settings.micro_batch, settings.accumulation_steps, settings.precision
    whole, per_gpu, accumulated = BATCH_KEYS
    if micro is not None:
        yield per_gpu, micro.value, micro.source
    if steps is not None:
        yield accumulated, steps.value, steps.source
    if micro is not None and steps is not None and ranks is not None:
        product = micro.value * steps.value * ranks
        yield (
            whole,
            product,
            _(
                "{micro} * {steps} * {ranks} ranks",
                micro=micro.value,
                steps=steps.value,
                ranks=ranks,
            ),
        )
    if precision is not None:
        for name in (Precision.BF16, Precision.FP16):
            yield f"{name}.enabled", precision.value is name, precision.source
