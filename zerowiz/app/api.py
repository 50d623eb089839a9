"""The Python API: plan, read a machine, check a config, write one.

Nothing here prints, asks or exits. A failure is a ZerowizError; that nothing fits is a result.
"""

import difflib
import inspect
import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import msgspec
from msgspec import Struct

from zerowiz.app.decide import Plan, encode_plan, plan_options, require_strategy
from zerowiz.app.machines.machine import find_machine, means_all
from zerowiz.app.options import (
    Options,
    choices_of,
    kinds,
    lasting,
    rows,
    settable,
    with_plain,
)
from zerowiz.app.reporter import SILENT, Reporter
from zerowiz.app.resolve.resolved_job import config_file, lr_needed
from zerowiz.app.resolve.workload import check_own_config
from zerowiz.core.decision.evaluate import StrategyEstimate
from zerowiz.core.decision.open_settings import Candidate, Limit, find_limits
from zerowiz.core.dsconfig.write import write_config as render_values
from zerowiz.core.machine.types import Machine
from zerowiz.core.model.types import Model
from zerowiz.core.script.settings import ScriptRun
from zerowiz.core.settings import Panel
from zerowiz.core.structs import replace
from zerowiz.core.workload import Integration, Workload
from zerowiz.errors import UsageError, did_you_mean, in_python, refuse_any

if TYPE_CHECKING:
    from zerowiz.app.catalog import MachineChoice
    from zerowiz.core.decision.remedies import Remedy
    from zerowiz.core.findings import Finding

# The script that a plan file names where no script was read.
_SCRIPT = "train.py"

P = ParamSpec("P")
R = TypeVar("R")


class PlanResult(Struct, frozen=True, kw_only=True):
    """What was decided for one job.

    In a notebook it shows itself with its pictures. It is true if a strategy was chosen.
    """

    decided: Plan

    def __bool__(self) -> bool:
        return self.chosen is not None

    def __repr__(self) -> str:
        """One line: what is inside has more lines than anybody reads."""
        chosen = "none" if self.chosen is None else self.chosen.strategy.name
        machine = f"{self.machine.world_size} x {self.machine.gpus[0].name}"
        return f"<PlanResult: {chosen} for {self.model.name} on {machine}>"

    @property
    def chosen(self) -> StrategyEstimate | None:
        """The strategy that was chosen, with its estimate; None where nothing fits."""
        return self.decided.decision.chosen

    @property
    def choice(self) -> Candidate | None:
        """The training step and the strategy that were chosen; None where nothing fits."""
        chosen = self.chosen
        return None if chosen is None else Candidate(workload=self.workload, evaluated=chosen)

    @property
    def strategies(self) -> tuple[StrategyEstimate, ...]:
        """Every strategy with its verdict; the one that keeps most on each GPU comes first."""
        return self.decided.decision.evaluated

    @property
    def remedies(self) -> "tuple[Remedy, ...]":
        """Changes that lead to a strategy that fits, the cheapest first; none where one does."""
        return self.decided.remedies

    @property
    def machine(self) -> Machine:
        """What was planned for."""
        return self.decided.decision.job.machine

    @property
    def model(self) -> Model:
        """What was planned for."""
        return self.decided.decision.job.model

    @property
    def workload(self) -> Workload:
        """The training step that was planned for."""
        return self.decided.decision.job.workload

    @property
    def assumed(self) -> tuple[str, ...]:
        """The defaults that the plan rests on."""
        return tuple(map(in_python, self.decided.resolved.assumed))

    def config(self) -> dict[str, object]:
        """The DeepSpeed config of the chosen strategy.

        Raises:
            NothingFitsError: There is none.
            AnswerNeededError: Nobody names the learning rate of the optimizer in it.
        """
        chosen = self.decided.decision.of(require_strategy(self.decided))
        resolved = self.decided.resolved
        if resolved.lacks_lr:
            raise lr_needed()
        return render_values(resolved.job, chosen, resolved.handover)

    def limits(self) -> tuple[Limit, ...]:
        """The largest steps of each strategy that surely fit, as `zerowiz plan --limits` has them.

        Of each strategy there are two, without and with gradient checkpointing: its largest
        micro-batch at the sequence length of the plan, and its longest sequence, in tokens, at the
        micro-batch of the plan. 0 is where none is certain to fit.

        Example:
            >>> result = plan("2xH100-80GB", model="7b", method="lora")
            >>> [each] = [
            ...     each
            ...     for each in result.limits()
            ...     if each.strategy.name == "zero3" and each.gradient_checkpointing
            ... ]
            >>> each.micro_batch > result.workload.micro_batch
            True
            >>> each.sequence_tokens > result.workload.sequence_tokens
            True
        """
        return find_limits(self.decided.decision.job)

    def to_dict(self, limits: Sequence[Limit] | None = None) -> dict[str, object]:
        """The same object that `zerowiz plan --json` prints.

        Args:
            limits: What `limits` gave, for its part.
        """
        encoded = encode_plan(self.decided, limits=limits)
        content: dict[str, object] = msgspec.json.decode(msgspec.json.encode(encoded))
        return content

    def _repr_html_(self) -> str:
        from zerowiz.ui import page  # noqa: PLC0415 - a notebook alone asks for it

        return page.plan(self.decided.decision, self.remedies)


