"""The part of docs/accuracy.md about the choice of settings."""

import statistics
from collections.abc import Iterable, Sequence
from functools import cache

from measured.rows import read_model
from regret.autotuner import autotuner_table
from regret.regret import Regret, regret_of, table
from regret.settings import settings_of
from regret.workloads import JOBS, Row, by_setting, read_host_speeds, read_regret_rows, seconds_of

_INTRO = """\
## Regret of the choice

With the batch and checkpointing open, `--objective fastest` chooses a setting. The regret says how much longer a step of it takes than a step of
the best setting that we measured. If we have not measured a choice, we do not give it a regret: we run it.

For each workload we measure at least six settings:

- every setting with a predicted time within 1.5 times of the best. We evaluate all of them, not only those that a search looks at.
- the settings of the rivals.
- three or more that a hash chooses.

The choice, the rivals, and what we predict not to fit run in processes of their own. Engines that take steps of several sizes run the others, under
the same cap. A workload is in the table once we have measured anything of it. The rows are in `tests/measured/regret`.
`python tests/regret/report.py` lists what is missing, and what it costs. *repeats* is the largest difference between two runs of one setting.

A plan for a machine depends on how fast its host runs Python. We take the mean of the readings beside the runs:

{hosts}

If a setting seemed better than the choice, both ran again, side by side (`--repeat`), until each had three runs. The median counts. Three choices
still had a regret of more than 10 %. They and what seemed better ran three more times, on another day (`--runs 6`). Two of them had more than 10 % again
when we counted more steps of each run. They ran twice more, beside other settings that seemed better.

The host often decides more than the setting does: other jobs run on it. One setting took {spread}.
The largest regret is less than the spread of its workload. One other is above 10 %: Qwen3-32B with LoRA on 2 x H100 took 1.36 s with DDP and 1.20 s with
ZeRO-1 (repeats differ by 15 %), which are predicted to be as fast; then zerowiz takes the simpler one. With the faster one, the mean would be 2.2 %.

It is no accident of a few runs: gemma-2-2b on one H100 took {choice} with the choice, `ddp-mb2`, and {better} with `ddp-mb4`. The second comes near
the limit of memory, and a plan takes 15 % longer for such steps. These did not take longer. But in 21 workloads that have steps of both kinds, those
near the limit took 7 % longer in the mean, and up to 45 %. So we left the 15 % as they are. With 10 %, the largest regret would be 8.4 %, and with 7 %
it would be 39 % (another choice, which then comes near the limit).

These rows do not test the constants alone, because two thirds of them fitted the constants (`tests/speed/fit.py`). Earlier figures were worse:

- On one H100, the first 8 choices had a mean of 25.1 % and a worst of 126.3 %. At that time, zerowiz also recomputed activations where it is not
  worth it. And the fastest could not come near the limit of memory.
- On the H200, we first measured 16 choices with the constants of the H100's rows. They had a mean of 6.7 % and a worst of 29.5 %. They assumed a
  host speed of 87 ns, which was not that of those hours.

The columns of the rivals say how many times as long as the best their step takes. The rivals are:

- the flowchart at micro-batch 1
- the Trainer's `ds_config_zero2.json` and `ds_config_zero3.json`, at its default of 8 sequences on a GPU, without checkpointing. The files come from
  transformers' tests. We use them as they are, with offload.

DeepSpeed's autotuner launches a job for each setting, so we did not run it. Its authors published what it found on 16 V100 (DeepSpeedExamples,
`training/autotuning/hf`). These are its four GPT-2 models, each with the same global batch. None of these times fitted a constant.

{autotuner}
The autotuner counts forward, backward and the optimizer step. A plan takes less than a second. With `gpt2-large`, the whole training ran 69.1 samples/s
with the settings of the autotuner, 56.8 with settings found by hand (ZeRO-1, micro-batch 2), and 27.9 without DeepSpeed.
"""


@cache
def make_regrets() -> list[Regret]:
    """Every job, with what was measured of it so far."""
    rows = by_setting(read_regret_rows())
    return [
        regret_of(job, settings_of(job, job.plan_input(read_model(job.model))), rows)
        for job in JOBS
    ]


def _hosts() -> str:
    """How fast the hosts ran Python, beside the runs."""
    read = {
        "the H100": read_host_speeds("H100", 1),
        "the H200": read_host_speeds("H200", 1),
        "two H100s": read_host_speeds("H100", 2),
    }
    return "\n".join(
        f"- {1e9 * statistics.mean(seconds):.0f} ns on the host of {gpus}"
        f" ({1e9 * min(seconds):.0f} to {1e9 * max(seconds):.0f} ns)"
        for gpus, seconds in read.items()
    )


def _widest_spread(runs: Iterable[Sequence[Row]]) -> str:
    """The times of the setting that was timed more than once, and differed most."""
    times = [each for rows in runs if (each := _seconds_of_each(rows))]
    return _in_words(max(times, key=lambda each: each[-1] / each[0]))


def _seconds_of_each(rows: Sequence[Row]) -> list[float]:
    return sorted(took for row in rows if (took := seconds_of(row)))


def _in_words(seconds: Sequence[float]) -> str:
    *first, last = (f"{each:.3g} s" for each in seconds)
    return f"{', '.join(first)} and {last}"


def _from_to(rows: Sequence[Row]) -> str:
    least, *_, most = _seconds_of_each(rows)
    return f"{least:.2f} to {most:.2f} s"


def regret_section(regrets: Sequence[Regret]) -> str:
    """Of the page."""
    runs = by_setting(read_regret_rows())
    intro = _INTRO.format(
        autotuner=autotuner_table(),
        hosts=_hosts(),
        spread=_widest_spread(runs.values()),
        choice=_from_to(runs["gemma-2b-80-h100/ddp-mb2"]),
        better=_from_to(runs["gemma-2b-80-h100/ddp-mb4"]),
    )
    return f"{intro}\n{table(regrets)}"
