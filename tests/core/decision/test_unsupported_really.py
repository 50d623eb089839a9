"""What DeepSpeed really makes of each row of core/decision/unsupported.py, and of what has no row."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from ranks.harness import ask_ranks

from zerowiz.core.decision.unsupported import COMBINATIONS, Effect

pytestmark = [pytest.mark.deepspeed, pytest.mark.thorough]

# A group of less than 1 MiB never leaves the host (swap_tensor/utils.py, MIN_AIO_BYTES).
SWAPPED_WIDTH = 256
HAS_AIO = Path("/usr/include/libaio.h").exists()
NEEDED: Mapping[str, bool] = {
    "": True,
    "libaio-dev": HAS_AIO,
    "libaio-dev and bitsandbytes": HAS_AIO and find_spec("bitsandbytes") is not None,
}


def needs(what: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not NEEDED[what], reason=f"needs {what}")


Config = Mapping[str, Any]
CPU: Config = {"device": "cpu"}
BF16: Config = {"bf16": {"enabled": True}}
HALF_STATES: Config = {
    "bf16": {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
}
AUTOCAST: Config = {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}
FP16_AUTOCAST: Config = {"torch_autocast": {"enabled": True, "dtype": "float16"}}
ADAMW: Config = {"optimizer": {"type": "AdamW", "params": {"lr": 0.01}}}
UNTESTED: Config = {"zero_allow_untested_optimizer": True}
UNFORCED: Config = {**UNTESTED, "zero_force_ds_cpu_optimizer": False}


def config(stage: int, *tops: Config, **zero: Any) -> Config:
    top = {key: value for each in tops or (BF16,) for key, value in each.items()}
    return {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": stage, "reduce_bucket_size": 100_000, **zero},
        **top,
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One training of a tiny model."""

    config: Config
    by: str = "deepspeed"
    optimizer: str | None = "adamw"
    """None leaves it to the config's own section."""
    ranks: int = 2
    width: int = 64
    arguments: Config = field(default_factory=dict)
    """Of the Trainer."""

    @property
    def name(self) -> str:
        """The run in one line: two equal runs are one."""
        return json.dumps(asdict(self), default=str)


@dataclass(frozen=True, kw_only=True, slots=True)
class Try:
    """A row, trained."""

    run: Run
    raises: str = ""
    """What the error says."""
    reference: Run | None = None
    """Of an ignored row: the same without it. Of one that differs: what was meant."""
    needs: str = ""
    """A key of NEEDED."""


NVME_FOLDER = "NVME_FOLDER"
NVME: Config = {"device": "nvme", "nvme_path": NVME_FOLDER}
ADAM_ON_THE_HOST = Run(config=config(2, BF16, ADAMW, offload_optimizer=CPU), optimizer=None)