def _machine_html(machine: Machine) -> str:
    from zerowiz.ui import page  # noqa: PLC0415 - as above

    return page.of_machine(machine)


# A notebook asks the class. Core, whose class it is, knows nothing of HTML.
Machine._repr_html_ = _machine_html  # type: ignore[attr-defined]


def _settings(values: Mapping[str, object]) -> Options:
    """The options with these settings.

    Raises:
        UsageError: A name is no setting, or its value is none that it takes.
    """
    by_option = {option.replace("-", "_"): name for option, name in lasting().items()}
    named: dict[str, object] = {}
    for key, value in values.items():
        name = by_option.get(key, key)
        if name not in settable():
            near = difflib.get_close_matches(key, {*settable(), *by_option}, n=2)
            raise UsageError(
                f"there is no setting `{key}`",
                *did_you_mean(near),
            )
        if name in named:
            raise UsageError(f"`{name}` is set twice")
        if value is not None:
            named[name] = value
    return with_plain(Options(), named)


def _takes_settings(
    settings: Callable[P, Options], names: Collection[str]
) -> Callable[
    [Callable[[Machine | str | os.PathLike[str] | None, Options], R]],
    Callable[Concatenate[Machine | str | os.PathLike[str] | None, P], R],
]:
    """Give a function the settings as keywords, typed as the fields of Options are.

    Args:
        settings: Options, for their types.
        names: Those that it heeds, for `help` and for editors.
    """
    del settings

    def decorate(
        function: Callable[[Machine | str | os.PathLike[str] | None, Options], R],
    ) -> Callable[Concatenate[Machine | str | os.PathLike[str] | None, P], R]:
        @wraps(function)
        def called(
            machine: Machine | str | os.PathLike[str] | None = None,
            /,
            *args: P.args,
            **settings: P.kwargs,
        ) -> R:
            if args:
                raise TypeError("pass settings as keyword arguments")
            return function(machine, _settings(settings))

        called.__signature__ = _signature(names)  # type: ignore[attr-defined]
        called.__doc__ = f"{function.__doc__ or ''}{_list_settings(names)}"
        return called

    return decorate


class _ShortSignature(inspect.Signature):
    """A signature that editors can ask for each setting, and that `help` prints in one line."""

    def __str__(self) -> str:
        return "(machine=None, /, **settings)"

    def format(self, **_layout: object) -> str:
        """What `help` prints from Python 3.13 on."""
        return str(self)


def _signature(names: Collection[str]) -> inspect.Signature:
    """The machine, and a keyword for each setting; for `help` and for editors."""
    keywords = (
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            # Without its row, which `help` would print whole.
            annotation=Options.__annotations__[name],
        )
        for name in names
    )
    kind = inspect.Parameter.POSITIONAL_ONLY
    return _ShortSignature([inspect.Parameter("machine", kind, default=None), *keywords])


