"""Write docs/accuracy.md from the figures, and from nothing else."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from accuracy.grid import IMPOSSIBLE, SETTINGS, Pair, all_pairs, missing_pairs
from accuracy.outcomes import Outcome
from accuracy.records import (
    APART,
    HOST,
    KEPT_TOGETHER,
    KINDS,
    PEAKS,
    TOGETHER,
    TOOLS,
    Errors,
    Record,
    difference_of,
    error_of,
    errors_by_kind,
    errors_by_part,
    errors_of,
    group,
)
from accuracy.split import LOOKED_AT, Split, split_of
from measured.rows import family_of, host_at_stage_3, read_every_row
from regret.section import make_regrets, regret_section
from speed.errors import step_times

from zerowiz.core.decision.evaluate import Verdict
from zerowiz.core.measure.row import PHASES

_INTRO = """\
# How right the predictions are

Every measured run of `tests/measured`, predicted against measured: `peak_bytes`, the most that torch had allocated
on rank 0. `make accuracy` works it out again and fails when a mean or a worst error got worse than the figures here
by more than 0.01 percentage points; `python tests/accuracy/report.py --write` writes this page. Do not edit it.

- An error is signed: below zero, less was predicted than was measured. A mean is that of the absolute errors.
- **fitted** runs may have been used to find or mend a formula; all of `h200.jsonl` were.
  **set aside** runs were not: those of `launches.jsonl`, measured when the formulas stood, and of any later file a
  third, by a hash of model and workload, and two families wholly (`tests/accuracy/split.py`). One of the two,
  GPT-NeoX, is dealt by the hash from the runs of `2026-11-grid.jsonl` on: its errors could not be explained otherwise.
- These runs were dealt aside, then looked at, and formulas were changed by them: {looked_at}. They count as fitted.
- Every `i1-…` run was predicted before it was measured. Of the families that came last, the formulas for LoRA, QLoRA
  and 8-bit Adam were written before any run of them (`h1-…`, `i1-…`) was seen.
- `model alone` is forward and backward on one GPU, without DeepSpeed and optimizer.
"""

_RIVALS = """\
Beside them, on the same runs:

- **DeepSpeed** {DeepSpeed}: `estimate_zero2_model_states_mem_needs_all_cold` and its ZeRO-3 twin, with the run's
  parameters, GPUs and offload. It has no estimator for ZeRO-1 and DDP, and says itself that it counts model
  states alone, no activations.
- **accelerate** {accelerate}: `accelerate estimate-memory`, "Training using Adam" in the run's precision (it calls bf16 and
  fp16 alike), on the model that the command builds with transformers {transformers}. It knows one GPU and no
  ZeRO, so it says the same at every stage.
