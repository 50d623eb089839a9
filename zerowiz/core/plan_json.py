"""The JSON of a plan, and what changed since a kept one: programs read it, so it is a contract."""

from collections.abc import Mapping, Sequence

from zerowiz.core.decision.evaluate import StrategyEstimate, buffer_costs
from zerowiz.core.decision.flowchart import Decision
from zerowiz.core.decision.job import Job
from zerowiz.core.decision.open_settings import Candidate, Limit, Search
from zerowiz.core.decision.uncertainty import Interval, settled_by
from zerowiz.core.machine.names import encode_machine
from zerowiz.core.memory.rank_sizes import trainable_params
from zerowiz.core.script.settings import AddedWords
from zerowiz.core.speed.costs import StepTime
from zerowiz.core.structs import encode

SCHEMA_VERSION = 1


def _workload(job: Job) -> dict[str, object]:
    """The settings in the order of their fields; the global batch stands after what it is of."""
    w, content = job.workload, dict[str, object]()
    for name, value in w.settings().items():
        content[name] = value
        if name == "accumulation_steps":
            content["global_batch"] = job.global_batch
    return content | {
        "optimizer_state_dtype": job.state_format,
        "accounting": job.accounting.value,
    }


def _interval(interval: Interval | None) -> dict[str, object] | None:
    """None for the rule of thumb."""
    if interval is None:
        return None
    return {
        "low_bytes": interval.low_bytes,
        "expected_bytes": interval.expected_bytes,
        "high_bytes": interval.high_bytes,
        "assumptions": [assumption.value for assumption in interval.assumptions],
        "heaviest_bytes": interval.heaviest_bytes,
        "uncounted": [part.value for part in interval.uncounted],
        "never_measured_together": [
            {name.value: value for name, value in pair} for pair in interval.never_together
        ],
    }


def _host(evaluated: StrategyEstimate) -> dict[str, object]:
    """Of all ranks of one node together."""
    host = evaluated.host
    return {
        "peak_bytes": host.peak_bytes,
        "budget_bytes": evaluated.host_budget_bytes,
        "peak_phase": host.peak_phase.value,
        "phases": {phase.value: size for phase, size in host.phase_bytes.items()},
        "lines": [
            {
                "part": allocation.kind.value,
                "phase": phase.value,
                "bytes": allocation.size_bytes,
                "formula": allocation.formula,
            }
            for phase, moment in host.phases.items()
            for allocation in moment
            if allocation.size_bytes
        ],
    }


def encode_step_time(step_time: StepTime | None) -> dict[str, object]:
    """Null where no time is predicted."""
    if step_time is None:
        names = ("step_seconds", "step_seconds_interval", "step_terms", "tokens_per_s")
        return dict.fromkeys(names)
    return {
        "step_seconds": step_time.expected_seconds,
        "step_seconds_interval": {
            "low_seconds": step_time.low_seconds,
            "expected_seconds": step_time.expected_seconds,
            "high_seconds": step_time.high_seconds,
            "calibrated": step_time.calibrated,
        },
        "step_terms": [
            {"part": term.kind.value, "seconds": term.exposed_seconds, "formula": term.formula}
            for term in step_time.terms
        ],
        "tokens_per_s": step_time.tokens_per_s,
    }


def _strategy(job: Job, evaluated: StrategyEstimate) -> dict[str, object]:
    estimate, doubted = evaluated.estimate, evaluated.doubted
    return {
        "name": evaluated.strategy.name,
        "stage": evaluated.strategy.stage,
        "offload": evaluated.strategy.offload.value,
        "verdict": evaluated.verdict.value,
        # None where the verdict is certain, or where the host lacks memory to save.
        "settled_by": None if doubted is None else settled_by(job, doubted).value,
        "ran_out": None if evaluated.ran_out is None else encode(evaluated.ran_out),
        "gpu": {
            "peak_bytes": estimate.peak_bytes,
            "interval": _interval(evaluated.interval),
            "device_bytes": evaluated.device_bytes,
            "high_device_bytes": evaluated.high_device_bytes,
            "vllm_bytes": None if evaluated.vllm is None else evaluated.vllm.share_bytes,
            "budget_bytes": evaluated.budget_bytes,
            "headroom_bytes": evaluated.headroom_bytes,
            "peak_phase": estimate.peak_phase.value,
            "phases": {phase.value: size for phase, size in estimate.phase_bytes().items()},
            # The rule of thumb knows one state alone.
            "first_iteration": (
                {phase.value: size for phase, size in estimate.first_iteration_bytes.items()}
                or None
            ),
            "lines": [
                {
                    "part": allocation.kind.value,
                    "phase": phase.value,
                    "bytes": allocation.size_bytes,
                    "formula": allocation.formula,
                }
                for phase, moment in estimate.peaks().items()
                for allocation in moment
            ],
        },
        "buffers": [
            {"key": cost.key.value, "value": cost.value, "bytes": cost.size_bytes}
            for cost in buffer_costs(job, evaluated)
        ],
        "host": _host(evaluated),
        **encode_step_time(evaluated.step_time),
        "wire_bytes_per_step": evaluated.wire_bytes_per_step,
    }