def _list_settings(names: Collection[str]) -> str:
    """The settings for `help`, under the headings of the command line."""
    step = Workload().settings()
    lines = []
    for panel in Panel:
        of_panel = [name for name in names if rows()[name].panel is panel]
        lines += ["", f"    {panel.value}:"] if of_panel else []
        for name in of_panel:
            row, kind = rows()[name], kinds()[name]
            words = " | ".join(f'"{word}"' for word in choices_of(kind, row)) or kind.__name__
            default = step.get(name) if row.default is None else None
            text = f'"{default}"' if isinstance(default, str) else default
            shown = "" if default is None else f" = {text}"
            lines += [
                f"        {name}: {words}{shown}",
                f"            {row.help.replace('--', '')}",
            ]
    return "\n".join(lines)


# What `find_machine` reads of the options: a machine that was read has taken it already.
_OF_MACHINE = (
    *("gpus", "nodes", "gpus_per_node", "hostfile", "accelerator"),
    *("interconnect", "host_memory", "probe_timeout"),
)
_OF_PLAN = tuple(name for name in settable() if name != "machine")


def _find(
    machine: Machine | str | os.PathLike[str] | None, options: Options
) -> tuple[Machine, Options]:
    """The machine, and the options with its name, if one is named."""
    if isinstance(machine, Machine):
        given = {f"${name}": getattr(options, name) for name in _OF_MACHINE}
        why = "has no effect on a machine that was read before"
        refuse_any(given, why, "pass it to `read_machine`")
        return machine, options
    if machine is not None:
        options = replace(options, machine=os.fspath(machine))
    if means_all(options.machine):
        raise UsageError(
            "`machine` has to be one machine here",
            "use `zerowiz.find_machines` to compare machines",
        )
    return find_machine(options, os.environ), options


@_takes_settings(Options, _OF_MACHINE)
def read_machine(machine: Machine | str | os.PathLike[str] | None, settings: Options) -> Machine:
    """The machine that jobs run on.

    Args:
        machine: A spec such as `4xA100-40GB`, a file that `zerowiz machine --save` wrote, `cpu` for
            this host without its GPUs, or None for the GPUs here.
        settings: As keywords, the settings of the machine, which are listed below.

    Raises:
        PreflightError: There is no GPU here.
        UsageError: There is no such machine, or a setting contradicts it.

    Example:
        >>> machine = read_machine("4xA100-40GB")
        >>> machine.world_size, machine.interconnect.link_class.value
        (4, 'nvlink_all')
    """
    return _find(machine, settings)[0]


@_takes_settings(Options, _OF_PLAN)
def plan(machine: Machine | str | os.PathLike[str] | None, settings: Options) -> PlanResult:
    """Decide how to train a model on a machine.

    Args:
        machine: A spec such as `4xA100-40GB`, a file that `zerowiz machine --save` wrote, what
            `read_machine` returned, or None for the GPUs here.
        settings: As keywords, the settings of `zerowiz plan`, which are listed below. You can also
            use the names of its options, with `_` for `-`: `seq_len` is `sequence_tokens`.

    Raises:
        UsageError: A setting makes no sense, or DeepSpeed does not do what was asked for.
        AnswerNeededError: No model is named.
        PreflightError: There is no GPU here.

    Example:
        >>> result = plan("4xA100-40GB", model="7b", gradient_checkpointing=True)
        >>> result.chosen.strategy.name
        'zero3'
        >>> [each.strategy.name for each in result.strategies if each.verdict == "fits"]
        ['zero3']
        >>> result.chosen.estimate.peak_bytes // 2**30
        29
        >>> bool(plan("2xRTX4090", model="70b", offload="none"))
        False
    """
    found, options = _find(machine, settings)
    return plan_with(options, found)


def plan_with(
    options: Options,
    machine: Machine,
    script: ScriptRun | None = None,
    reporter: Reporter = SILENT,
) -> PlanResult:
    """Decide with these options on this machine: what `plan` and `zerowiz plan` do.

    Raises:
        ConfigMistakeError: `config` holds an error, and `force` is not set.
    """
    check_own_config(options, machine, script, reporter)
    return PlanResult(decided=plan_options(options, machine, script, reporter))


