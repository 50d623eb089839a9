"""What the libraries themselves say of the device maps that a preflight check finds."""

from collections.abc import Iterator

import pytest
from paths import TEMPLATES

# The libraries are loaded by the tests that ask them: collecting all tests needs none.


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config

    yield
    unset_hf_deepspeed_config()


@pytest.mark.parametrize("device_map", ["auto", "cpu", {"": "cpu"}])
def test_transformers_refuses_any_map_once_it_knows_of_stage_3(device_map: object) -> None:
    from transformers.integrations.accelerate import check_and_set_device_map
    from transformers.integrations.deepspeed import HfDeepSpeedConfig

    assert check_and_set_device_map(device_map) is not None
    known = HfDeepSpeedConfig({"zero_optimization": {"stage": 3}})
    with pytest.raises(ValueError, match="not compatible with passing a `device_map`"):
        check_and_set_device_map(device_map)
    assert known is not None  # it is remembered weakly
    below = HfDeepSpeedConfig({"zero_optimization": {"stage": 2}})
    assert check_and_set_device_map(device_map) is not None
    assert below is not None


@pytest.mark.parametrize(
    ("device_map", "refused"), [({"": 0}, False), ({"model": 0, "lm_head": 1}, True)]
)
def test_accelerate_refuses_a_model_on_several_devices(
    device_map: dict[str, int], *, refused: bool
) -> None:
    import torch
    from accelerate import Accelerator

    model = torch.nn.Linear(1, 1)
    model.hf_device_map = device_map
    assert refused is Accelerator.verify_device_map(None, model)


@pytest.mark.parametrize("gpus", [2, 3, 8])
def test_auto_shares_even_a_small_model_out_to_the_gpus_that_a_rank_sees(
    gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.integrations.accelerate import get_balanced_memory, infer_auto_device_map

    # There need not be any: it counts them, and is told what they hold.
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(TEMPLATES / "model"))
    room = dict.fromkeys(range(gpus), 80 * 2**30)
    balanced = get_balanced_memory(
        model, max_memory=room, no_split_module_classes=model._no_split_modules
    )
    shared = infer_auto_device_map(
        model, max_memory=balanced, no_split_module_classes=model._no_split_modules
    )
    assert len(set(shared.values())) > 1