TRIES: Mapping[str, tuple[Try, ...]] = {
    "nvme-below-stage-3": (
        Try(
            run=Run(config=config(2, BF16, ADAMW, offload_optimizer=NVME), optimizer=None),
            reference=ADAM_ON_THE_HOST,
        ),
    ),
    "nvme-without-offload": (
        Try(
            run=Run(config=config(3, offload_optimizer={**NVME, "device": "none"})),
            reference=Run(config=config(3)),
        ),
    ),
    "nvme-with-bf16-states": (
        Try(
            run=Run(
                config=config(3, HALF_STATES, ADAMW, offload_optimizer=NVME),
                optimizer=None,
                # In bf16 a parameter takes half the room.
                width=2 * SWAPPED_WIDTH,
            ),
            raises="AssertionError: ",
            needs="libaio-dev",
        ),
    ),
    "nvme-with-8-bit-adam": (
        Try(
            run=Run(
                config=config(3, BF16, UNFORCED, offload_optimizer=NVME),
                optimizer="adamw_8bit",
                width=SWAPPED_WIDTH,
            ),
            reference=Run(
                config=config(3, BF16, UNFORCED, offload_optimizer=CPU),
                optimizer="adamw_8bit",
                width=SWAPPED_WIDTH,
            ),
            needs="libaio-dev and bitsandbytes",
        ),
    ),
    "nvme-parameters-with-hpz": (
        Try(
            run=Run(
                config=config(
                    3,
                    BF16,
                    ADAMW,
                    offload_optimizer=NVME,
                    offload_param={**NVME, "buffer_size": 100_000},
                    zero_hpz_partition_size=2,
                ),
                optimizer=None,
            ),
            raises="RuntimeError: Expected one of cpu, cuda",
            needs="libaio-dev",
        ),
    ),
    "hpz-below-stage-3": (
        Try(
            run=Run(config=config(2, zero_hpz_partition_size=2)),
            reference=Run(config=config(2)),
        ),
    ),
    "quantized-weights-below-stage-3": (
        Try(
            run=Run(config=config(2, zero_quantized_weights=True)),
            reference=Run(config=config(2)),
        ),
    ),
    "quantized-weights-with-autocast": (
        Try(
            run=Run(config=config(3, AUTOCAST, zero_quantized_weights=True)),
            raises="AssertionError: Cannot enable both torch autocast and zero quantized weights",
        ),
    ),
    "quantized-weights-on-cpu": (
        Try(
            run=Run(config=config(3, zero_quantized_weights=True)),
            raises="ValueError: This op had not been implemented on CPU backend",
        ),
    ),
    "fp16-autocast-with-zero": tuple(
        Try(
            run=Run(config=config(stage, FP16_AUTOCAST, UNTESTED), optimizer="sgd"),
            reference=Run(config=config(0, FP16_AUTOCAST), optimizer="sgd"),
        )
        for stage in (1, 2, 3)
    ),
    "bf16-states-without-zero": (
        Try(
            run=Run(config=config(0, HALF_STATES)),
            raises="AssertionError: Bf16_master_weights_and_grads is only supported with ZeRO",
        ),
    ),
    "8-bit-adam-by-name": (
        Try(
            run=Run(
                config=config(
                    2, BF16, {"optimizer": {"type": "AdamW8bit", "params": {"lr": 0.01}}}
                ),
                optimizer=None,
            ),
            raises="AssertionError: AdamW8bit is not a supported DeepSpeed Optimizer",
        ),
    ),
    "bf16-states-with-offload-and-own-optimizer": (
        Try(
            run=Run(config=config(2, HALF_STATES, offload_optimizer=CPU)),
            raises="ZeRORuntimeException: You are using ZeRO-Offload with a client provided",
        ),
        Try(
            run=Run(config=config(3, HALF_STATES, UNFORCED, offload_optimizer=CPU)),
            raises="AssertionError: Master weights feature requires ZeRO-3 Offload with DeepSpeed",
        ),
        Try(
            run=Run(config=config(2, HALF_STATES, offload_optimizer=CPU), by="accelerate"),
            raises="AssertionError: bf16_optimizer_states with ZeRO-Offload requires DeepSpeedCPU",
        ),
    ),
}

# What has no row, and the same without it: both must train alike.
FINE: Mapping[str, tuple[Run, Run]] = {
    "hpZ on one node": (
        Run(config=config(3, zero_hpz_partition_size=2)),
        Run(config=config(3)),
    ),
    "hpZ with all offloaded": (
        Run(
            config=config(
                3,
                BF16,
                ADAMW,
                offload_optimizer=CPU,
                offload_param=CPU,
                zero_hpz_partition_size=2,
            ),
            optimizer=None,
            ranks=4,
        ),
        Run(config=config(3, BF16, ADAMW, offload_optimizer=CPU), optimizer=None, ranks=4),
    ),
    "bf16 autocast with offload": (
        Run(config=config(2, AUTOCAST, ADAMW, offload_optimizer=CPU), optimizer=None),
        Run(config=config(2, AUTOCAST)),
    ),
    "bf16 autocast without ZeRO": (
        Run(config=config(0, AUTOCAST)),
        Run(config=config(3, AUTOCAST)),
    ),
    "bf16 autocast with Accelerate": (
        Run(config=config(2, AUTOCAST), by="accelerate"),
        Run(config=config(2, AUTOCAST)),
    ),
    "bf16 autocast with the Trainer": (
        Run(config=config(2, AUTOCAST), by="hf"),
        Run(config=config(0, AUTOCAST), by="hf"),
    ),
    "bf16 states on the host, named by the config": (
        Run(config=config(2, HALF_STATES, ADAMW, offload_optimizer=CPU), optimizer=None),
        Run(config=config(2, HALF_STATES)),
    ),
    "SGD on the host": (
        Run(config=config(3, BF16, UNFORCED, offload_optimizer=CPU), optimizer="sgd"),
        Run(config=config(3, BF16, UNTESTED), optimizer="sgd"),
    ),
    "Adafactor on the host with Accelerate": (
        Run(
            config=config(2, BF16, UNFORCED, offload_optimizer=CPU),
            by="accelerate",
            optimizer="adafactor",
        ),
        Run(config=config(2, BF16), by="accelerate", optimizer="adafactor"),
    ),
    "SGD on the host with the Trainer": (
        Run(
            config=config(2, BF16, UNFORCED, offload_optimizer=CPU),
            by="hf",
            arguments={"bf16": True, "optim": "sgd"},
        ),
        Run(config=config(2), by="hf", arguments={"bf16": True, "optim": "sgd"}),
    ),
}
ON_NVME = Run(
    config=config(3, BF16, ADAMW, offload_optimizer=NVME), optimizer=None, width=SWAPPED_WIDTH
)
OFF_NVME = Run(
    config=config(3, BF16, ADAMW, offload_optimizer=CPU), optimizer=None, width=SWAPPED_WIDTH
)
SWAPPED_SGD = Run(config=config(2, offload_optimizer=CPU), by="accelerate", optimizer="sgd")
SWAPPED_ADAFACTOR = Run(
    config=config(2, offload_optimizer=CPU), by="accelerate", optimizer="adafactor"
)
EVERY_TRY = [
    pytest.param(name, tried, id=f"{name} {number}", marks=needs(tried.needs))
    for name, tries in TRIES.items()
    for number, tried in enumerate(tries)
]
OUTCOMES: Mapping[str, Effect] = {row.name: row.outcome for row in COMBINATIONS}