def find_machines(
    *,
    price: str | Sequence[str] = (),
    **settings: object,
) -> "MachineChoice":
    """The machines of the tables that a job fits, as `zerowiz plan --machine all`.

    Args:
        price: Dollars per GPU hour, such as `"2.50"` or `"H100-80GB=2.50"`, or several of them.
        **settings: As for `plan`, without a machine; `nodes` and `gpus_per_node` try these alone.

    Raises:
        UsageError: A setting makes no sense, or is for one machine alone.

    Example:
        >>> prices = "H100-80GB=2.50,A100-80GB=1.50"
        >>> found = find_machines(model="1b", gpus_per_node=1, price=prices)
        >>> [offer.candidate.name for offer in found.offers.offers[:2]]
        ['1xH100-80GB', '1xA100-80GB']
    """
    from zerowiz.app.catalog import find_machines as find  # noqa: PLC0415 - a plan is for one machine

    prices = (price,) if isinstance(price, str) else price
    return find(_settings(settings), None, prices)


def write_config(
    result: PlanResult, folder: str | os.PathLike[str] = ".", *, force: bool = False
) -> Path:
    """Write the config of a plan, and why it is so (`.plan.json`); the path of the config.

    A config of your own that is JSON is what runs, and nothing is written.

    Args:
        result: Of `plan`.
        folder: Where to.
        force: Whether to overwrite files that somebody changed by hand.

    Raises:
        NothingFitsError: No strategy fits.
        HandEditedError: A file there was changed by hand.
        ZerowizError: The folder cannot be written.

    Example:
        >>> from tempfile import mkdtemp
        >>> path = write_config(plan("8xH100-80GB-SXM", model="7b"), mkdtemp())
        >>> path.name
        'ds_config_zero2.json'
    """
    from zerowiz.app.launch.start import plan_files  # noqa: PLC0415 - a plan writes nothing
    from zerowiz.emit.files import write_files  # noqa: PLC0415 - as above

    decided = replace(
        result.decided, options=replace(result.decided.options, output_dir=Path(folder))
    )
    strategy = require_strategy(decided)
    write_files(plan_files(decided, strategy, _SCRIPT, ()), force=force)
    return Path(config_file(decided.options, strategy))


def _as_json(config: Mapping[str, object]) -> bytes:
    try:
        return json.dumps(dict(config), indent=2).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"the config holds what JSON cannot: {error}") from None


def check(
    config: str | os.PathLike[str] | Mapping[str, object],
    *,
    integration: Integration | str | None = None,
    machine: Machine | str | os.PathLike[str] | None = None,
    world_size: int | None = None,
    deepspeed_version: str | None = None,
) -> "tuple[Finding, ...]":
    """The mistakes in a DeepSpeed config, in the order of its text.

    Args:
        config: The path of a file, or of a folder of them, or the values themselves.
        integration: Who hands it to DeepSpeed: `hf`, `deepspeed` or `accelerate`.
        machine: What the job runs on, as for `plan`; None: nothing is known of it.
        world_size: Ranks of the job.
        deepspeed_version: Whose keys count; that of the installed one, else the newest.

    Raises:
        UsageError: An argument makes no sense, or a value is none that JSON has.
        ZerowizError: The file cannot be read.

    Example:
        >>> found = check({"zero_optimization": {"stage": 2, "overlap_com": True}})
        >>> [(each.rule.code, each.key) for each in found if each.rule.code == "ZW101"]
        [('ZW101', 'zero_optimization.overlap_com')]
    """
    # Who plans needs none of these, and they take as long to load as a plan.
    from zerowiz.app.check import (  # noqa: PLC0415 - see above
        FoundConfigs,
        check_file,
        choose_version,
        find_configs,
        find_context,
    )
    from zerowiz.core.lint.config import on_machine  # noqa: PLC0415 - see above
    from zerowiz.probe.config_text import decode_config  # noqa: PLC0415 - see above
    from zerowiz.probe.files import read_ds_schema  # noqa: PLC0415 - see above

    version = choose_version(deepspeed_version)
    schema = read_ds_schema(version)
    if isinstance(config, Mapping):
        configs = FoundConfigs(configs=(decode_config("config", _as_json(config)),), unreadable=())
    else:
        configs = find_configs([os.fspath(config)], schema)
    if configs.unreadable:
        raise configs.unreadable[0]
    reader = _settings({"integration": integration}).integration
    context = find_context(reader, world_size, None, None, version)
    if machine is not None:
        context = on_machine(context, _find(machine, Options())[0])
    reports = (check_file(file, schema, context) for file in configs.configs)
    return tuple(finding for report in reports for finding in report.findings)
