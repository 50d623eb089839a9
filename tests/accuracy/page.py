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
from measured.trials import PHASES
from regret.drawn import drawn_section
from regret.section import make_regrets, regret_section
from speed.errors import step_times

from zerowiz.core.decision.evaluate import Verdict

_INTRO = """\
# How right the predictions are

This page compares every measured run with its prediction. To work the numbers out again:

```console
$ make accuracy
```

The command fails if a mean or a worst error is more than 0.01 percentage points worse than on this page. It compares
`peak_bytes`, which is the most memory that torch allocated on rank 0. Do not edit this page. `python tests/accuracy/report.py --write` writes it.

- An error below zero means that we predicted too little. A mean is the mean of the absolute errors.
- A **fitted** run is one that we may have used to build or correct a formula. All of `h200.jsonl` is fitted.
- We did not use the runs that are **set aside**. These are the runs of `launches.jsonl` without an evaluation, a third of all later runs, and two
  whole families (`tests/accuracy/split.py`). A hash chooses the third.
- GPT-NeoX is one of these two families. Since `2026-11-grid.jsonl`, the hash decides about its runs too, because we could not explain its errors otherwise.
- We set some runs aside at first, but then looked at them and changed formulas. They count as fitted: {looked_at}.
- We predicted every `i1-…` run before we measured it. We also wrote the formulas for LoRA, QLoRA and 8-bit Adam before we saw
  such a run (`h1-…`, `i1-…`).
- `model alone` means forward and backward on one GPU, without DeepSpeed and without an optimizer.
"""

_RIVALS = """\
We gave the same runs to two public estimators:

- **DeepSpeed** {DeepSpeed}: `estimate_zero2_model_states_mem_needs_all_cold`, and the same function for ZeRO-3. They get the parameters,
  GPUs and offload of the run. DeepSpeed has no estimator for ZeRO-1 and DDP. Its documentation says that it counts no activations.
- **accelerate** {accelerate}: `accelerate estimate-memory` with transformers {transformers}. We take "Training using Adam" in the precision of the run.
  It knows one GPU and no ZeRO, so it says the same at every stage.

We did not ask the estimators about runs without an optimizer, with an optimizer other than Adam, or with LoRA.
"""


_PHASES_INTRO = """\
This table shows the peak of each phase on rank 0, for runs that ended well. The first iteration differs from later ones for three reasons.
Adam has no moments before its first step, except at stage 0 in 16 bits. ZeRO-3 gathers nothing early. The thread of the backward pass opens its
cuBLAS handle late. No first iteration was larger than the steady one. We looked at these rows, on both sides, when we wrote the formulas of `model`,
`init` and the first iteration.
"""

_KINDS_INTRO = """\
A run can be of several kinds. The columns are:

- `rank 0` is the peak that the other tables compare.
- `other ranks` are the other ranks of the same runs, if we recorded their peak. Ranks differ because shares cut through tensors.
- `first iteration` is the largest peak of its three phases on rank 0.
"""

_HOLES_INTRO = """\
We chose the runs so that they cover pairs of these settings: {settings}. The first table lists the pairs that no run had.
We do not know what the settings of such a pair do to each other, and `plan` says so (`never measured together`). An accumulation of 2 stands for 2 to 7
micro-steps, and 8 for more. 2 GPUs stand for several.
"""

_HOST_INTRO = """\
The first two tables show what a rank with offload takes on the host. "Measured" is the largest resident set of rank 0, minus what every process
takes for Python, libraries and kernels. For that part, we take the median of the runs of the same family at stage 0 in the same precision. Pinned memory
comes in powers of two.
"""

