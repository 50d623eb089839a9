"""Show a decision: the flowchart, the table of strategies, the remedies, the launch."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TextIO

from zerowiz.core import shell
from zerowiz.core.command_words import flags
from zerowiz.core.decision.evaluate import (
    StrategyEstimate,
    Verdict,
    buffer_costs,
    seconds_on_slow_host,
)
from zerowiz.core.decision.flowchart import CLEARLY_FRACTION, Decision, Reason
from zerowiz.core.decision.job import Job
from zerowiz.core.launch.plan import LaunchPlan
from zerowiz.core.launch.provenance import PlannedFile, difference, is_plan_path
from zerowiz.core.launch.secrets import hide_secrets, quote_words
from zerowiz.core.memory.allocations import Phase
from zerowiz.core.model.types import ModelSource
from zerowiz.core.script.facts import ScriptFacts
from zerowiz.core.speed.costs import StepTime
from zerowiz.core.strategy_types import Offload, Strategy
from zerowiz.core.workload import OPTIMIZERS, SETTINGS, Accounting, Method, Workload
from zerowiz.errors import HandEditedError, LostEdit
from zerowiz.translation import N_, _, listing
from zerowiz.ui import pictures, sentences
from zerowiz.ui.text import (
    HANG,
    LABEL_COLUMNS,
    Colour,
    Line,
    Paragraph,
    cells,
    columns_of,
    draw,
    error,
    fold_command,
    gpus,
    labelled,
    on_device,
    paragraphs,
    plain,
    rate_of,
    rate_unit,
    say,
    seconds,
    show_rows,
    small,
    times_faster,
    what_next,
    whole_gib,
    wrap,
)

# Show the files that a run would write.


def files(planned: Sequence[PlannedFile], stream: TextIO) -> None:
    """Every path, and the config's text; that of the plan was shown before, in words."""
    for file in planned:
        stream.write(_("# writes {path}\n", path=file.path))
        if not (file.own_folder or is_plan_path(file.path)):
            stream.write(file.text if file.shown is None else file.shown)


# Show what would be lost in a file.

# What one looks through at a terminal; a config takes some 40 lines.
_MOST_LINES = 60
# One line may be a whole config without line ends.
_MOST_COLUMNS = 200

# As `diff --color` and git have it, by a line's first letters; the first that fits.
_COLOURS = (
    *(("---", Colour.LABEL), ("+++", Colour.LABEL), ("@@", Colour.DOUBT)),
    *(("-", Colour.BAD), ("+", Colour.GOOD)),
)


def hand_edited(refusal: HandEditedError, stream: TextIO) -> None:
    """What went wrong, what would be lost, what to do next."""
    error(refusal.message, (), stream)
    losses(refusal.losses, stream)
    what_next(refusal.hints, stream)


def losses(edits: Sequence[LostEdit], stream: TextIO) -> None:
    """What would be lost, file by file, each after an empty line."""
    for loss in edits:
        stream.write("\n")
        lines = difference(loss.path, loss.there, loss.wanted, loss.new_path)
        if isinstance(lines, str):
            say(stream, f"{loss.path}: {_(lines)}", hang=2)
            continue
        draw(tuple(_coloured(line) for line in lines[:_MOST_LINES]), stream)
        if len(lines) > _MOST_LINES:
            more = len(lines) - _MOST_LINES
            say(
                stream,
                _("... 1 more line of this diff")
                if more == 1
                else _("... {lines} more lines of this diff", lines=more),
            )


def _coloured(line: str) -> Line:
    """A line of a diff; the terminal folds it, so it can be copied."""
    colour = next((colour for start, colour in _COLOURS if line.startswith(start)), None)
    more = len(line) - _MOST_COLUMNS
    if more > 0:
        line = _("{line} ... {more} more characters", line=line[:_MOST_COLUMNS], more=more)
    return ((plain(line), colour),)


# Show where each setting of a plan comes from.


