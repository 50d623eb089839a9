"""Find arguments that the class of an optimizer refuses."""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from zerowiz.core.dsconfig.lint.config import AUTO, Config, shown
from zerowiz.core.dsconfig.lint.finding import ConfigFinding
from zerowiz.core.dsconfig.lint.rules.keys import UNKNOWN_KEY
from zerowiz.core.dsconfig.lint.rules.offload import offloads
from zerowiz.core.rule import Severity

# Theory. runtime/engine.py, _configure_basic_optimizer (0.19.8; the same since 0.16.9) hands
# `optimizer.params` over as keyword arguments. Adam has rules of its own, in optimizer.py; mup's
# classes pass on what they do not know.


def _names(*words: str) -> frozenset[str]:
    return frozenset(" ".join(words).split())


# 0.18.9, which is the last to have them: runtime/fp16/onebit/adam.py, zoadam.py and lamb.py.
_ONE_BIT = _names(
    "lr bias_correction betas eps eps_inside_sqrt weight_decay max_grad_norm amsgrad cuda_aware",
    "comm_backend_name",
)
# ops/lamb/fused_lamb.py, FusedLamb.
_LAMB = _names(
    "lr bias_correction betas eps eps_inside_sqrt weight_decay max_grad_norm max_coeff min_coeff",
    "amsgrad",
)
# ops/lion/fused_lion.py, FusedLion.
_LION = _names("lr betas weight_decay set_grad_none")
# torch 2.13, optim/adagrad.py.
_ADAGRAD = _names(
    "lr lr_decay weight_decay initial_accumulator_value eps foreach maximize differentiable fused"
)
# By name in lower case; DeepSpeed ignores the case.
DEEPSPEED_ARGUMENTS: Mapping[str, frozenset[str]] = {
    "adagrad": _ADAGRAD,
    "lamb": _LAMB,
    "lion": _LION,
    "onebitadam": _ONE_BIT | _names("freeze_step"),
    "onebitlamb": _ONE_BIT
    | _LAMB
    | _names("freeze_step coeff_beta factor_max factor_min factor_threshold"),
    "zerooneadam": _ONE_BIT
    | _names("var_freeze_step var_update_scaler local_step_scaler local_step_clipper"),
}
# Under offload_optimizer: ops/adagrad/cpu_adagrad.py and ops/lion/cpu_lion.py.
CPU_ARGUMENTS: Mapping[str, frozenset[str]] = {
    "adagrad": _names("lr eps weight_decay amsgrad fp32_optimizer_states"),
    "lion": _names("lr betas weight_decay fp32_optimizer_states"),
}
# torch 2.13, optim, as they are spelled; torch has only ever added arguments.
TORCH_ARGUMENTS: Mapping[str, frozenset[str]] = {
    "ASGD": _names("lr lambd alpha t0 weight_decay foreach maximize differentiable capturable"),
    "Adadelta": _names("lr rho eps weight_decay foreach capturable maximize differentiable"),
    "Adafactor": _names("lr beta2_decay eps d weight_decay foreach maximize"),
    "Adamax": _names("lr betas eps weight_decay foreach maximize differentiable capturable"),
    "LBFGS": _names(
        "lr max_iter max_eval tolerance_grad tolerance_change history_size line_search_fn"
    ),
    "NAdam": _names(
        "lr betas eps weight_decay momentum_decay decoupled_weight_decay foreach maximize",
        "capturable differentiable",
    ),
    "RAdam": _names(
        "lr betas eps weight_decay decoupled_weight_decay foreach maximize capturable",
        "differentiable",
    ),
    "RMSprop": _names(
        "lr alpha eps weight_decay momentum centered capturable foreach maximize differentiable"
    ),
    "Rprop": _names("lr etas step_sizes capturable foreach maximize differentiable"),
    "SGD": _names(
        "lr momentum dampening weight_decay nesterov maximize foreach differentiable fused"
    ),
    "SparseAdam": _names("lr betas eps maximize"),
}
# runtime/engine.py, _muon_param_groups and get_optimizer_configuration: what it reads; it ignores
# the rest.
MUON_ARGUMENTS = _names(
    "lr muon_lr adam_lr momentum weight_decay ns_method betas eps adam_w_mode torch_adam foreach",
    "fp32_optimizer_states",
)
# It has a rule of its own.
_REFUSED_BEFORE = "max_grad_norm"
# What people write; Adam's own names are in most examples.
_OTHER_WORDS: Mapping[str, str] = {"learning_rate": "lr", "wd": "weight_decay", "epsilon": "eps"}


def check(config: Config) -> Iterator[ConfigFinding]:
    """Each argument that is not in the class's signature."""
    name = config.word("optimizer.type")
    if name is None or name == AUTO:
        return
    is_muon = name.lower() == "muon"
    known = MUON_ARGUMENTS if is_muon else _known(config, name)
    params = config.get("optimizer.params")
    if known is None or not isinstance(params, dict):
        return
    for word in params:
        entry = config.last.get(f"optimizer.params.{word}")
        if entry is None or word in known or word == _REFUSED_BEFORE:
            continue
        yield entry.found(
            UNKNOWN_KEY,
            f"`{shown(name)}` {'ignores the argument' if is_muon else 'has no argument'}"
            f" `{shown(word)}`",
            severity=Severity.WARNING if is_muon else config.if_built,
            fix=_fix(word, known),
        )


def _known(config: Config, name: str) -> frozenset[str] | None:
    """What the class takes; None where it has a rule of its own, or none is known."""
    on_gpu = DEEPSPEED_ARGUMENTS.get(name.lower())
    on_cpu = CPU_ARGUMENTS.get(name.lower())
    if on_gpu is None:
        return TORCH_ARGUMENTS.get(name)
    if on_cpu is None or offloads(config) is False:
        return on_gpu
    return on_cpu if offloads(config) else on_gpu | on_cpu


def _fix(word: str, known: frozenset[str]) -> str:
    near = get_close_matches(word, sorted(known), n=1)
    other = _OTHER_WORDS.get(word)
    meant = other if other in known else near[0] if near else None
    return f"write `{meant}`" if meant else "remove it"
