"""The recipes of a member of an enum: each has one row of what is known of it."""

import json

import pytest
from recipes.copying import Copy, read_recipes

WORKLOAD = "zerowiz/core/workload.py"
RANKS = "zerowiz/worker/models.py"
PLAN = ("plan", "--machine", "4xH200", "--model", "llama-3.2-1b", "--stage", "0", "--json")


def backward(copied: Copy, *words: str) -> dict[str, int]:
    """What a plan says that DDP holds in backward, by what it is for."""
    done = copied.zerowiz(*PLAN, *words)
    assert 0 == done.returncode, done.stderr
    (ddp,) = (each for each in json.loads(done.stdout)["strategies"] if each["name"] == "ddp")
    lines = [line for line in ddp["gpu"]["lines"] if line["phase"] == "backward"]
    return {line["part"]: line["bytes"] for line in lines}


# The recipe `a trainer`: ORPO, whose loss takes pairs and no reference.

TRAINER_ROW = """\
    Trainer.ORPO: TrainerRow(
        runs=_PAIRS,
        in_pairs=True,
        head=Head.LOG_PROBABILITIES,
        generates=False,
        averages=True,
        compares=False,
        reference=Reference.NONE,
        in_groups=False,
        takes_vllm=False,
        has_value_model=False,
        measured=False,
    ),
"""
CLASSES = "zerowiz/core/script/trainers.py"
CLASS = '    "ORPOTrainer": TrainerClass(trainer=Trainer.DPO, refers=False, uncounted=_OWN_LOSS),\n'


@pytest.mark.slow
def test_a_trainer_touches_its_row_and_its_class(copied: Copy) -> None:
    recipe = read_recipes()["a trainer"]

    copied.insert(WORKLOAD, '    ORPO = "orpo"\n', before='    REWARD = "reward"\n')
    assert set(recipe.tests) == copied.unfinished(recipe)

    copied.insert(WORKLOAD, TRAINER_ROW, before="    Trainer.REWARD: TrainerRow(")
    copied.edit(CLASSES, CLASS, CLASS.replace("Trainer.DPO, refers=False", "Trainer.ORPO"))
    pairs = backward(copied, "--trainer", "dpo", "--reference", "none")
    assert pairs == backward(copied, "--trainer", "orpo")
    assert set() == copied.failed(*recipe.tests)
    copied.check_files(recipe)


# The recipe `an attention kernel`: torch's flex attention.

ATTENTION_ROW = """\
    Attention.FLEX: AttentionRow(
        names=("flex_attention",),
        detail="that of torch, compiled",
        keeps_scores=False,
        takes_masks=False,
    ),
"""
TRACE = "zerowiz/probe/model/trace.py"


@pytest.mark.slow
def test_an_attention_kernel_touches_its_row_its_trace_and_its_ranks(copied: Copy) -> None:
    recipe = read_recipes()["an attention kernel"]

    copied.insert(WORKLOAD, '    FLEX = "flex"\n', before='    EAGER = "eager"\n')
    assert set(recipe.tests) == copied.unfinished(recipe)

    copied.insert(WORKLOAD, ATTENTION_ROW, before="    Attention.EAGER: AttentionRow(")
    copied.insert(
        TRACE, '    Attention.FLEX: (_FLASH, "sdpa", "eager"),\n', before="    Attention.EAGER: ("
    )
    copied.edit(RANKS, '"eager": "eager"}', '"flex": "flex_attention", "eager": "eager"}')
    fused = backward(copied, "--attention", "flash")
    assert fused == backward(copied, "--attention", "flex")
    assert set() == copied.failed(*recipe.tests)
    copied.check_files(recipe)


# The recipe `a loss`: Apple's cut cross-entropy, which never holds the logits.

LOSSES = "zerowiz/core/memory/losses.py"
FORMULA = """\
def _cut(a: Architecture, workload: Workload, tokens: int) -> LossBytes:
    # cut_cross_entropy/cce.py: of a token its log-sum-exp; then both gradients.
    hidden_bytes = workload.precision.size_bytes * a.hidden_size * tokens
    return LossBytes(
        kept_bytes=FP32_BYTES * tokens,
        kept_formula="4 t + ",
        forward_bytes=0,
        backward_bytes=hidden_bytes + _head_gradient_bytes(a, workload),
    )


"""
LOSS_ROW = """\
    Loss.CUT: LossRow(
        holds=_cut,
        has_liger=False,
        package="cut_cross_entropy",
        needs="needs cut-cross-entropy",
        edit="let cut-cross-entropy compute the loss",
    ),
"""
BUILDER = """\
def _cut(model: Any) -> None:  # noqa: ANN401
    try:
        from cut_cross_entropy.transformers import (  # noqa: PLC0415 - only this loss needs it
            cce_patch,
        )
    except ImportError as error:
        raise MissingLibraryError(f"cut-cross-entropy cannot be loaded: {error}") from error
    cce_patch(model)


"""