def origins(settings: Sequence[tuple[str, object, str]], stream: TextIO) -> None:
    """A table of the settings that have a value.

    Args:
        settings: Of each setting its name, its value, and what decides it.
        stream: Where to.
    """
    rows = [
        (flags()[name], _words(value), _(by)) for name, value, by in settings if value is not None
    ]
    show_rows(stream, ("setting", "value", "from"), rows)


def _words(value: object) -> str:
    if isinstance(value, bool):
        return _("yes") if value else _("no")
    return str(value)


def _settings(job: Job, *, names_optimizer: bool = True) -> Iterator[str]:
    """What is said of a step besides how much it trains on."""
    step = job.workload
    yield step.precision
    if names_optimizer:
        optimizer = _(OPTIMIZERS[step.optimizer].title)
        yield _("{optimizer} ({states} states)", optimizer=optimizer, states=job.state_format)
    else:
        yield _("{states} states", states=job.state_format)
    if step.method is not Method.FULL:
        yield step.method
    yield (
        _("gradient checkpointing")
        if step.gradient_checkpointing
        else _("no gradient checkpointing")
    )
    values = step.settings()
    for name in step.changed():
        shown = SETTINGS[name].shown
        if shown is not None and values[name] is not None:
            yield _(shown).format(value=values[name])


def _split(job: Job) -> str:
    """How much a step trains on: `micro-batch 4 x accumulation 8 x 4 GPUs = 128 sequences`."""
    step, ranks = job.workload, job.machine.world_size
    return _(
        "micro-batch {micro_batch} x accumulation {steps} x {ranks} = {sequences}",
        micro_batch=step.micro_batch,
        steps=step.accumulation_steps,
        ranks=_("1 GPU") if ranks == 1 else _ranks(step, ranks),
        sequences=_samples(job),
    )


def step(job: Job) -> str:
    """How much a step trains on, and how."""
    return listing([_split(job), *_settings(job)])


def _samples(job: Job) -> str:
    """What an optimizer step trains on: `128 sequences, 2048 tokens each`."""
    whole, model, tokens = job.global_batch, job.model.architecture, job.workload.sequence_tokens
    if model.has_unknown_patches:
        return _("1 image") if whole == 1 else _("{whole} images", whole=whole)
    if whole == 1:
        return _("1 sequence of {tokens} tokens", tokens=tokens)
    return (
        _("{whole} images, {tokens} tokens each", whole=whole, tokens=tokens)
        if model.reads_images
        else _("{whole} sequences, {tokens} tokens each", whole=whole, tokens=tokens)
    )


