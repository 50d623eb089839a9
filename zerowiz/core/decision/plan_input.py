"""Everything that the strategies of a job are evaluated with."""

from enum import StrEnum

from msgspec import Struct

from zerowiz.core.decision.measured_together import Pair
from zerowiz.core.decision.oom_history import RanOut, job_key
from zerowiz.core.machine.types import Machine
from zerowiz.core.memory.buffers import DEEPSPEED_DEFAULTS, Buffers, fit_buffers
from zerowiz.core.memory.forward.traced import Traced
from zerowiz.core.memory.host_phases import HostUse
from zerowiz.core.memory.nvme import fit_sub_group
from zerowiz.core.memory.rank_sizes import trainable_params
from zerowiz.core.model.families import FAMILIES
from zerowiz.core.model.types import Model
from zerowiz.core.speed.calibration import Calibration
from zerowiz.core.speed.rates import GpuRates
from zerowiz.core.speed.step_time import why_untimed
from zerowiz.core.strategy import Offload, Strategy
from zerowiz.core.values import replace, shows
from zerowiz.core.workload.choices import Accounting, Loss, Method, StateDtype
from zerowiz.core.workload.workload import Workload
from zerowiz.errors import UsageError
from zerowiz.words import _


class Uncounted(StrEnum):
    """What a job holds besides, which no formula counts; other programs read these names."""

    WRAPPED_MODEL = "wrapped_model_alone"
    """The towers of a multimodal model whose language model alone is counted."""
    TRAINER_OF_ANOTHER_MODEL = "trainer_of_another_model"
    """What a trainer of preferences or rewards adds to a model that is no known causal one."""
    PPO_ROLLOUT = "ppo_rollout"
    """The logits of all completions that PPO keeps while it samples them."""
    TRAINER = "trainer"
    """What the script's trainer holds that the trainer it is counted as does not."""
    OWN_LOSS = "own_loss"
    """A loss that the script computes itself."""
    JUDGE = "reward_model"
    """A model that judges what is generated."""
    ENGINE = "generation_engine"
    """What generates, where it is not seen whether it runs in the same GPUs."""
    VLLM = "vllm_in_the_same_gpus"
    """vLLM's part of each GPU, which is counted by its fraction and was never measured."""
    OPTIMIZER_ON_GPU = "optimizer_states_of_parameter_offload"
    """What the optimizer keeps on the GPU where a config offloads the parameters alone."""
    STAGE1_GRADIENTS = "gradients_of_stage_1_offload"
    """All gradients, which stage 1 with offload keeps and ZeRO-2 with offload does not."""
    NVME = "nvme_of_config"
    """The host buffers of a config that offloads to NVMe, by its own counts and sizes."""
    CONFIG = "keys_of_config"
    """What other keys of a person's config change."""
    ADAPTERS = "adapters_of_script"
    """What an argument of LoraConfig, or weights that train beside it, add to the adapters."""
    PLAIN_LAYERS = "layers_not_checkpointed"
    """The activations of the layers that `every_n_layers` leaves as they are."""