def _choice(candidate: Candidate) -> dict[str, object]:
    """A strategy with what was, or could be, chosen of the step."""
    step, evaluated = candidate.workload, candidate.evaluated
    time = encode_step_time(evaluated.step_time)
    return {
        "strategy": candidate.strategy.name,
        "offload": candidate.strategy.offload.value,
        "micro_batch": step.micro_batch,
        "accumulation_steps": step.accumulation_steps,
        "gradient_checkpointing": step.gradient_checkpointing,
        "attention": step.attention.value,
        "loss": step.loss.value,
        "verdict": evaluated.verdict.value,
        "headroom_bytes": evaluated.headroom_bytes,
        **{name: value for name, value in time.items() if name != "step_terms"},
    }


def _candidates(search: Search) -> dict[str, object]:
    """Among what was chosen: how many there were, and the best of them."""
    faster = search.clearly_faster
    return {
        "objective": search.objective.value,
        "count": search.count,
        "pareto": [_choice(candidate) for candidate in search.pareto],
        "clearly_faster": None if faster is None else _choice(faster),
    }


def encode_decision(
    decision: Decision,
    search: Search | None,
    *,
    version: str,
    reasons: Sequence[str],
    remedies: Sequence[Mapping[str, object]],
    settled: Sequence[AddedWords],
    config_path: str | None,
    command: Sequence[str] | None,
    env: Mapping[str, str] | None,
    limits: Sequence[Limit] | None = None,
) -> dict[str, object]:
    """One JSON object; bytes are ints, unknowns are null.

    Args:
        decision: What was decided.
        search: What it was chosen among; None for a further attempt of a job.
        version: Of zerowiz.
        reasons: Of the decision, in words.
        remedies: What would help, encoded.
        settled: The words that are added after the script.
        config_path: Where its config is.
        command: What starts the job, where that is known.
        env: The same, of its environment.
        limits: Of every strategy, where they were asked for.
    """
    chosen, job = decision.chosen, decision.job
    return {
        "schema_version": SCHEMA_VERSION,
        "zerowiz_version": version,
        "machine": encode_machine(job.machine),
        "model": {
            "name": job.model.name,
            "params": job.model.params,
            "trainable_params": trainable_params(job.model, job.workload),
            "source": job.model.source.value,
        },
        "workload": _workload(job),
        "flowchart": [
            {
                "question": answer.question.value,
                "answer": answer.answer,
                "strategy": answer.strategy,
                "need_bytes": answer.need_bytes,
                "have_bytes": answer.have_bytes,
            }
            for answer in decision.answers
        ],
        "strategies": [_strategy(job, evaluated) for evaluated in decision.evaluated],
        "chosen": None if chosen is None else chosen.strategy.name,
        "choice": (
            None if chosen is None else _choice(Candidate(workload=job.workload, evaluated=chosen))
        ),
        "candidates": None if search is None else _candidates(search),
        "limits": None
        if limits is None
        else [
            {
                "strategy": limit.strategy.name,
                "gradient_checkpointing": limit.gradient_checkpointing,
                "micro_batch": limit.micro_batch,
                "sequence_tokens": limit.sequence_tokens,
                "by_positions": limit.by_positions,
            }
            for limit in limits
        ],
        "reasons": list(reasons),
        "remedies": list(remedies),
        "settled": [
            {"setting": setting.name, "value": setting.value, "words": list(setting.words)}
            for setting in settled
        ],
        "config_path": config_path,
        "command": None if command is None else list(command),
        "env": None if env is None else dict(env),
    }