def _ranks(step: Workload, ranks: int) -> str:
    groups = step.replicas(ranks)
    if groups == ranks:
        return _("{count} GPUs", count=ranks)
    if groups == 1:
        return _("1 group of {shared} GPUs", shared=ranks)
    return _("{groups} groups of {shared} GPUs", groups=groups, shared=ranks // groups)


def script(facts: ScriptFacts, stream: TextIO) -> None:
    """What was read of the script, and where the reading ended."""
    words = sentences.convention(facts)
    path = facts.path
    if facts.starts is not None:
        path = _("{path}, which calls {starts}", path=path, starts=facts.starts)
    say(
        stream,
        labelled(_("Script"), _("{path}: {words}", path=path, words=words)),
        hang=LABEL_COLUMNS,
    )
    unseen(facts, stream)


def unseen(facts: ScriptFacts, stream: TextIO) -> None:
    """Where the reading of a script ended."""
    if facts.unfollowed:
        ends = sentences.places(facts, facts.unfollowed)
        say(
            stream,
            labelled(_("Unseen"), _("zerowiz did not follow {ends}", ends=ends)),
            hang=LABEL_COLUMNS,
        )


def _say(
    decision: Decision,
    stream: TextIO,
    *lines: str,
    hang: int = 0,
    in_parts: bool = True,
    marks: Mapping[str, Colour] | None = None,
) -> None:
    """Lines on a decision, whose GPUs are ranks where it is for the CPU."""
    on_devices = (on_device(line, decision.job.machine) for line in lines)
    say(stream, *on_devices, hang=hang, in_parts=in_parts, marks=marks)


def _fill(
    decision: Decision, stream: TextIO, *lines: str, marks: Mapping[str, Colour] | None = None
) -> None:
    """Lines that take as few of a screen as they can."""
    _say(decision, stream, *lines, hang=HANG, in_parts=False, marks=marks)


def _say_answers(decision: Decision, stream: TextIO) -> None:
    draw(pictures.flowchart(decision), stream)
    if remarks := sentences.remarks(decision):
        _say(decision, stream, "", *remarks, hang=LABEL_COLUMNS)
    chosen = decision.chosen
    name = _("none") if chosen is None else _(chosen.strategy.words)
    colour = Colour.BAD if chosen is None else pictures.VERDICT_COLOURS[chosen.verdict]
    marks = {rf"(?<=^{re.escape(labelled(_('Chosen'), ''))}){re.escape(name)}(?=:)": colour}
    words = labelled(_("Chosen"), f"{name}: {_why(decision)}")
    lines = (words, *_evaluation(decision))
    _say(decision, stream, "", *lines, hang=LABEL_COLUMNS, marks=marks)


def _why(decision: Decision) -> str:
    return "; ".join([*sentences.reasons(decision), *_faster(decision)])


def _faster(decision: Decision) -> Iterator[str]:
    """What of the fitting ones is faster, and how to have it, or why it does not count."""
    chosen = decision.chosen
    own = None if chosen is None else chosen.step_time
    if chosen and own and (other := decision.faster) is not None and other.step_time is not None:
        text = N_("{name} is {times} faster with less room: `$objective fastest` takes it")
        if other.device_bytes <= chosen.device_bytes:
            # The flowchart does not take it over a slow link.
            text = N_("{name} is {times} faster: `$objective fastest` takes it")
        name = _(other.strategy.short_words)
        if decision.of(other.strategy).step_time != other.step_time:
            # The table has it with the step that was chosen.
            name = _("{name} with another split of the batch", name=name)
        yield _(
            text,
            name=name,
            times=times_faster(own.expected_seconds, other.step_time.expected_seconds),
        )
        return
    timed = {
        e.step_time.expected_seconds: e
        for e in decision.allowed
        if e.verdict is Verdict.FITS and e.step_time is not None
    }
    least = min(timed, default=0.0)
    gain = own.expected_seconds / least - 1 if own and least else 0.0
    if 0 < gain < CLEARLY_FRACTION and not decision.constraints.pinned:
        yield _(
            "{name} would be {percent:.0f} % faster, and only {worth:.0f} % or more count",
            name=_(timed[least].strategy.short_words),
            percent=max(1, 100 * gain),
            worth=100 * CLEARLY_FRACTION,
        )


def _details(decision: Decision, chosen: StrategyEstimate) -> Iterator[tuple[str, str]]:
    """What else is known of the chosen strategy, by its label; less by the rule of thumb."""
    job, step = decision.job, decision.job.workload
    by_formula = job.accounting is not Accounting.TEXTBOOK
    if chosen.interval is not None:
        yield _("Peak"), sentences.interval(chosen.interval, job.model)
    if by_formula and chosen.step_time is not None:
        yield _("Time"), _time(job, chosen, chosen.step_time)
    if by_formula and step.trainer.row.runs:
        yield _("Trainer"), sentences.trainer(step, chosen)
    if chosen.vllm is not None:
        yield _("vLLM"), sentences.vllm(step, chosen.vllm)
    if by_formula:
        yield _("Host"), sentences.host(job, chosen)
    if by_formula and (costs := buffer_costs(job, chosen)):
        yield _("Buffers"), listing(f"{c.key} {c.value} ({small(c.size_bytes)})" for c in costs)


def _time(job: Job, chosen: StrategyEstimate, time: StepTime) -> str:
    """How long a step takes, and how far off that may be."""
    steps, slow = time.measured_steps, seconds_on_slow_host(job, chosen)
    scaled = _(", scaled by {steps} measured here", steps=steps) if time.calibrated else ""
    if slow is not None and slow >= time.expected_seconds * (1 + CLEARLY_FRACTION):
        scaled = _(", {slow} on a slow host", slow=seconds(slow))
    return _(
        "{expected_seconds} s per optimizer step expected, {low} to {high}{scaled}; "
        "{rate} {unit} on all GPUs together",
        expected_seconds=seconds(time.expected_seconds),
        low=seconds(time.low_seconds),
        high=seconds(time.high_seconds),
        scaled=scaled,
        rate=rate_of(time),
        unit=rate_unit([time]),
    )


def _evaluation(decision: Decision) -> tuple[str, ...]:
    """That an evaluation, and no step, is where a GPU holds most."""
    chosen = decision.chosen
    if chosen is None or chosen.estimate.peak_phase is not Phase.EVALUATE:
        return ()
    return (labelled("", sentences.evaluation(decision.job.workload, chosen)),)


def plan(
    decision: Decision,
    stream: TextIO,
    learning: str = "",
    assumed: Sequence[str] | None = None,
    by_default: Mapping[str, object] = {},
) -> None:
    """The plan on one screen: the job, the flowchart in a line, every strategy, and the choice.

    Args:
        decision: What was decided.
        stream: Where to.
        learning: How the model learns, in words; empty where nobody sees that.
        assumed: What nobody said, a clause each; None where that is said elsewhere.
        by_default: The settings that are defaults.
    """
    answers(decision, stream, learning, with_sources=assumed is None)
    paragraphs(besides(decision, assumed, by_default), stream, None)


def besides(
    decision: Decision,
    assumed: Sequence[str] | None = None,
    by_default: Mapping[str, object] = {},
) -> list[Paragraph]:
    """What is known of a choice besides, what says least of it first."""
    texts: list[Paragraph] = []
    if offloads := [e.host.peak_bytes for e in decision.evaluated if e.is_host_unknown]:
        words = _("unknown; offload needs {least} (`$host_memory`)", least=whole_gib(min(offloads)))
        texts.append((_("host memory: "), words, Colour.DIM))
    texts += [("", words, None) for words in sentences.remarks(decision)]
    if (chosen := decision.chosen) is not None:
        texts += [("", words.strip(), None) for words in _evaluation(decision)]
        if chosen.strategy.offload is not Offload.NONE or chosen.nearly_fills_host:
            texts.append((_("host: "), sentences.host(decision.job, chosen), None))
    if assumed is not None:
        clauses = listing(_assumed(decision.job, assumed, by_default))
        texts.append((_("assumed: "), clauses, Colour.DIM))
    machine = decision.job.machine
    return [(mark, on_device(words, machine), colour) for mark, words, colour in texts]


def _assumed(job: Job, clauses: Sequence[str], by_default: Mapping[str, object]) -> Iterator[str]:
    """What no person and no script sets: what names stand for, then options that say the same."""
    if job.model.source is ModelSource.SIZE:
        yield sentences.stands_for(job.model)
    named = {clause: re.fullmatch(r"[^,]* \(`\$(\w+)`\)", clause) for clause in clauses}
    yield from (clause for clause, option in named.items() if option is None)
    reasoned = " ".join(clause for clause, option in named.items() if option is None)
    said = [
        f"$no_{name}" if value is False else f"${name}" if value is True else f"${name} {value}"
        for name, value in by_default.items()
        if f"`${name}`" not in reasoned
    ]
    if said:
        yield f"`{' '.join(said)}`"
    yield _("other defaults: `$origins`")


def answers(
    decision: Decision,
    stream: TextIO,
    learning: str,
    *,
    with_sources: bool = False,
) -> None:
    """The job, the answers of the flowchart, every strategy, and the choice.

    Args:
        decision: What was decided.
        stream: Where to.
        learning: How the model learns, in words; empty where nobody sees that.
        with_sources: Whether `learning` has the optimizer, and what says each part of it.
    """
    job = decision.job
    settings = listing(_settings(job, names_optimizer=not (with_sources and learning)))
    said = [settings, *([learning] if learning else [])]
    named = sentences.machine_in_short(job.machine), sentences.model_in_short(job.model)
    parts = [*named, *(said if with_sources else [listing(said)]), _split(job)]
    # As many of them share a line as it has room for.
    lines = wrap([((part, None),) for part in parts], "; ", columns_of(stream))
    _fill(decision, stream, *("".join(words for words, _ in line) for line in lines))
    draw(pictures.flowchart_line(decision, columns_of(stream)), stream)
    strategies(decision, stream)
    chosen = decision.chosen
    if chosen is None:
        return
    name = _(chosen.strategy.words)
    marks = {rf"^{re.escape(name)}(?=:)": pictures.VERDICT_COLOURS[chosen.verdict]}
    _fill(decision, stream, f"{name}: {_why(decision)}", marks=marks)


def strategies(decision: Decision, stream: TextIO) -> None:
    """A row for each strategy; the chosen one is marked."""
    if decision.job.accounting is Accounting.TEXTBOOK:
        pictures.rule_of_thumb_table(decision, stream)
        return
    heading, rows = pictures.strategy_lines(decision, columns_of(stream) - HANG)
    marked = ("> " if decision.chosen in row.evaluated[:1] else "  " for row in rows)
    lines = (((mark, Colour.LABEL), *row.line) for mark, row in zip(marked, rows, strict=True))
    draw(((("  ", None), *heading), *lines), stream)


def whole_plan(decision: Decision, stream: TextIO, learning: str = "") -> None:
    """All that is known of a plan: the way through the flowchart, what each strategy holds."""
    job = decision.job
    where = _(
        "{machine} ({source}); {links}",
        machine=gpus(job.machine),
        source=sentences.source(job.machine),
        links=sentences.links(job.machine),
    )
    _say(
        decision,
        stream,
        labelled(_("Machine"), where),
        labelled(_("Model"), sentences.model(job.model)),
        labelled(_("Step"), step(job)),
        *([labelled(_("Learning"), learning)] if learning else []),
        "",
        hang=LABEL_COLUMNS,
    )
    _say_answers(decision, stream)
    stream.write("\n")
    if job.accounting is Accounting.TEXTBOOK:
        pictures.rule_of_thumb_table(decision, stream)
    else:
        pictures.table(decision, stream)
        stream.write("\n")
        draw(pictures.strategies(job, decision.evaluated, columns_of(stream)), stream)
    details = () if decision.chosen is None else _details(decision, decision.chosen)
    lines = [labelled(label, words) for label, words in details]
    _say(decision, stream, *([""] if lines else []), *lines, hang=LABEL_COLUMNS)


def launch(plan: LaunchPlan, stream: TextIO) -> None:
    """The names of the files, and the plan as a shell line that can be copied."""
    stream.writelines(_("# writes {path}\n", path=file.path) for file in plan.files)
    if plan.by_rank_program:
        heading = (
            _("worker/rank.py starts your script in each rank, keeps its output and status")
            if plan.supervised
            else _("worker/rank.py starts your script in each rank")
        )
        stream.write(f"# {heading}\n")
    env = [f"{name}={shell.quote(value)}" for name, value in plan.env.items()]
    unset = ["env", *(word for name in plan.unset for word in ("-u", name))] if plan.unset else []
    words = [*unset, *env, *quote_words(plan.argv)]
    stream.write(fold_command(words, stream) + "\n")


def next_command(
    words: Sequence[str], strategy: Strategy, stream: TextIO, host_memory: object = None
) -> None:
    """The command that goes on, as it can be pasted, and what it does.

    Args:
        words: The command.
        strategy: What it leads to.
        stream: Where to.
        host_memory: What it states of each node, which nobody has checked; None where nothing is.
    """
    name = _(strategy.short_words)
    label = _("next (config for {name})", name=name)
    if "launch" in words[:2]:
        label = _("next (starts {name})", name=name)
    if host_memory is not None:
        label = _("next, if each node has {amount} free", amount=host_memory)
    _commands({label: words}, stream)


def _commands(
    commands: Mapping[str, Sequence[str]], stream: TextIO, elsewhere: str | None = None
) -> None:
    """Commands that can be pasted, by what each is for; those without words are left out.

    Args:
        commands: Their words, by what each is for.
        stream: Where they are shown.
        elsewhere: The machine that they run on; None where it is this one.
    """
    stream.writelines(
        fold_command(quote_words(words), stream, before=f"{label}: ") + "\n"
        for label, words in commands.items()
        if words
    )
    if any(hide_secrets(words) != tuple(words) for words in commands.values()):
        say(stream, _("zerowiz keeps no secrets: set the variables of these lines first"))
    if elsewhere is not None:
        say(stream, _("Run it on {elsewhere}, in a copy of this folder", elsewhere=elsewhere))


def next_steps(
    words: Sequence[str],
    job_script: Sequence[str],
    plain: Sequence[str],
    elsewhere: str | None,
    stream: TextIO,
) -> None:
    """How to go on, how to have come here without being asked, and on which machine.

    Args:
        words: The command that goes on.
        job_script: The one that needs no wizard.
        plain: The one that needs no zerowiz; empty where there is none.
        elsewhere: The machine that they run on; None where it is this one.
        stream: Where they are shown.
    """
    then = _("next") if elsewhere is None else _("next, on the other machine")
    commands = {
        then: words,
        _("the same in a job script"): job_script,
        _("without zerowiz"): plain,
    }
    _commands(commands, stream, elsewhere)


def submit(job_file: str, elsewhere: str | None, decision: Decision, stream: TextIO) -> None:
    """How to start a job script, on which machine it runs, and whether it may run out of memory."""
    sentence = _("next: edit the lines marked FILL IN in {path}, and submit it", path=job_file)
    say(stream, sentence, hang=cells(_("next: ")))
    stream.write(f"  {shell.join(['sbatch', job_file])}\n")
    if elsewhere is not None:
        say(
            stream,
            _("It runs on {elsewhere}; submit it in a copy of this folder", elsewhere=elsewhere),
        )
    if Reason.UNCERTAIN in decision.reasons:
        say(
            stream,
            _(
                "The plan, in {precision}, is uncertain: the job may run out of memory",
                precision=decision.job.workload.precision,
            ),
        )


def config_alone(fields: Mapping[str, object], again: Sequence[str], stream: TextIO) -> None:
    """How a script gets a config that was written without one.

    Args:
        fields: Of TrainingArguments: the config, and what the plan rests on beside it.
        again: The command that writes it again.
        stream: Where it is shown.
    """
    say(
        stream,
        _(
            "next: give it to your Trainer, as TrainingArguments({fields}); once you have a script,"
            " `zerowiz launch SCRIPT` plans with what it sets",
            fields=", ".join(f"{name}={value!r}" for name, value in fields.items()),
        ),
        hang=cells(_("next: ")),
    )
    _commands({_("the same in a job script"): again}, stream)


def for_program(
    path: str,
    changes: Sequence[str],
    train: Sequence[str],
    again: Sequence[str],
    elsewhere: str | None,
    stream: TextIO,
) -> None:
    """What to set in the file of a program, and the command that trains with it.

    Args:
        path: The file.
        changes: The lines that it is to have.
        train: The command that trains.
        again: The command that plans the same again.
        elsewhere: The machine that it runs on, where that is not this one.
        stream: Where it is shown.
    """
    say(stream, _("next: set in {path}", path=path), *(f"  {line}" for line in changes), hang=4)
    say(stream, _("then train: ") + shell.join(train), hang=cells(_("then train: ")))
    _commands({_("the same in a job script"): again}, stream, elsewhere)