_STEP_TIMES_INTRO = """\
See [how long a step takes](concepts/speed.md). These tables come from `python tests/speed/fit.py --free-running --set-aside` and
`python tests/speed/public.py`.

- All steps ran without a pause, on one and two H100s and on one, two and four H200s (November 2026). We left out steps in which the allocator flushed its cache.
- We fitted the constants to the fitted side (`python tests/speed/fit.py --free-running --fit`). Some come from data sheets and from `tests/measured/links.json`.
  Published times of A100s and A800s decided two: the speed of Python on an unknown host, and what ZeRO-3's gathering takes beside hooks.
- We timed Python beside the steps, for 3 ms. A call took 82 to 380 ns, and between two readings of one hour it can change by a factor of four, because
  other jobs share the host. One reading says little about a whole step. So a prediction uses a value between the reading and 143 ns, the mean of all readings.
  After `measure`, it uses the mean of the readings on that machine in place of one reading.
- A reading does not tell these hosts apart. The same step took 0.28 to 0.32 s in three leases, at readings of 88 to 185 ns, and 0.42 to 0.47 s in a fourth, at
  99 to 201 ns (qwen2.5-0.5b at stage 0, 4 micro-steps of 4 x 512 tokens).
- On these hosts, a step takes a tenth more or less than the one before it, whatever that one took. So a measured time is the median of the steps after the
  first third. It was the median of the last three, and we changed it because repeats then lie closer together: on the fitted side, two runs of one setting in
  one lease differed by 10.4 % (root mean square), and now by 9.2 %. Runs differ from each other by more than their steps explain, so more steps do not help much.
  Three leases timed 5 to 18 steps each, in about 4 s.
- We looked at the tables of the side set aside eight times. The first time was after the first fit (11 and 28 %). The second and third followed causes that we
  found in DeepSpeed and transformers: the norm of each offloaded gradient, and attention with a mask. Before the fourth (10.0 and 28.7 %) we saw, in a
  list of the worst steps of both sides, that their readings were far from the mean. We chose the weight of a reading on the fitted side alone, and fitted
  all constants again. Then we tried to trust the mean of many readings more than one reading. The fitted side hardly changed, and nine in ten of the side set
  aside after `measure` came from 20.5 to 22.4 %, so we left it out.
- The fifth time we looked followed a cause in DeepSpeed again: the GPU copies each gradient into a bucket and out of it (9.6 and 22.8 % before).
- The sixth time we looked, we changed no constant. On the fitted side, we had counted each launch of the optimizer's step from DeepSpeed's source, which
  gained nothing. And we had given the host's times one common factor after `measure`. The fitted side gained a little (from 8.4 and 19.6 % to 8.3 and 19.2 %),
  but the side set aside lost (from 7.8 and 20.1 % to 8.8 and 21.4 %). So we left out both.
- Before the seventh time, we counted two parts of a step anew, on the fitted side and outside it. What small kernels move between the products of matrices
  was one factor for all models. Now it is counted in traces (`tests/speed/traffic.py`): a model with LayerNorm moves two fifths less than one with
  RMS norms, and the head less than a block. And checkpointing took as long for each block. Now it takes as long for each module, because torch calls Python for
  each tensor that it saves. We fitted all constants again. On the fitted side, a lease without the predicted step calibrates it to 7.0 and 17.4 % (7.9 and
  19.9 % before). On the side set aside, 9.5 and 22.0 % became 8.5 and 20.1 %, and 8.5 and 22.3 % after `measure` became 7.5 and 20.8 %.
- Before the eighth time, we changed nothing: we added the steps of three leases, which had no part in any constant. They moved 8.5 and 20.1 % to 8.5 and
  21.4 %, and left 7.5 and 20.8 % after `measure` as they were.
- The ninth time, we counted the host's part anew: the operations that torch is called for, from traces of eleven families, where it was modules. Phi-3,
  whose products are fused, has as many operations as Llama in two thirds of the modules. And LoRA counts what its adapters scale and add. We saw the cause in
  13 steps of a lease, of which the hash sets 6 aside. We fitted all constants again, on the fitted side (7.3 and 19.5 % became 6.9 and 19.4 %). GPUs
  before Hopper no longer have a fraction of their own.
- The tenth time, we changed nothing: we added 100 steps of two leases of four H200s, which had no part in any constant. No collective over four GPUs had
  been timed before. Their lines are `4 x NVIDIA H200` below.
- The eleventh time, we counted the attention of Falcon in fp32, as torch multiplies where it has no fused kernel. We saw it in a lease of drawn workloads: steps of
  falcon-7b-6l took 0.05 s more than predicted. No constant changed.
- The twelfth time, we let attention take as long as its exponentials where these take longer than its products: of heads of 64 on an H100. And we counted the Python
  around an exchange of sequences. We saw both in 13 steps on two H200s that share sequences. Half of these were within 17 %, and are within 11 %; of eight later ones half are
  within 6 %. Steps of such heads that share nothing are predicted 3 % longer, which they are not. No constant changed.
- Then we tried one more cause, and left it out. For each tensor that trains, DeepSpeed makes 55 calls of Python in a step of stage 0, and 33, 18 and 12 at stage 1 on 1, 2 and 4
  CPU ranks, where the prediction counts none. Of a hook it makes 83, 74 and 69. Fitted so, the fitted side has 7.4 and 19.9 % (7.3 and 19.8 % without), the side set aside
  8.3 and 21.5 % (8.4 and 21.9 %), and the choices of drawn workloads were no better.
- After `measure`, a plan predicts a setting, and its time is the median of its runs in that lease. The last line of that table counts so. The line above it
  counts single runs. We added the last line after we had seen that a repeat in the same lease is no nearer than the prediction.
- A plan compares settings on one host, with one reading. So a pair of settings takes the mean of all readings on these GPUs, and the median of the runs
  of each setting. A pair of single runs takes the reading of each run. We first counted single runs alone (92.8 %), and saw on both sides that most of the
  wrong pairs were repeats of the same few settings.
- The repeats below show how good a prediction a measured time is on these hosts.
"""