@pytest.mark.slow
def test_a_loss_touches_its_member_its_formula_and_its_ranks(copied: Copy) -> None:
    recipe = read_recipes()["a loss"]

    copied.insert(WORKLOAD, '    CUT = "cut"\n', before='    LIGER = "liger"\n')
    assert set(recipe.tests) == copied.unfinished(recipe)

    copied.insert(LOSSES, FORMULA, before="class LossRow(")
    copied.insert(LOSSES, LOSS_ROW, before="    Loss.CHUNKED: LossRow(")
    copied.insert(RANKS, BUILDER, before="LOSSES: Mapping[")
    copied.insert(RANKS, '    "cut": _cut,\n', before='    "liger": _liger,\n')
    chunked, cut = (backward(copied, "--loss", loss) for loss in ("chunked", "cut"))
    assert sum(cut.values()) < sum(chunked.values())
    assert set() == copied.failed(*recipe.tests)
    copied.check_files(recipe)


# The recipe `an integration`: PyTorch Lightning, whose strategy hands DeepSpeed the config as is.

INTEGRATION_ROW = """\
    Integration.LIGHTNING: IntegrationRow(
        as_written=True,
        libraries={"lightning": "the script uses its Trainer"},
        gathers="call `convert_zero_checkpoint_to_fp32_state_dict(...)` after training",
    ),
"""
AUTO = "zerowiz/core/lint/batch.py"


@pytest.mark.slow
def test_an_integration_touches_its_row_and_what_it_fills(copied: Copy) -> None:
    recipe = read_recipes()["an integration"]

    copied.insert(
        WORKLOAD, '    LIGHTNING = "lightning"\n', before='    ACCELERATE = "accelerate"\n'
    )
    assert set(recipe.tests) == copied.unfinished(recipe)

    copied.insert(WORKLOAD, INTEGRATION_ROW, before="    Integration.ACCELERATE: IntegrationRow(")
    copied.insert(
        AUTO,
        "    Integration.LIGHTNING: frozenset[str](),\n",
        before="    Integration.ACCELERATE: _ACCELERATE,\n",
    )
    (copied.root.parent / "ds.json").write_text('{"train_batch_size": "auto"}', encoding="utf-8")
    done = copied.zerowiz("check", "--integration", "lightning", "../ds.json")
    assert "nothing replaces `auto` of `train_batch_size`" in done.stdout, done.stderr
    assert set() == copied.failed(*recipe.tests)
    copied.check_files(recipe)


# The recipe `an accelerator`: Intel's GPUs, whose kernel driver shows the memory of a card.

ACCELERATORS = "zerowiz/core/machine/types.py"
PROBE = "zerowiz/probe/machine/host.py"
READERS = "zerowiz/app/machines/this_machine.py"
ACCELERATOR_ROW = """\
    Accelerator.XPU: AcceleratorRow(on_host=False, libraries="SYCL and oneCCL"),
"""
CARDS = """\
def xpu_machine(host: Host, files: Files) -> Machine:
    \"\"\"A machine with Intel's GPUs.\"\"\"
    cards = [files.text(f"sys/class/drm/{name}/lmem") for name in files.names("sys/class/drm")]
    sizes = [int(text) for text in cards if text is not None]
    if not sizes:
        raise UsageError("there is no Intel GPU here")
    gpus = tuple(
        Gpu(index=index, name="Intel GPU", total_bytes=size_bytes, free_bytes=size_bytes)
        for index, size_bytes in enumerate(sizes)
    )
    return Machine(source=MachineSource.FILE, accelerator=Accelerator.XPU, gpus=gpus, host=host)


"""
READER = """\
def _read_cards(options: Options, world: World) -> Machine:
    return with_count(xpu_machine(read_here(world), world.files), options)


"""


@pytest.mark.slow
def test_an_accelerator_touches_its_row_its_probe_and_its_reader(copied: Copy) -> None:
    recipe = read_recipes()["an accelerator"]

    copied.insert(ACCELERATORS, '    XPU = "xpu"\n', before='    CPU = "cpu"\n\n    @property')
    assert set(recipe.tests) == copied.unfinished(recipe)

    copied.insert(ACCELERATORS, ACCELERATOR_ROW, before="    Accelerator.CPU: AcceleratorRow(")
    copied.insert(PROBE, CARDS, before="def with_number_formats(")
    copied.edit(READERS, "with_number_formats\n", "with_number_formats, xpu_machine\n")
    copied.insert(READERS, READER, before="READERS: Mapping[")
    copied.insert(
        READERS, "    Accelerator.XPU: _read_cards,\n", before="    Accelerator.CPU: _read_ranks,\n"
    )
    none = copied.zerowiz("machine", "--accelerator", "xpu")
    assert "there is no Intel GPU here" in none.stderr
    plan = json.loads(copied.zerowiz(*PLAN).stdout)
    plan["machine"]["accelerator"] = "xpu"
    (copied.root.parent / "cards.json").write_text(json.dumps(plan), encoding="utf-8")
    planned = copied.zerowiz("plan", "--machine", "../cards.json", "--model", "llama-3.2-1b")
    assert 0 == planned.returncode, planned.stderr
    assert planned.stdout.startswith("Machine  4 x NVIDIA H200 (machine file)")
    assert "s a step" not in planned.stdout
    assert set() == copied.failed(*recipe.tests)
    copied.check_files(recipe)