def of_outcome(outcome: Effect) -> pytest.MarkDecorator:
    tries = [one for one in EVERY_TRY if OUTCOMES[str(one.values[0])] is outcome]
    return pytest.mark.parametrize(("name", "tried"), tries)


def every_run() -> Iterator[Run]:
    for tries in TRIES.values():
        for tried in tries:
            if NEEDED[tried.needs]:
                yield tried.run
                yield tried.reference or tried.run
    for pair in FINE.values():
        yield from pair
    yield from (SWAPPED_SGD, SWAPPED_ADAFACTOR, OFF_NVME)
    if HAS_AIO:
        yield ON_NVME


@dataclass(frozen=True, kw_only=True, slots=True)
class Answers:
    """What became of every run, and what NVMe's folders hold."""

    heard: Mapping[str, Mapping[str, Any]]
    nvme: Path

    def of(self, run: Run) -> Mapping[str, Any]:
        return self.heard[run.name]

    def trained(self, run: Run) -> Mapping[str, Any]:
        answer = self.of(run)
        assert answer["raised"] is None, answer["raised"]
        return answer


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """Every run, once."""
    folder = tmp_path_factory.mktemp("broken")
    runs = {run.name: run for run in every_run()}
    nvme = folder / "nvme"
    nvme.mkdir()
    asked = json.dumps([asdict(run) for run in runs.values()], default=str)
    program = Path(__file__).with_name("train_ranks.py")
    answered = ask_ranks(program, json.loads(asked.replace(NVME_FOLDER, str(nvme))), folder)
    # The rank that failed first knows why; the others only miss it.
    heard = [next((each for each in ranks if each["raised"]), ranks[0]) for ranks in answered]
    return Answers(heard=dict(zip(runs, heard, strict=True)), nvme=nvme)


def test_every_row_is_trained() -> None:
    assert list(OUTCOMES) == list(TRIES)


@of_outcome(Effect.RAISES)
def test_a_row_that_raises_does(answers: Answers, name: str, tried: Try) -> None:
    assert str(answers.of(tried.run)["raised"]).startswith(tried.raises or name)


def test_accelerate_steps_with_adam_where_another_was_offloaded(answers: Answers) -> None:
    """With that of DeepSpeed for SGD; for Adafactor it fails."""
    assert answers.trained(SWAPPED_SGD)["steps_with"] == "DeepSpeedCPUAdam"
    assert "adam_update(): incompatible" in str(answers.of(SWAPPED_ADAFACTOR)["raised"])


@of_outcome(Effect.IGNORED)
def test_a_row_that_is_ignored_trains_as_without_it(
    answers: Answers, name: str, tried: Try
) -> None:
    assert tried.reference is not None, name
    assert answers.trained(tried.reference)["weights"] == answers.trained(tried.run)["weights"]


@of_outcome(Effect.DIFFERS)
def test_a_row_that_differs_learns_nothing(answers: Answers, name: str, tried: Try) -> None:
    assert tried.reference is not None, name
    meant, got = answers.trained(tried.reference)["losses"], answers.trained(tried.run)["losses"]
    assert got[0] - got[-1] < (meant[0] - meant[-1]) / 100


@pytest.mark.parametrize(("tried", "without"), FINE.values(), ids=FINE.keys())
def test_what_has_no_row_trains_as_it_should(answers: Answers, tried: Run, without: Run) -> None:
    # The kernels of the CPU and those of torch round differently.
    expected = answers.trained(without)
    assert answers.trained(tried)["losses"] == pytest.approx(expected["losses"], abs=0.01)
    assert answers.trained(tried)["weights"] == pytest.approx(expected["weights"], rel=0.001)


@needs("libaio-dev")
def test_states_on_nvme_train_as_those_in_host_memory(answers: Answers) -> None:
    assert answers.trained(OFF_NVME)["weights"] == answers.trained(ON_NVME)["weights"]


def test_below_stage_3_nothing_is_written_to_nvme(answers: Answers) -> None:
    written = {path.name for path in answers.nvme.iterdir()}
    assert written == ({"zero_stage_3"} if HAS_AIO else set())