_HOST_STARTS_INTRO = """\
The next table shows runs at stage 3 that offload nothing. They take their share of the weights on the host while they start. "Measured" is the whole
resident set of rank 0. "Predicted" is the larger of two numbers: that share plus a process that has run nothing, or a process of stage 0.

We also measured what the Trainer takes to save, on eight ranks at stages 0, 2 and 3. The prediction is within 0.2 % (`tests/measured/2026-11-host.json`).
We have not measured the sum of a node over more than two ranks, or data loaders of real data sets.
"""

_STRANGERS_INTRO = """\
zerowiz has no formulas for these four architectures. If a name ends in a number of layers, we shortened the model. If torch and transformers are
installed, zerowiz [traces](concepts/trace.md) the micro-step. The other tables of this page count the trace. Without them, zerowiz counts the config
as that of a Llama. The last two columns show that guess, and no other table counts it.
"""

_TWO_WAYS_INTRO = """\
zerowiz predicts each of these runs in two ways: with the formulas of its family, and with a trace of the same micro-step. Each way counts tensors and
activations by itself. One ledger adds what DeepSpeed takes, so an error of that ledger is in both peaks.

The two peaks differ by at most {together}. For some families the limit is higher: {apart}. What forward keeps for backward differs by at most
{kept}. Many peaks do not show that part. The other tables of this page use the formulas.

The traces are in `tests/measured/traces.json`. The runs used transformers 5.17, and the traces use 5.23. We trace Gemma 2 and T5 with 5.17 instead:

- 5.23 runs Gemma 2 without sdpa, which takes 31 % more in `b4-019`.
- 5.23 lays out T5's position bias for a fused kernel, which takes 43 % less in `f2-003`.

We corrected the attention of the tracer with runs of T5 and Falcon that are in this table.
"""

