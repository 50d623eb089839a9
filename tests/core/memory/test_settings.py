"""No setting of a training step is there for show: each changes what a rank holds or sends."""

import pytest
from changed_settings import CHANGED
from measured.rows import read_model

from zerowiz.core.memory.allocations import Moment, Phase
from zerowiz.core.memory.buffers import DEEPSPEED_DEFAULTS
from zerowiz.core.memory.estimate import estimate
from zerowiz.core.memory.rank_sizes import rank_sizes
from zerowiz.core.strategies import STRATEGIES
from zerowiz.core.workload import SETTINGS, Workload

MODEL = read_model("llama-3.2-1b")


def peaks(workload: Workload) -> list[dict[Phase, Moment]]:
    """What two ranks hold at the peak of each phase, under each strategy."""
    ranks = [rank_sizes(MODEL, workload, 2, each, DEEPSPEED_DEFAULTS) for each in STRATEGIES]
    return [dict(estimate(MODEL, rank).peaks()) for rank in ranks]


def test_each_setting_has_a_step_that_changes_it_alone() -> None:
    assert [*SETTINGS] == [*CHANGED]
    for name, (before, after) in CHANGED.items():
        differ = [each for each in SETTINGS if getattr(before, each) != getattr(after, each)]
        assert [name] == differ


# When vLLM has its part, which is none of torch's, stands beside the peak (test_vllm.py).
_BESIDE = {"vllm_sleeps"}


@pytest.mark.parametrize("name", sorted(CHANGED.keys() - _BESIDE))
def test_a_setting_changes_what_a_rank_holds(name: str) -> None:
    before, after = CHANGED[name]
    assert peaks(before) != peaks(after)