@shows("machine", "model", "workload.micro_batch", "workload.sequence_tokens")
class PlanInput(Struct, frozen=True, kw_only=True):
    """Everything that a strategy is evaluated with."""

    machine: Machine
    model: Model
    workload: Workload
    accounting: Accounting = Accounting.REAL
    state_dtype: StateDtype | None = None
    """What the user set; None leaves each accounting its own default."""
    budget_bytes: int | None = None
    """Of each GPU; None takes what is free."""
    own_buffers: Buffers | None = None
    """Of the user's own config; None fits them to the model."""
    traced: Traced | None = None
    """A trace of the model, whose activations then replace the analytic ones."""
    expandable_segments: bool = True
    """Whether torch's allocator grows its segments, as the launch asks it to."""
    nvme_path: str | None = None
    """The folder that states are offloaded to; None keeps them in host memory."""
    hpz: bool | None = None
    """Whether each node keeps a copy of the weights (stage 3); None decides by the network."""
    quantized_weights: bool = False
    """Whether stage 3 gathers the weights in int8."""
    host_use: HostUse = HostUse()
    """What the script does with the memory of its nodes, or is assumed to do."""
    ran_out: tuple[RanOut, ...] = ()
    """The runs that ran out of memory here before."""
    uncounted: tuple[Uncounted, ...] = ()
    """What the script, or the person's own config, was seen to hold besides."""
    measured_pairs: frozenset[Pair] = frozenset()
    """The settings that measured runs had together; empty asks nothing of them."""
    rates: GpuRates | None = None
    """Of each GPU; None where no table knows it, and no time is predicted."""
    calibration: Calibration | None = None
    """What was learned from steps that were measured on this machine."""

    def __post_init__(self) -> None:
        """Refuse what the model or the accounting cannot do."""
        refuse_length(self.model, self.workload.sequence_tokens)
        by_rule = self.accounting is Accounting.TEXTBOOK
        if by_rule and self.workload.method is not Method.FULL:
            raise UsageError(
                _(
                    "`$accounting textbook` has no rule for `$method {method}`",
                    method=self.workload.method,
                ),
                _("remove `$accounting textbook` to count what DeepSpeed allocates"),
            )
        self._refuse_uncounted_step()

    def _refuse_uncounted_step(self) -> None:
        """Some losses and packed rows are counted for some models alone."""
        a, w, counted = self.model.architecture, self.workload, self.is_counted_decoder
        family = FAMILIES.get(a.family)
        asked = {
            f"$loss {w.loss}": (w.loss is not Loss.PLAIN, counted),
            "$loss liger": (w.loss is Loss.LIGER, family is not None and family.liger),
            "$packing": (w.packing, counted and family is not None and family.packable),
        }
        for words, (said, known) in asked.items():
            if said and not known:
                raise UsageError(
                    _(
                        "`{words}` cannot be predicted for `{model}` ({family})",
                        words=words,
                        model=self.model.name,
                        family=a.family,
                    ),
                    _("remove `{words}` to get an upper bound", words=words),
                )

    @property
    def own_trace(self) -> Traced | None:
        """The trace, unless it is of another model: a remedy may have put one in its place."""
        if self.traced is not None and self.traced.params == self.model.params:
            return self.traced
        return None

    @property
    def is_counted_decoder(self) -> bool:
        """Whether formulas, and no trace, count a causal model."""
        family = FAMILIES.get(self.model.architecture.family)
        return family is not None and family.causal and self.own_trace is None

    @property
    def counted_workload(self) -> Workload:
        """The step with the optimizer states that DeepSpeed keeps for it."""
        dtype = self.state_dtype or StateDtype.FP32
        return replace(self.workload, optimizer_state_dtype=dtype)

    @property
    def state_format(self) -> str:
        """The number format that the optimizer states are counted in."""
        if self.state_dtype is not None:
            return self.state_dtype.value
        by_rule = self.accounting is Accounting.TEXTBOOK
        return self.workload.precision.value if by_rule else StateDtype.FP32.value

    def buffers(self, strategy: Strategy) -> tuple[Buffers, ...]:
        """The communication buffers that the config may have, the fastest first."""
        if self.own_buffers is not None:
            return (self.own_buffers,)
        trainable = trainable_params(self.model, self.workload)
        fitted = fit_buffers(self.model, trainable, strategy)
        moved = strategy.shards_weights and strategy.offload is not Offload.NONE
        if self.nvme_path is not None and moved:
            group = fit_sub_group(DEEPSPEED_DEFAULTS.sub_group_size, self.machine.world_size)
            fitted = tuple(replace(b, on_nvme=True, sub_group_size=group) for b in fitted)
        ranks_of_a_node = len(self.machine.gpus)
        if ranks_of_a_node == 1 or not self._may_copy(strategy):
            return fitted
        copied = tuple(replace(each, hpz_partition_size=ranks_of_a_node) for each in fitted)
        return copied if self.hpz else (*copied, *fitted)

    def _may_copy(self, strategy: Strategy) -> bool:
        """Whether each node may keep a copy of the weights; by default, between slow nodes."""
        if not strategy.shards_weights or self.hpz is False:
            return False
        apart = self.machine.nodes > 1 and not self.machine.network.is_fast
        return bool(self.hpz) or (apart and strategy.offload is Offload.NONE)

    @property
    def why_untimed(self) -> str:
        """Why no time of a step is known, where none is."""
        return why_untimed(self.model, self.workload, self.machine, self.rates)

    @property
    def key(self) -> str:
        """A hash of everything that decides what a rank holds, except the size of its step."""
        return job_key(self.machine, self.model, self.workload, self.state_dtype)

    @property
    def gpu_budget_bytes(self) -> int | None:
        """What a rank may take on its device; never more than is free."""
        free_bytes = self.machine.free_bytes
        if self.budget_bytes is None or free_bytes is None:
            return free_bytes if self.budget_bytes is None else self.budget_bytes
        return min(self.budget_bytes, free_bytes)


def longest_tokens(model: Model) -> int | None:
    """The longest sequence that the model has learned positions for; None where any will do."""
    family = FAMILIES.get(model.architecture.family)
    is_bound = family is not None and family.learned_positions
    return model.architecture.positions if is_bound else None


def refuse_length(model: Model, tokens: int) -> None:
    """See that the model has positions for a sequence.

    Raises:
        UsageError: It has fewer.
    """
    positions = longest_tokens(model)
    if positions is not None and tokens > positions:
        raise UsageError(
            _(
                "`$sequence_tokens {tokens}`: `{model}` has only {positions} learned positions",
                tokens=tokens,
                model=model.name,
                positions=positions,
            ),
            _("use at most `$sequence_tokens {positions}`", positions=positions),
        )