_SLOWLY = """\
"{slow}" means that the allocator flushed, and that steady steps were over 5 % slower than in the same run without a cap. A run also counts as
this if its allocator flushed and there is no run to compare. The verdict about a run with a cap assumes a smaller card. It holds the cap, and the most
that any run took beside its tensors.
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
    """Mean and worst of each tool: all together, and by strategy or by family."""
    tools = [cell for tool in TOOLS for cell in (f"{tool}: runs", "mean", "worst")]
    lines = (
        [split, f"**{name}**" if kind == "all" else name]
        + [cell for tool in TOOLS for cell in _tool_cells(members, tool)]
        for (split, kind, name), members in sorted(group(records).items())
        if kind in ("all", by)
    )
    return _table(["", by, *tools], lines)


_MARKS = "<!-- accuracy -->\n", "<!-- /accuracy -->\n"


# How the README names what is compared.
_TOOLS_IN_SHORT = {
    "zerowiz": "zerowiz",
    "DeepSpeed": "DeepSpeed's estimator",
    "accelerate": "`accelerate estimate-memory`",
}


def headline(records: Sequence[Record]) -> str:
    """The runs that were set aside, for the README."""
    members = group(records)[Split.SET_ASIDE.value, "all", "all"]
    lines = ([_TOOLS_IN_SHORT[tool], *_tool_cells(members, tool)] for tool in TOOLS)
    return _table(["", "jobs", "mean error", "worst error"], lines)


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
        [record.id, record.model, record.strategy, str(record.gpus), record.split]
        + [_gigabytes(was), _gigabytes(said), _percent(said / was - 1)]
        for record in records
        if HOST in record.parts
        for said, was in (record.parts[HOST],)
    )
    header = ["run", "model", "strategy", "GPUs", "", "measured GB", "predicted GB", "error"]
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
    header = ["run", "architecture", "model", "strategy", "workload", "measured GB"]
    lines = (
        [r.id, str(r.family), r.model, r.strategy, r.workload, _gigabytes(r.measured_bytes)]
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
    header = ["run", "family", "model", "strategy", "workload", "measured GB"]
    lines = (
        [r.id, str(r.family), r.model, r.strategy, r.workload, _gigabytes(r.measured_bytes)]
        + [cell for said in (r.predicted_bytes, r.traced_bytes) for cell in _said(said, r)]
        + [_percent(difference.of_peak), _percent(difference.of_kept)]
        for r in records
        if (difference := difference_of(r)) is not None
    )
    ours = ["formulas GB", "error", "traced GB", "error"]
    return _table([*header, *ours, "traced beside formulas", "and what forward keeps"], lines)


def _two_ways_intro() -> str:
    apart = ", ".join(f"{100 * band:.1f} % for {name}" for name, band in APART.items())
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
        f"{len(died)} runs ran out of memory. zerowiz said of {sure} of them that they fit or are"
        f" tight.\n\n{len(lived)} runs did not run out of memory. zerowiz said of {refused}"
        f" ({100 * refused / len(lived):.1f} %) that they do not fit, and of {doubted}"
        f" ({100 * doubted / len(lived):.1f} %) that they are uncertain. Almost all of the uncertain"
        " runs had a cap near their peak.\n"
    )


def _wrong_section(records: Sequence[Record]) -> str:
    wrong = [record for record in records if record.misjudged]
    if not wrong:
        return "No verdict is wrong. What fits ran at full speed, and what does not fit ran out of memory.\n"
    return "These verdicts are wrong:\n\n" + _table(
        ["run", "model", "strategy", "said", "it"],
        ([r.id, r.model, r.strategy, f"`{r.verdict}`", str(r.outcome)] for r in wrong),
    )


def unpredicted(records: Sequence[Record]) -> str:
    """Every run that has no error, with the reason."""
    died = "it ran out of memory, so there is no peak. Its verdict counts above"
    lines = (
        [record.id, record.model, record.strategy, record.workload, record.unpredicted or died]
        for record in records
        if not record.compared and not record.capped
    )
    return _table(["run", "model", "strategy", "workload", "reason"], lines)


def _every_run(records: Sequence[Record]) -> str:
    return _table(
        [
            "run",
            "kind",
            "model",
            "strategy",
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
                r.strategy,
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
        ["", "and", "impossible because"],
        ([*_in_words(pair), why] for pair, why in IMPOSSIBLE.items()),
    )
    return f"No run had {len(missing)} of the {possible} possible pairs.\n\n{unknown}\n{never}"


def counts(records: Sequence[Record]) -> str:
    """How many runs there are, and where each went."""
    compared = sum(record.compared for record in records)
    capped = sum(record.capped for record in records)
    died = sum(r.measured_bytes is None and not r.unpredicted for r in records if not r.capped)
    return (
        f"There are {len(records)} runs:\n\n"
        f"- We compare {compared}.\n"
        f"- {capped} had a cap on torch's allocator. They repeat a workload, and count only for verdicts.\n"
        f"- {died} ran out of memory without a cap.\n"
        f"- {len(records) - compared - capped - died} have no prediction.\n"
    )


def render(records: Sequence[Record], versions: Mapping[str, str]) -> str:
    """The page."""
    sections = (
        _INTRO.format(looked_at=", ".join(sorted(LOOKED_AT))),
        _RIVALS.format(**versions),
        counts(records),
        "## By strategy\n",
        summary(records, "strategy"),
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
        drawn_section(),
        "## Verdicts\n",
        _SLOWLY.format(slow=Outcome.SLOW.value),
        verdicts(records),
        _wrong_section(records),
        "## Not compared\n",
        unpredicted(records),
        "## Every run\n",
        f"Each run is {Split.FITTED.value} or {Split.SET_ASIDE.value}. GB are 10^9 bytes. The last three columns are errors.\n",
        _every_run(records),
    )
    return "\n".join(sections)
