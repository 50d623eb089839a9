"""The part of docs/accuracy.md about the choice of settings."""

from collections.abc import Sequence

from measured.rows import read_model
from regret.regret import Regret, regret_of, table
from regret.rows import by_setting, read_regret_rows
from regret.settings import settings_of
from regret.workloads import JOBS

_INTRO = """\
## Regret of the choice

How much longer a step of the setting that `--objective fastest` takes, with the batch and checkpointing open, is
than one of the best setting that was measured. Measured are every setting that is predicted within 1.5 times of the best
(all of them are evaluated, not only those that a search looks at), the rivals', and three or more drawn by a hash: six at least.
An unmeasured choice has no regret: it is run. The choice, the rivals and what is predicted not to fit run in processes of
their own, the others by engines that take steps of several sizes, under the same cap. A workload stands in the table once
anything of it was measured. The rows are those of `tests/measured/regret`; `python tests/regret/report.py` lists
what is missing, and what it costs. *repeats* is the largest difference between two runs of one setting.

The first figures, on one H100 in November 2026, were worse: 8 choices had a mean of 25.1 % and a worst of 126.3 %, as three of
them recomputed activations where that was not worth it. Two thirds of these rows then fitted the constants, and the fastest may now
come near the limit of memory. So the table is no test of the new choices until those that were not measured are.
The worst one is a choice that is kept: the faster setting is predicted to leave 0.2 GiB of 40, which zerowiz does not call sure.

The rivals' columns say how many times as long as the best their step takes: the flowchart at micro-batch 1, and the
Trainer's `ds_config_zero2.json` and `ds_config_zero3.json` (of transformers' tests, with offload, as they stand) at its
default of 8 sequences a GPU, without checkpointing.
DeepSpeed's autotuner is not among them: it needs a launch for each setting. What it published is 69.1 samples/s for
GPT-2 large on 16 V100 (ZeRO-1, micro-batch 3) where tuning by hand found 56.8 (ZeRO-1, micro-batch 2) and the Trainer
without DeepSpeed 27.9 (DeepSpeedExamples, `autotuning/hf/gpt2-large`).
"""


def make_regrets() -> list[Regret]:
    """Every job, with what was measured of it so far."""
    rows = by_setting(read_regret_rows())
    return [
        regret_of(job, settings_of(job, job.plan_input(read_model(job.model))), rows)
        for job in JOBS
    ]


def regret_section(regrets: Sequence[Regret]) -> str:
    """Of the page."""
    return f"{_INTRO}\n{table(regrets)}"
