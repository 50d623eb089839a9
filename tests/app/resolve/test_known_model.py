"""A model by its name is planned as by its config.json."""

import pytest
from core.model.test_known import AS_PUBLISHED
from paths import MODELS

import zerowiz


# One of each kind of shape; each row is compared in `tests/core/model/test_known.py`.
@pytest.mark.parametrize(
    "folder", ["mistral-7b", "mixtral-8x7b", "qwen2.5-14b", "gemma-2-2b", "gpt2-medium"]
)
def test_a_known_name_is_planned_as_its_config_file(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    named, read = (
        zerowiz.plan("8xH200", model=model, sequence_tokens=1024, trace=False).to_dict()
        for model in (AS_PUBLISHED[folder], str(MODELS / folder))
    )
    assert named["strategies"] == read["strategies"]
