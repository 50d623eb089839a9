"""Ask of every machine in the tables whether a job fits, how fast it is there and what it costs."""

from collections.abc import Sequence

from msgspec import Struct

from zerowiz import __version__
from zerowiz.app.decide import decide_job
from zerowiz.app.machines.machine import complete
from zerowiz.app.options import Options
from zerowiz.app.resolve.resolved_job import ResolvedJob, beyond_positions, resolve_job
from zerowiz.core import shell
from zerowiz.core.catalog import (
    Offers,
    encode_offers,
    find_offers,
)
from zerowiz.core.decision.flowchart import Decision
from zerowiz.core.machine.names import MOST_GPUS_PER_NODE
from zerowiz.core.machine_kinds import MachineCandidate, PriceList, list_kinds, read_prices
from zerowiz.core.script.settings import ScriptRun
from zerowiz.core.structs import replace, shows
from zerowiz.errors import NothingFitsError, UsageError, refuse_any
from zerowiz.probe.files import read_gpu_table, read_instances


@shows("offers.offers", "offers.offers[0].candidate.name", "offers.kinds")
class MachineChoice(Struct, frozen=True, kw_only=True):
    """The machines of the tables that a job fits."""

    resolved: ResolvedJob
    """Of one of the machines that were tried."""
    assumed: tuple[str, ...]
    """The defaults that each of the plans rests on, one clause each."""
    offers: Offers
    prices: PriceList
    largest: str
    """The largest machine that was tried, as `$machine` takes it."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What all of the plans rest on, one sentence each."""
        resolved = self.resolved
        assumed = (f"assumed {', '.join(self.assumed)}",) if self.assumed else ()
        too_long = beyond_positions(resolved.job.model, resolved.job.workload)
        long = () if too_long is None else (too_long,)
        return (*resolved.traced, *assumed, *long, *resolved.not_counted)

    def to_dict(self) -> dict[str, object]:
        """The JSON of `plan --json --machine all`."""
        model = self.resolved.job.model
        return encode_offers(self.offers, model, self.prices, version=__version__)

    def require_any(self) -> None:
        """See that some machine fits.

        Raises:
            NothingFitsError: None does.
        """
        if not self.offers.offers:
            name = self.resolved.job.model.name
            raise NothingFitsError(
                (
                    f"{name} does not fit on any machine that zerowiz tried; the largest is "
                    f"{self.largest}"
                ),
                (
                    f"`zerowiz plan $machine {self.largest} $model {shell.quote(name)}` "
                    "shows what would help"
                ),
                *((self.offers.why_unasked,) if self.offers.why_unasked else ()),
            )


class _Planner:
    """Plans one job for many machines: the model is read once."""

    def __init__(self, options: Options, script: ScriptRun | None) -> None:
        self.options = replace(options, machine=None, gpus_per_node=None)
        self.script = script
        self.first: ResolvedJob | None = None
        self.assumed: tuple[str, ...] = ()
        self.refused: UsageError | None = None

    def decide(self, candidate: MachineCandidate) -> Decision | None:
        """The decision on a machine; None where the job cannot be asked of it."""
        first, options = self.first, self.options
        try:
            machine = complete(candidate.machine, options)
            job = (
                resolve_job(options, machine, self.script)
                if first is None
                else first.with_change(options, machine, first.read)
            )
            followed = decide_job(job)
        except UsageError as error:
            # A global batch that its ranks do not share evenly, fp16 states: another may do it.
            self.refused = self.refused or error
            return None
        resolved = followed.resolved
        if self.first is None:
            self.first, self.assumed = resolved, resolved.assumed
        else:
            settings = {_setting(clause) for clause in resolved.assumed}
            self.assumed = tuple(clause for clause in self.assumed if _setting(clause) in settings)
        return followed.decision


def _setting(clause: str) -> str:
    """What a clause on a default is of: the setting in brackets at its end."""
    return clause.rpartition("(")[2]


def find_machines(
    options: Options,
    script: ScriptRun | None,
    prices: Sequence[str] = (),
) -> MachineChoice:
    """The machines of the tables that the job fits.

    Args:
        options: What was said; of the machine, at most its nodes, its GPUs per node, its links and
            the memory of its hosts.
        script: The script as it is run; None without one.
        prices: Each dollars per GPU hour, or several with names and commas between them.

    Raises:
        UsageError: No machine can be asked, or a price has no meaning here.
    """
    _check_options(options)
    table, instances = read_gpu_table(), read_instances()
    read = read_prices(prices, table, instances)
    kinds = list_kinds(table, instances, nodes=options.nodes, gpus=options.gpus_per_node)
    planner = _Planner(options, script)
    offers = find_offers(kinds, table, planner.decide, read)
    if planner.first is None:
        raise planner.refused or UsageError(
            "no machine of the tables has that size", "remove `$nodes` or `$gpus_per_node`"
        )
    if planner.refused is not None:
        offers = replace(offers, why_unasked=planner.refused.message)
    # What has most memory in all.
    largest = max(kinds, key=lambda kind: kind.sizes[-1].world_size * kind.gpu.usable_bytes)
    return MachineChoice(
        resolved=planner.first,
        assumed=planner.assumed,
        offers=offers,
        prices=read,
        largest=largest.build(largest.sizes[-1], table).name,
    )


_OF_ONE_MACHINE = ("gpus", "hostfile", "accelerator")


def _check_options(options: Options) -> None:
    """See that nothing is said that is of one machine alone, or of none."""
    given = {f"${n} {getattr(options, n)}": getattr(options, n) for n in _OF_ONE_MACHINE}
    why = "is for one machine, and `$machine all` compares many"
    refuse_any(given, why, "remove it, or choose one machine")
    gpus = options.gpus_per_node
    if gpus is not None and gpus > MOST_GPUS_PER_NODE:
        raise UsageError(
            f"`$gpus_per_node {gpus}`: a node has 1 to {MOST_GPUS_PER_NODE} GPUs",
            "for several nodes add `$nodes 2`",
        )
