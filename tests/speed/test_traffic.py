"""What small kernels move is as much as the step-time model says, in traces of real models."""

import pytest
from speed.traffic import Traffic, count_traffic

from zerowiz.core.speed.step_time import AT_ENDS, IN_BLOCKS, IN_FUSED_BLOCKS, Moved

# One mean stands for all families of a kind; between them the traces differ by so much.
_NEAR = 0.30


@pytest.fixture(scope="module", params=["llama-3.2-1b", "phi-3-mini", "pythia-1.4b", "opt-1.3b"])
def case(request: pytest.FixtureRequest) -> tuple[str, Traffic]:
    return request.param, count_traffic(request.param)


def test_the_traffic_of_a_block_is_that_of_its_kind(case: tuple[str, Traffic]) -> None:
    name, traffic = case
    norms_are_fused = name in {"pythia-1.4b", "opt-1.3b"}
    said = IN_FUSED_BLOCKS if norms_are_fused else IN_BLOCKS
    assert_near(traffic.blocks, said)
    # The other kind would be further off.
    other = IN_BLOCKS if norms_are_fused else IN_FUSED_BLOCKS
    assert abs(traffic.blocks.backward - said.backward) < abs(
        traffic.blocks.backward - other.backward
    )


def test_the_traffic_at_the_ends_is_that_of_all(case: tuple[str, Traffic]) -> None:
    assert_near(case[1].ends, AT_ENDS)


def assert_near(found: Moved, said: Moved) -> None:
    assert tuple(found) == pytest.approx(tuple(said), rel=_NEAR)
