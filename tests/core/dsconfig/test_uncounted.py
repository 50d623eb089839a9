"""What a plan does not count is named, whatever DeepSpeed calls it."""

import pytest

from zerowiz.core.dsconfig.schema import (
    Kind,
    Schema,
    SchemaKey,
    Unknown,
    may_hold_more,
    uncounted_keys,
)
from zerowiz.probe.package_data import read_ds_schema

SCHEMA = read_ds_schema("0.19.8")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"sequence_parallel_size": 2}, ["sequence_parallel_size"]),
        ({"expert_parallel": {"enabled": True, "autoep_size": 2}}, ["expert_parallel"]),
        ({"expert_parallel": {"enabled": False, "autoep_size": 2}}, []),
        ({"compile": {"deepcompile": True, "debug_log": False}}, ["compile.deepcompile"]),
        ({"tensor_parallel": {"autotp_size": 2}}, ["tensor_parallel.autotp_size"]),
        (
            {"zero_optimization": {"offload_optimizer": {"device": "cpu", "super_offload": True}}},
            ["zero_optimization.offload_optimizer.super_offload"],
        ),
        (
            {"zero_optimization": {"stage": 2, "zenflow": {}}},
            ["zero_optimization.zenflow"],
        ),
        ({"zero_optimization": {"cpu_offload": True}}, ["zero_optimization.cpu_offload"]),
        ({"gradient_clipping": 0.5, "wandb": {"enabled": True}, "_comment": "mine"}, []),
        ({"bf16": {"enabled": True}, "bfloat16": {"immediate_grad_update": False}}, []),
        ({"bfloat16": {"immediate_grad_update": True}}, ["bf16.immediate_grad_update"]),
        ({"zero_optimization": {"stage": "auto", "reduce_bucket_size": "auto"}}, []),
    ],
)
def test_a_key_that_no_line_counts_is_named(values: dict[str, object], expected: list[str]) -> None:
    assert expected == list(uncounted_keys(values, SCHEMA))


def test_a_key_that_nobody_has_thought_of_is_named() -> None:
    new = SchemaKey(path="teleport_weights", takes=tuple(Kind), default="false")
    root = SchemaKey(path="", takes=(Kind.OBJECT,), unknown=Unknown.IGNORED)
    schema = Schema(version="1.0", keys={"": root, new.path: new})
    assert ["teleport_weights"] == list(uncounted_keys({"teleport_weights": True}, schema))
    assert [] == list(uncounted_keys({"teleport_weights": False}, schema))


@pytest.mark.parametrize(
    ("key", "more"),
    [
        ("activation_checkpointing.cpu_checkpointing", False),
        ("communication_data_type", True),
        ("zero_optimization.offload_param.device", False),
    ],
)
def test_a_key_that_may_hold_more_is_told_from_one_that_never_does(key: str, more: bool) -> None:
    assert more is may_hold_more([key], {})


@pytest.mark.parametrize(("name", "more"), [("Lion", False), ("OneBitAdam", True)])
def test_an_optimizer_that_keeps_less_than_adamw_never_holds_more(name: str, more: bool) -> None:
    assert more is may_hold_more(["optimizer.type"], {"optimizer": {"type": name}})