- Neither is asked about a run without an optimizer, with another than Adam, or with LoRA.
"""


_PHASES_INTRO = """\
The peak of each phase on rank 0, of runs that ended well. In the first iteration Adam has no moments before it
steps (stage 0 in 16 bits makes them at init), ZeRO-3 gathers nothing early, and the backward's thread opens its
cuBLAS handle late. No first iteration was larger than the steady one, so the peak is that of the steady state.
These rows were looked at, on both sides, when the formulas of `model`, `init` and the first iteration were written.
"""

_KINDS_INTRO = """\
A run can be of several kinds. `rank 0` is the peak that the other tables compare. `other ranks` are those of the same
runs whose peak was recorded: shares are cut through tensors, so ranks differ. `first iteration` is the largest peak of its
three phases on rank 0.
"""

_HOLES_INTRO = """\
The settings that runs were chosen for, in pairs: {settings}. A pair that is missing is a hole: what its two settings do
to each other is unknown, and `plan` says so (`never measured together`). Of accumulation, 2 stands for 2 to 7 micro-steps and
8 for more; 2 GPUs stand for several.
"""

_HOST_INTRO = """\
What a rank of an offload run takes on the host. Measured is the largest resident set of rank 0 less what a process
takes there anyway, the interpreter with its libraries and kernels: the median of the same family's runs at stage 0 in the
same precision. Pinned memory comes in powers of two.
"""

_STEP_TIMES_INTRO = """\
[How long a step takes](concepts/speed.md), by `python tests/speed/fit.py --free-running --set-aside` and
`python tests/speed/public.py`. All steps of these tables ran freely, on one H100 and one H200 (November 2026); where a step
had to flush the allocator it is left out. Constants were fitted on the fitted side
(`python tests/speed/fit.py --free-running --fit`), but for what a data sheet or `tests/measured/links.json` says, and two that
published times of qwen at stage 3 decide: how fast Python runs on a host that nobody timed, and what ZeRO-3's gathering takes
beside hooks. How fast Python runs was read beside each GPU: 87 ns a call beside the H200, 173 and 185 ns beside the H100, and
it drifts by a quarter within minutes. The tables of the side set aside were looked at three times: after the first fit (11 and 28 %), and
after two causes were found in the sources of DeepSpeed and transformers (the norm of each offloaded gradient; attention with a mask).
"""

_HOST_STARTS_INTRO = """\
Runs at stage 3 that offload nothing take their share of the weights there while they start. Measured is the whole resident
set of rank 0; predicted is the larger of that share over a process that has run nothing, and a process of stage 0. What
the Trainer takes to save was measured on eight ranks at stages 0, 2 and 3, and lies within 0.2 %
(`tests/measured/2026-11-host.json`). Never measured: a node's sum over more than two ranks, data loaders of real data sets.
"""

_STRANGERS_INTRO = """\
Four architectures that zerowiz has no formulas for, shortened where the name ends in a number of layers. Where torch and
transformers are installed, their micro-step is [traced](concepts/trace.md), and that is what counts above; elsewhere
their config is counted as a Llama's, which is shown beside it and counts nowhere.
"""

_TWO_WAYS_INTRO = """\
Runs of families with formulas, each predicted by its formulas and by a trace of the same micro-step. Tensors and
activations are counted in both ways, apart from each other; what DeepSpeed adds comes from one ledger, so a peak that is
off in both is off by that. The peaks lie within {together} of each other, {apart}; what forward
keeps for backward, which many a peak does not show, lies within {kept}. Above, the formulas count.

