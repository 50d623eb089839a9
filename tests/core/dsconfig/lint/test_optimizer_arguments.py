"""Arguments of optimizers are those that DeepSpeed and torch take, read out of them."""

import json

import pytest

from zerowiz.core.findings import Severity
from zerowiz.core.lint.config import Context
from zerowiz.core.lint.linter import lint
from zerowiz.core.workload import Integration
from zerowiz.probe.package_data import read_ds_schema


def found(
    name: str, params: dict[str, object], offload: str | None = None, version: str | None = None
) -> list[tuple[str, str | None, Severity]]:
    zero = {"stage": 2, "offload_optimizer": {"device": offload}} if offload else {"stage": 0}
    config = {
        "train_batch_size": 8,
        "bf16": {"enabled": True},
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "optimizer": {"type": name, "params": params},
    }
    findings = lint(
        json.dumps(config), read_ds_schema(version), Context(integration=Integration.HF)
    )
    return [(each.key, each.fix, each.severity) for each in findings if each.rule.code == "ZW101"]


@pytest.mark.parametrize(
    ("name", "word", "fix"),
    [
        ("SGD", "betas", "remove it"),
        ("SGD", "weigth_decay", "write `weight_decay`"),
        ("Lamb", "learning_rate", "write `lr`"),
        ("LION", "eps", "remove it"),
        ("adagrad", "epsilon", "write `eps`"),
        ("RMSprop", "params", "remove it"),
        ("Lion", "torch_adam", "remove it"),
    ],
)
def test_an_argument_that_is_not_there_is_an_error(name: str, word: str, fix: str) -> None:
    ((key, said, severity),) = found(name, {"lr": 0.1, word: 1})
    assert (f"optimizer.params.{word}", Severity.ERROR) == (key, severity)
    assert fix == said


def test_the_cpu_has_classes_of_its_own() -> None:
    assert [] == found("Lion", {"set_grad_none": True})
    assert [] != found("Lion", {"set_grad_none": True}, offload="cpu")
    assert [] == found("Adagrad", {"amsgrad": False}, offload="cpu")
    assert [] != found("Adagrad", {"amsgrad": False})


def test_as_long_as_nobody_knows_where_it_steps_either_class_counts() -> None:
    assert [] == found(
        "Lion", dict.fromkeys(("set_grad_none", "fp32_optimizer_states"), True), "auto"
    )


def test_adam_is_another_class_on_the_gpu_on_the_cpu_and_by_torch() -> None:
    assert [] == found("AdamW", {"set_grad_none": True})
    assert [] != found("AdamW", {"set_grad_none": True}, offload="cpu")
    assert [] != found("AdamW", {"maximize": True})
    assert [] == found("AdamW", {"maximize": True, "torch_adam": True})


def test_what_muon_does_not_look_at_is_a_warning() -> None:
    assert ["optimizer.params.nesterov"] == [each[0] for each in found("Muon", {"nesterov": True})]
    assert [Severity.WARNING] == [each[2] for each in found("muon", {"ns_steps": 5})]
    assert [] == found("Muon", dict.fromkeys(("lr", "muon_lr", "adam_lr", "momentum"), 0.1))


def test_the_one_bit_optimizers_have_their_own_arguments() -> None:
    known: dict[str, object] = {"freeze_step": 9, "cuda_aware": False, "comm_backend_name": "nccl"}
    assert [] == found("OneBitAdam", known, version="0.18.9")
    assert 1 == len(found("ZeroOneAdam", {"freeze_step": 9}, version="0.18.9"))


def test_of_a_class_that_nobody_knows_nothing_is_said() -> None:
    assert [] == found("MuSGD", {"anything": 1})
    assert [] == found("auto", {"anything": 1})


@pytest.mark.parametrize(("word", "rises"), [("lr", True), ("weight_decay", False), ("eps", False)])
def test_a_loss_that_rises_is_said_of_a_learning_rate_alone(word: str, rises: bool) -> None:
    """DeepSpeed 0.19.8 trains on with a negative `eps` or `weight_decay`, and the loss falls."""
    config = {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {word: -0.1}}}
    context = Context(integration=Integration.DEEPSPEED)
    [finding] = lint(json.dumps(config), read_ds_schema(), context)
    assert ("ZW203", rises) == (finding.rule.code, "the loss rises" in (finding.because or ""))


NOT_BUILT = """{"train_batch_size": 8,
"optimizer": {"type": "AdamW", "params": {"learning_rate": 1e-5}},
"scheduler": {"type": "WarmupLRR", "params": {"warmup_min_lr": "Auto"}}}
"""


@pytest.mark.parametrize(
    ("context", "optimizer", "scheduler"),
    [
        (Context(), "an error unless", "an error unless"),
        (Context(integration=Integration.DEEPSPEED), None, None),
        (
            Context(integration=Integration.DEEPSPEED, passed=frozenset({"optimizer"})),
            "DeepSpeed ignores it",
            None,
        ),
        (
            Context(integration=Integration.DEEPSPEED, passed=frozenset({"lr_scheduler"})),
            None,
            "DeepSpeed ignores it",
        ),
        (Context(integration=Integration.HF, passed=frozenset({"optimizer"})), None, None),
        (Context(integration=Integration.ACCELERATE), None, None),
    ],
)
def test_what_deepspeed_may_not_build_is_a_warning_that_says_who_fails(
    context: Context, optimizer: str | None, scheduler: str | None
) -> None:
    found = [each for each in lint(NOT_BUILT, read_ds_schema(), context) if each.line > 1]
    assert {"optimizer.params.learning_rate", "scheduler.type"} <= {each.key for each in found}
    for finding in found:
        argument, words = (
            ("optimizer", optimizer)
            if finding.key.startswith("optimizer")
            else ("lr_scheduler", scheduler)
        )
        severity = Severity.ERROR if words is None else Severity.WARNING
        assert (finding.key, severity) == (finding.key, finding.severity)
        # What fails only if DeepSpeed builds it is no reason where it does not.
        said = finding.why if words == "DeepSpeed ignores it" else finding.message
        if words is not None:
            assert words in said
            assert f"the script passes its own `{argument}`" in said


def test_params_that_are_no_object_fail_whatever_the_script_passes() -> None:
    text = '{"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": 1}}'
    (found,) = lint(text, read_ds_schema(), Context(passed=frozenset({"optimizer"})))
    assert ("optimizer.params", Severity.ERROR) == (found.key, found.severity)