The traces are committed (`tests/measured/traces.json`). The runs were made with transformers 5.17 and are traced in
5.23, but for Gemma 2 and T5, which are traced in 5.17: 5.23 runs Gemma 2 without sdpa, which takes 31 % more in `b4-019`,
and lays T5's position bias out for a fused kernel, which takes 43 % less in `f2-003`. The tracer's attention was mended by
runs of T5 and Falcon that are in this table.
"""

_SLOWLY = """\
"{slow}": the allocator flushed, and steady steps were over 5 % slower than those of the same run without a cap,
or there is no such run to tell. A capped run is weighed on a card that holds its cap and the most that any
run took beside its tensors.
"""


def _percent(error: float | None) -> str:
    return "" if error is None else f"{100 * error:+.2f} %"


def _gigabytes(size_bytes: int | None) -> str:
    return "" if size_bytes is None else f"{size_bytes / 1e9:.2f}"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _cells(errors: Errors | None) -> list[str]:
    if errors is None:
        return ["", "", ""]
    return [str(len(errors.each)), f"{100 * errors.mean:.2f} %", _percent(errors.worst)]


def _tool_cells(records: Sequence[Record], tool: str) -> list[str]:
    return _cells(errors_of(records, tool))


def summary(records: Sequence[Record], by: str) -> str:
    """Mean and worst of each tool: all together, and by rung or by family."""
    tools = [cell for tool in TOOLS for cell in (f"{tool}: runs", "mean", "worst")]
    lines = (
        [split, f"**{name}**" if kind == "all" else name]
        + [cell for tool in TOOLS for cell in _tool_cells(members, tool)]
        for (split, kind, name), members in sorted(group(records).items())
        if kind in ("all", by)
    )
    return _table(["", by, *tools], lines)


_MARKS = "<!-- accuracy -->\n", "<!-- /accuracy -->\n"


def headline(records: Sequence[Record]) -> str:
    """All together, for the README."""
    said = {
        split: [errors_of(members, tool) for tool in TOOLS]
        for (split, by, _), members in sorted(group(records).items())
        if by == "all"
    }
    lines = (
        [split]
        + [
            f"{100 * e.mean:.2f} %, worst {_percent(e.worst)} ({len(e.each)} runs)" if e else ""
            for e in errors
        ]
        for split, errors in said.items()
    )
    return _table(["mean error", *TOOLS], lines) + "\n" + _headline_by_kind(records)


# What the README says apart.
_IN_SHORT = (
    *("all", "2 to 7 micro-steps", "8 or more micro-steps", "LoRA", "QLoRA", "offloaded"),
    *("a plain loop", "the Trainer", "TRL's other trainers", "H100", "H200"),
)


def _headline_by_kind(records: Sequence[Record]) -> str:
    """The runs that were set aside, by kind, on every rank and in the first iteration."""
    errors = errors_by_kind(records)

    def said(kind: str, peak: str) -> str:
        found = errors.get((Split.SET_ASIDE.value, kind, peak))
        if found is None:
            return ""
        return f"{100 * found.mean:.2f} %, worst {_percent(found.worst)} ({len(found.each)})"

    lines = ([kind, *(said(kind, peak) for peak in PEAKS)] for kind in _IN_SHORT)
    return _table(["set aside", *PEAKS], lines)


def with_headline(readme: str, records: Sequence[Record]) -> str:
    """The README with its table written anew."""
    opening, closing = _MARKS
    before, _, rest = readme.partition(opening)
    _, _, after = rest.partition(closing)
    return f"{before}{opening}{headline(records)}{closing}{after}"


def _by_part(title: str, parts: Iterable[str], records: Sequence[Record]) -> str:
    errors = errors_by_part(records)
    lines = (
        [name.replace("_", " ")]
        + [cell for split in Split for cell in _cells(errors.get((split.value, name)))]
        for name in parts
    )
    sides = [cell for split in Split for cell in (f"{split.value}: runs", "mean", "worst")]
    return _table([title, *sides], lines)


def phases(records: Sequence[Record]) -> str:
    """Mean and worst of each phase of the first and of the steady iteration."""
    return _by_part("phase", PHASES, records)


def host(records: Sequence[Record]) -> str:
    """Mean and worst of what offload takes on the host, and every such run."""
    lines = (
        [record.id, record.model, record.rung, str(record.gpus), record.split]
        + [_gigabytes(was), _gigabytes(said), _percent(said / was - 1)]
        for record in records
        if HOST in record.parts
        for said, was in (record.parts[HOST],)
    )
    header = ["run", "model", "rung", "GPUs", "", "measured GB", "predicted GB", "error"]
    return _by_part("memory", [HOST], records) + "\n" + _table(header, lines)


def host_starts() -> str:
    """Mean and worst of what a rank at stage 3 takes, its interpreter included."""
    errors: dict[Split, list[float]] = {split: [] for split in Split}
    for row in read_every_row():
        sizes = host_at_stage_3(row)
        if sizes is not None:
            said, was = sizes
            errors[split_of(row, family_of(row))].append(said / was - 1)
    lines = (
        [split.value, str(len(each)), f"{100 * sum(map(abs, each)) / len(each):.2f} %"]
        + [_percent(max(each, key=abs))]
        for split, each in errors.items()
        if each
    )
    return _table(["", "runs at stage 3", "mean", "worst"], lines)


def strangers(records: Sequence[Record]) -> str:
    """Every run of a family without formulas: its trace, and a guess beside it."""
    header = ["run", "architecture", "model", "rung", "workload", "measured GB"]
    lines = (
        [r.id, str(r.family), r.model, r.rung, r.workload, _gigabytes(r.measured_bytes)]
        + [cell for said in (r.traced_bytes, r.guessed_bytes) for cell in _said(said, r)]
        for r in records
        if r.guessed_bytes is not None
    )
    return _table([*header, "traced GB", "error", "guessed GB", "error"], lines)


def _said(said_bytes: int | None, record: Record) -> list[str]:
    """A prediction and its error."""
    was_bytes = record.measured_bytes
    error = said_bytes / was_bytes - 1 if said_bytes and was_bytes else None
    return [_gigabytes(said_bytes), _percent(error)]


def two_ways(records: Sequence[Record]) -> str:
    """Every run that both formulas and a trace predict."""
    header = ["run", "family", "model", "rung", "workload", "measured GB"]
    lines = (
        [r.id, str(r.family), r.model, r.rung, r.workload, _gigabytes(r.measured_bytes)]
        + [cell for said in (r.predicted_bytes, r.traced_bytes) for cell in _said(said, r)]
        + [_percent(difference.of_peak), _percent(difference.of_kept)]
        for r in records
        if (difference := difference_of(r)) is not None
    )
    ours = ["formulas GB", "error", "traced GB", "error"]
    return _table([*header, *ours, "traced beside formulas", "and what forward keeps"], lines)


def _two_ways_intro() -> str:
    apart = " and ".join(f"{name} within {100 * band:.1f} %" for name, band in APART.items())
    return _TWO_WAYS_INTRO.format(
        together=f"{100 * TOGETHER:.1f} %", apart=apart, kept=f"{100 * KEPT_TOGETHER:.1f} %"
    )


def _verdict_table(records: Sequence[Record]) -> str:
    seen = Counter((record.verdict, record.outcome) for record in records)
    said = Counter(record.verdict for record in records)
    lines = (
        [f"`{v}`", *(str(seen[v.value, o.value]) for o in Outcome)]
        + [str(said[v.value]), f"{100 * said[v.value] / len(records):.1f} %"]
        for v in Verdict
    )
    return _table(["verdict", *(o.value for o in Outcome), "runs", "share"], lines)


def verdicts(records: Sequence[Record]) -> str:
    """What was said of each run, against how it ended."""
    judged = [record for record in records if record.verdict and record.outcome]
    parts = []
    for title, capped in (("under a cap of torch's allocator", True), ("on the whole GPU", False)):
        some = [record for record in judged if record.capped is capped]
        parts.append(f"{len(some)} runs {title}:\n\n{_verdict_table(some)}")
    return "\n".join([*parts, _kept_promises(judged)])


def _kept_promises(judged: Sequence[Record]) -> str:
    """What the verdicts promise, and how often that was kept."""
    died = [record for record in judged if record.outcome == Outcome.DIED.value]
    sure = sum(record.verdict in {Verdict.FITS.value, Verdict.TIGHT.value} for record in died)
    lived = [record for record in judged if record.outcome != Outcome.DIED.value]
    refused = sum(record.verdict == Verdict.DOES_NOT_FIT.value for record in lived)
    doubted = sum(record.verdict == Verdict.UNCERTAIN.value for record in lived)
    return (
        f"Of {len(died)} runs that ran out of memory {sure} were said to fit or to be tight. Of"
        f" {len(lived)} that lived {refused} ({100 * refused / len(lived):.1f} %) were said not to"
        f" fit, and {doubted} ({100 * doubted / len(lived):.1f} %) to be uncertain, all but a few of"
        " them under caps that were set near their peaks.\n"
    )


def _wrong_section(records: Sequence[Record]) -> str:
    wrong = [record for record in records if record.misjudged]
    if not wrong:
        return "No verdict is wrong: what fits ran at full speed, what does not fit died.\n"
    return "Wrong:\n\n" + _table(
        ["run", "model", "rung", "said", "it"],
        ([r.id, r.model, r.rung, f"`{r.verdict}`", str(r.outcome)] for r in wrong),
    )


def unpredicted(records: Sequence[Record]) -> str:
    """Every run that has no error, with the reason."""
    died = "it ran out of memory, so there is no peak; its verdict counts above"
    lines = (
        [record.id, record.model, record.rung, record.workload, record.unpredicted or died]
        for record in records
        if not record.compared and not record.capped
    )
    return _table(["run", "model", "rung", "workload", "not compared, as"], lines)


def _every_run(records: Sequence[Record]) -> str:
    return _table(
        [
            "run",
            "kind",
            "model",
            "rung",
            "GPUs",
            "workload",
            "",
            "measured GB",
            "predicted GB",
            *TOOLS,
        ],
        (
            [
                r.id,
                r.kind,
                r.model,
                r.rung,
                str(r.gpus),
                r.workload + ", capped" * r.capped,
                r.split,
            ]
            + [_gigabytes(r.measured_bytes), _gigabytes(r.predicted_bytes)]
            + [_percent(error_of(r, tool)) for tool in TOOLS]
            for r in records
        ),
    )


def by_kind(records: Sequence[Record]) -> str:
    """The errors of each kind of run: of rank 0, of the other ranks, of the first iteration."""
    errors = errors_by_kind(records)
    lines = (
        [split.value, kind]
        + [cell for peak in PEAKS for cell in _cells(errors.get((split.value, kind, peak)))]
        for split in Split
        for kind in KINDS
        if any((split.value, kind, peak) in errors for peak in PEAKS)
    )
    counted = {"rank 0": "runs", "other ranks": "ranks", "first iteration": "runs"}
    peaks = [c for peak in PEAKS for c in (f"{peak}: {counted[peak]}", "mean", "worst")]
    return _table(["", "runs that are", *peaks], lines)


def _in_words(pair: Pair) -> list[str]:
    return [f"{name} {value}" for name, value in pair]


def holes(records: Sequence[Record]) -> str:
    """The pairs of settings that no run had, and those that no run can have."""
    points = [record.point for record in records if record.point]
    missing = missing_pairs(points)
    possible = len(all_pairs()) - len(IMPOSSIBLE)
    unknown = "None is missing.\n" if not missing else _table(["", "and"], map(_in_words, missing))
    never = _table(
        ["", "and", "cannot be, as"], ([*_in_words(pair), why] for pair, why in IMPOSSIBLE.items())
    )
    return f"{len(missing)} of {possible} possible pairs were in no run.\n\n{unknown}\n{never}"


def counts(records: Sequence[Record]) -> str:
    """How many runs there are, and where each went."""
    compared = sum(record.compared for record in records)
    capped = sum(record.capped for record in records)
    died = sum(r.measured_bytes is None and not r.unpredicted for r in records if not r.capped)
    return (
        f"{len(records)} runs: {compared} compared, {capped} under a cap, which repeat a workload and"
        f" count for verdicts alone, {died} that ran out of memory without one,"
        f" {len(records) - compared - capped - died} not predicted.\n"
    )


def render(records: Sequence[Record], versions: Mapping[str, str]) -> str:
    """The page."""
    sections = (
        _INTRO.format(looked_at=", ".join(sorted(LOOKED_AT))),
        _RIVALS.format(**versions),
        counts(records),
        "## By rung\n",
        summary(records, "rung"),
        "## By kind of run\n",
        _KINDS_INTRO,
        by_kind(records),
        "## Never measured together\n",
        _HOLES_INTRO.format(settings=", ".join(SETTINGS)),
        holes(records),
        "## By family\n",
        summary(records, "family"),
        "## Architectures without formulas\n",
        _STRANGERS_INTRO,
        strangers(records),
        "## Two ways that must agree\n",
        _two_ways_intro(),
        two_ways(records),
        "## By phase\n",
        _PHASES_INTRO,
        phases(records),
        "## Host memory\n",
        _HOST_INTRO,
        host(records),
        _HOST_STARTS_INTRO,
        host_starts(),
        "## Step time\n",
        _STEP_TIMES_INTRO,
        step_times(),
        regret_section(make_regrets()),
        "## Verdicts\n",
        _SLOWLY.format(slow=Outcome.SLOW.value),
        verdicts(records),
        _wrong_section(records),
        "## Not compared\n",
        unpredicted(records),
        "## Every run\n",
        f"{Split.FITTED.value} or {Split.SET_ASIDE.value}; GB are 10^9 bytes; the last three columns are errors.\n",
        _every_run(records),
    )
    return "\n".join(sections)
