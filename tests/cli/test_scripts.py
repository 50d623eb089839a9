"""What is said of a script, or of the file of a program, against its plan; and what stops a launch with 5."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cli.harness import CONFIG_ARGUMENTS, DOWN, ENTER, HF_IN_CODE, HF_PARSER, Open, Run, answers_of

CPU = ("--accelerator", "cpu", "--gpus-per-node", "2", "--model", "10m", "--seq-len", "64")
A100 = ("--machine", "4xA100-40GB-SXM")
SMALL = (*A100, "--model", "100m", "--micro-batch", "4", "train.py")
ON_GPUS = ("--machine", "4xA100-80GB", "--model", "125m", "--seq-len", "64")
LAUNCH = ("launch", "--dry-run", "--yes", *CPU, "--stage")

PLAIN = """\
import argparse, json, deepspeed
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--ds_config")
parser.add_argument("--batch", type=int, default=2)
parser.add_argument("--lr", type=float, default=6e-4)
parser.add_argument("--local_rank", type=int)
args = parser.parse_args()
config = json.load(open(args.ds_config))
loader = DataLoader(data, batch_size=args.batch)
deepspeed.initialize(model=build(), config=config)
"""
NEEDING = PLAIN.replace('"--ds_config"', '"--ds_config", required=True', 1).replace(
    "args =", 'parser.add_argument("--data_path", required=True)\nargs =', 1
)
NEEDING_BATCH = PLAIN.replace(
    '"--batch", type=int, default=2', '"--batch", type=int, required=True'
)
MAPPED = HF_PARSER.replace(
    "Trainer(model=None",
    'model = AutoModelForCausalLM.from_pretrained("gpt2", device_map="cpu")\nTrainer(model=model',
).replace("import Hf", "import AutoModelForCausalLM, Hf")
SAVING = f"{HF_PARSER}trainer = Trainer(model=net)\ntrainer.train()\nnet.save_pretrained('o')\n"
ALONE = """\
from accelerate import Accelerator
accelerator = Accelerator()
model, loader = accelerator.prepare(model, loader)
if accelerator.is_main_process:
    accelerator.save_state("o")
"""
TO_ALONE = (*LAUNCH, "2", "--micro-batch", "2")
TOUCHING = MAPPED.replace(', device_map="cpu")', ")\nmodel.lm_head.weight.data.zero_()")
FIRST = f"{HF_PARSER}trainer = Trainer(model=net)\ntrainer.evaluate()\ntrainer.train()\n"
HANDING = f"{HF_PARSER}Trainer(model=net, optimizers=(mine, None))\n"
FP32 = HF_IN_CODE.replace("bf16=True, ", "")
LITERAL = HF_IN_CODE.replace("bf16=True", 'bf16=True, deepspeed="ds_config_zero3.json"')
LOADED = """\
import torch
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments
(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
model = AutoModelForCausalLM.from_pretrained("x", torch_dtype=torch.bfloat16)
Trainer(model=model, args=args).train()
"""
FLOATS = (
    CONFIG_ARGUMENTS.replace("engine, *_", "x = torch.randn(64, 16)\nengine, *_").replace(
        "import deepspeed", "import deepspeed, torch"
    )
    + "engine.backward(engine(x).sum())\n"
)
LOOP = "import torch\nmodel = torch.nn.Linear(4, 4)\n"
PASSING = CONFIG_ARGUMENTS.replace(
    "model=None", "model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1)"
)
ACCELERATE = """\
from accelerate import Accelerator

accelerator = Accelerator()
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
"""
# A Trainer behind a parser of its own, which has the batch as its options.
BATCHES = """\
import argparse
from transformers import Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--bs", type=int, default=4)
parser.add_argument("--ga", type=int, default=8)
a = parser.parse_args()
args = TrainingArguments(
    "out", per_device_train_batch_size=a.bs, gradient_accumulation_steps=a.ga, bf16=True, use_cpu=True
)
Trainer(model=None, args=args).train()
"""
FIXED_STEPS = BATCHES.replace("gradient_accumulation_steps=a.ga", "gradient_accumulation_steps=8")
OWN_CONFIG = json.dumps({"train_micro_batch_size_per_gpu": 8, "optimizer": {"type": "AdamW"}})

# Files of programs that start their own ranks.
YAML = """\
base_model: 7b
datasets:
  - path: data.jsonl
    type: alpaca
sequence_len: 2048
micro_batch_size: 4
gradient_accumulation_steps: 2
optimizer: adamw_torch
bf16: auto
gradient_checkpointing: false
deepspeed: deepspeed_configs/zero1.json
"""
LLAMA_FACTORY = """\
model_name_or_path: 1b
stage: sft
do_train: true
finetuning_type: lora
lora_target: all
dataset: identity
template: llama3
cutoff_len: 1024
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
bf16: true
"""
FULL = LLAMA_FACTORY.replace("finetuning_type: lora", "finetuning_type: full")
GENERATES = f"{LLAMA_FACTORY}predict_with_generate: true\n"
RUN_EXP = "from llamafactory.train.tuner import run_exp\nrun_exp()\n"
OF_PROGRAM = ("init", "--yes", *A100)
SMALLER = ("--memory-budget", "25GiB", "--host-memory", "512GiB")


class Case(NamedTuple):
    """The text of `train.py` or of `my.yml`, a command, its exit code, and what is said and what is not."""

    text: str
    words: Sequence[str]
    code: int
    said: Sequence[str] = ()
    unsaid: Sequence[str] = ()


IN_FP32 = "your script sets no precision, so the plan is in fp32"
LOADS_16_BIT = "in train.py line 4 may load 16-bit weights"
REFUSES = "`zerowiz launch` refuses it"
NEEDS = "train.py requires `--data_path` (line 9), which you did not pass (PF116"
TO_PUT = "put `--data_path DATA_PATH` after train.py"
NO_KEY = "zerowiz knows no key of LLaMA-Factory for"
SAVED = f"`net.save_pretrained('o')` (line {SAVING.count(chr(10))}) (PF117 shards-saved)"
SAVES_SHARDS = ("plan", "--machine", "8xA100-40GB", "--model", "13b", "--seq-len", "64")
ELSEWHERE = ("launch", "--dry-run", *A100, "--model", "100m")
UNNAMED = CONFIG_ARGUMENTS.replace("--lr", "--step")
LITERAL_LR = f"learning_rate = 3e-4\n{UNNAMED}"
BOTH_LR = f"lr = 3e-4\n{CONFIG_ARGUMENTS}"
CLIPS = f"{ACCELERATE}accelerator.clip_grad_norm_(model.parameters(), 0.5)\n"
MINE = json.dumps(
    {
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.01}},
    }
)
DRAWS = """\
import deepspeed, torch

net = torch.nn.Linear(64, 10)
engine, *_ = deepspeed.initialize(model=net, config="ds_mine.json")
for _ in range(3):
    engine.backward(engine(torch.randn(4, 64)).sum())
    engine.step()
"""
OF_LOOP = ("plan", *ON_GPUS, "--micro-batch", "2")
TO_LOOP = (*LAUNCH, "1", "--micro-batch", "2")
BY_ZEROWIZ = "AdamW, weight decay 0, clipping 0 (zerowiz); lr"
CHANGES = ": the global batch"
CASES = {
    # What stops a launch unless it is forced.
    "fsdp": Case(HF_PARSER, (*LAUNCH, "2", "train.py", "--fsdp", "full_shard"), 5, ["PF109 fsdp"]),
    "fsdp, forced": Case(
        HF_PARSER,
        (*LAUNCH, "2", "--force", "train.py", "--fsdp", "full_shard"),
        0,
        ["note: ", "PF109 fsdp"],
    ),
    "fsdp on another machine": Case(
        HF_PARSER, (*ELSEWHERE, "train.py", "--bf16", "--fsdp", "x"), 5, ["PF109 fsdp"]
    ),
    "no fsdp on another machine": Case(HF_PARSER, (*ELSEWHERE, "train.py", "--bf16"), 0),
    "a device map at stage 2": Case(MAPPED, (*LAUNCH, "2", "train.py"), 0),
    "a device map at stage 3": Case(MAPPED, (*LAUNCH, "3", "train.py"), 5, ["PF108 device-map"]),
    "all options have defaults": Case(PLAIN, (*LAUNCH, "2", "train.py", "--batch", "4"), 0),
    "shards are saved": Case(SAVING, (*LAUNCH, "3", "train.py"), 5, ["PF117 shards-saved"]),
    "the Trainer saves": Case(
        SAVING.replace("net.save_pretrained", "trainer.save_model"), (*LAUNCH, "3", "train.py"), 0
    ),
    "an argument is missing": Case(NEEDING, (*LAUNCH, "2", "train.py"), 5, [NEEDS, TO_PUT]),
    "an argument is missing in a plan": Case(
        NEEDING, ("plan", *CPU, "--stage", "2", "train.py"), 0, [NEEDS, TO_PUT]
    ),
    "an abbreviation is enough": Case(NEEDING, (*LAUNCH, "2", "train.py", "--data", "texts"), 0),
    "zerowiz passes it": Case(
        NEEDING_BATCH, (*LAUNCH, "2", "--micro-batch", "4", "train.py"), 0, ["--batch 4"]
    ),
    "what init says": Case(
        SAVING, ("init", "--yes", *CPU, "--stage", "3", "train.py", "--bf16"), 0, ["PF117"]
    ),
    "a call on one rank": Case(ALONE, (*TO_ALONE, "train.py"), 5, ["PF122 one-rank-call"]),
    "a call on one rank in some steps": Case(
        ALONE.replace("if ", "if step == 1 and "), (*TO_ALONE, "train.py"), 0, ["PF122"]
    ),
    "a call on one rank, forced": Case(
        ALONE, (*TO_ALONE, "--force", "train.py"), 0, ["PF122 one-rank-call"]
    ),
    "options that the Trainer refuses": Case(
        HF_PARSER, (*LAUNCH, "3", "train.py", "--auto_find_batch_size"), 5, ["PF124 stage-refused"]
    ),
    "options that the Trainer refuses at stage 3 alone": Case(
        HF_PARSER, (*LAUNCH, "2", "train.py", "--auto_find_batch_size"), 0, [], ["PF124"]
    ),
    "empty weights are used": Case(TOUCHING, (*LAUNCH, "3", "train.py"), 0, ["PF123 shards-read"]),
    "whole weights are used": Case(TOUCHING, (*LAUNCH, "2", "train.py"), 0, [], ["PF123"]),
    "a stage at which the script is right": Case(
        FIRST,
        ("plan", *ON_GPUS, "train.py", "--bf16"),
        0,
        ["Chosen ZeRO-3: your script does not work with DDP"],
        ["PF124"],
    ),
    "that stage, but another was asked for": Case(
        FIRST,
        ("plan", *ON_GPUS, "--stage", "2", "train.py", "--bf16"),
        0,
        ["PF124", "use `eval_on_start=True`"],
    ),
    # What a launch or a plan notes.
    "a further attempt may save shards": Case(
        SAVING, (*LAUNCH, "2", "--supervise", "--escalate", "train.py", "--bf16"), 0, ["PF117"]
    ),
    "no further attempt": Case(SAVING, (*LAUNCH, "2", "train.py", "--bf16"), 0, [], ["PF11"]),
    "an optimizer is handed over": Case(
        HANDING, (*ELSEWHERE, "--stage", "3", "train.py", "--bf16"), 0, ["PF118"]
    ),
    "a plan takes stage 3": Case(
        SAVING,
        (*SAVES_SHARDS, "train.py", "--bf16"),
        0,
        [
            "Chosen ZeRO-3",
            f"train.py saves empty weights at stage 3: {SAVED}",
            "`trainer.save_model(...)`",
        ],
    ),
    "a plan of stage 2": Case(
        SAVING, (*SAVES_SHARDS, "--stage", "2", "train.py", "--bf16"), 4, [], ["PF117"]
    ),
    "refused before the model is asked for": Case(
        LOOP,
        ("plan", *A100, "train.py"),
        3,
        [f"`Accelerator()`; {REFUSES}, and says what to change"],
    ),
    "another config in the code": Case(
        LITERAL,
        ("plan", *A100, "--model", "100m", "--stage", "2", "train.py"),
        0,
        ["names `ds_config_zero3.json`, but zerowiz writes"],
    ),
    "an engine that never runs": Case(
        PLAIN.replace("deepspeed.initialize(", "if False:\n    deepspeed.initialize("),
        (*TO_ALONE, "train.py"),
        5,
        ["zerowiz cannot pass a config to train.py"],
    ),
    "an engine for a type checker": Case(
        PLAIN.replace(
            "deepspeed.initialize(", "if typing.TYPE_CHECKING:\n    deepspeed.initialize("
        ),
        (*TO_ALONE, "train.py"),
        5,
        ["zerowiz cannot pass a config to train.py"],
    ),
    "the config in the code": Case(
        LITERAL,
        ("plan", *A100, "--model", "100m", "--stage", "3", "train.py"),
        0,
        [],
        ["refuses it"],
    ),
    "bf16": Case(HF_IN_CODE, ("plan", *SMALL), 0, [], [IN_FP32]),
    "no precision": Case(
        FP32, ("plan", *SMALL), 0, [IN_FP32, "set `bf16=True` in train.py line 3"]
    ),
    "no bf16": Case(
        HF_IN_CODE.replace("bf16=True", "bf16=False"), ("plan", *SMALL), 0, [], [IN_FP32]
    ),
    "no precision on GPUs without bf16": Case(
        FP32, ("plan", "--machine", "8xV100-32GB", *SMALL[2:]), 0, [], [IN_FP32]
    ),
    "no precision on the CPU": Case(
        FP32,
        ("plan", "--machine", "cpu", "--memory-budget", "64GiB", *SMALL[2:]),
        0,
        [],
        [IN_FP32],
    ),
    "no precision is passed": Case(
        HF_PARSER, ("plan", *SMALL), 0, [IN_FP32, "put `--bf16` after train.py"]
    ),
    "16-bit weights": Case(
        LOADED, ("plan", *SMALL), 0, [LOADS_16_BIT, "put `--bf16` after train.py"]
    ),
    "16-bit weights by a word": Case(
        LOADED.replace("torch_dtype=torch.bfloat16", 'dtype="float16"'),
        ("plan", *SMALL),
        0,
        [LOADS_16_BIT],
    ),
    "32-bit weights": Case(
        LOADED.replace("torch.bfloat16", "torch.float32"), ("plan", *SMALL), 0, [], [LOADS_16_BIT]
    ),
    "16-bit weights as the precision is": Case(
        LOADED.replace("torch.bfloat16", "torch.bfloat16 if args.bf16 else None"),
        ("plan", *SMALL),
        0,
        ["put `--bf16` after train.py"],
        [LOADS_16_BIT],
    ),
    "bf16 is passed": Case(
        LOADED,
        ("plan", *SMALL, "--bf16", "True"),
        0,
        ["sequences, 2048 tokens each, bf16, AdamW (fp32 states)"],
        [LOADS_16_BIT, "put `--bf16`"],
    ),
    "one CPU rank": Case(
        HF_IN_CODE,
        ("plan", "--machine", "cpu", *CPU[4:]),
        0,
        ["Machine 1 CPU rank (this host); one rank, no link"],
    ),
    "floats": Case(
        FLOATS,
        ("plan", *ON_GPUS, "--micro-batch", "2", "train.py"),
        0,
        [
            "note: `torch.randn(64, 16)` in train.py line 11 makes floats, which nothing casts to 16 bits,",
            "64 tokens each, fp32, AdamW (fp32 states)",
        ],
        ["PF119"],
    ),
    "floats before 16-bit weights": Case(
        FLOATS,
        (*LAUNCH, "2", "--micro-batch", "2", "--precision", "bf16", "train.py"),
        0,
        ["PF119 float-batches", "cast what the engine gets: `x.to(torch.bfloat16)`"],
        ["makes floats, which nothing casts"],
    ),
    "floats in autocast": Case(
        FLOATS,
        ("plan", *ON_GPUS, "--micro-batch", "2", "--torch-autocast", "bf16", "train.py"),
        0,
        [],
        ["PF119", "makes floats"],
    ),
    # How the model learns, and what says so.
    "an own optimizer": Case(
        PASSING,
        (*OF_LOOP, "train.py"),
        0,
        [
            (
                "Learning SGD (`torch.optim.SGD(...)` in train.py line 11);"
                " lr 0.1 (`torch.optim.SGD(lr=0.1)` in train.py line 11); clipping 0 (zerowiz)"
            )
        ],
    ),
    "an optimizer behind accelerate, and its clipping": Case(
        CLIPS,
        (*OF_LOOP, "train.py"),
        0,
        ["clipping 0.5 (`accelerator.clip_grad_norm_(max_norm=0.5)` in train.py line 5)"],
    ),
    "clipping that is not followed": Case(
        CLIPS.replace("0.5", "find()"), (*OF_LOOP, "train.py"), 0, ["clipping 1 (zerowiz)"]
    ),
    "the Trainer's optimizer": Case(
        HF_IN_CODE,
        ("plan", *ON_GPUS, "train.py"),
        0,
        [
            (
                "Learning AdamW, lr 5e-05, weight decay 0, warm-up 0, clipping 1, schedule linear"
                " (the default of TrainingArguments)"
            )
        ],
    ),
    "a default of the parser before a literal": Case(
        BOTH_LR, (*OF_LOOP, "train.py"), 0, [f"{BY_ZEROWIZ} 0.0006 (the default of `--lr` in"]
    ),
    "a word before the parser's default": Case(
        BOTH_LR, (*OF_LOOP, "train.py", "--lr", "2e-4"), 0, [f"{BY_ZEROWIZ} 0.0002 (`--lr 2e-4`"]
    ),
    "a literal": Case(
        LITERAL_LR,
        (*OF_LOOP, "train.py"),
        0,
        [f"{BY_ZEROWIZ} 0.0003 (`learning_rate = 0.0003` in train.py line 1)"],
    ),
    "an option before what the script has by itself": Case(
        BOTH_LR,
        (*TO_LOOP, "--lr", "1e-3", "train.py"),
        0,
        ["lr 0.001 (your options)", '"lr": 0.001', "train.py --lr 0.001 --deepspeed"],
    ),
    "an option against a word": Case(
        BOTH_LR,
        (*OF_LOOP, "--lr", "1e-3", "train.py", "--lr", "2e-4"),
        2,
        ["`--lr 0.001` conflicts with the script: `--lr 2e-4` after the script says 0.0002"],
    ),
    "a config of the person's own": Case(
        BOTH_LR,
        (*OF_LOOP, "--config", "mine.json", "train.py"),
        0,
        ["Learning lr 0.01, schedule WarmupLR (mine.json)"],
    ),
    "a batch that nobody sees, beside a config": Case(
        BOTH_LR,
        ("plan", *ON_GPUS, "--config", "mine.json", "train.py"),
        0,
        ["cannot see what the script draws, and takes micro-batch 2 of `mine.json`"],
    ),
    "an option beside a config of the person's own": Case(
        BOTH_LR,
        (*OF_LOOP, "--config", "mine.json", "--weight-decay", "0.1", "train.py"),
        2,
        ["`--weight-decay 0.1` has no effect: `mine.json` decides it"],
    ),
    "no lr, where nothing is written": Case(
        UNNAMED, (*OF_LOOP, "train.py"), 0, ["Learning AdamW, no lr yet: `--lr`, weight decay 0,"]
    ),
    "no lr, where nobody is asked": Case(
        UNNAMED,
        (*TO_LOOP, "train.py"),
        3,
        [
            "no learning rate: zerowiz sees no optimizer that the script passes to DeepSpeed,",
            "set it with `--lr`; zerowiz 1.0.0rc1 wrote `--lr 5e-5`",
        ],
    ),
    "no lr, and no config of zerowiz's that would have it": Case(
        UNNAMED, (*TO_LOOP, "--config-via", "none", "train.py"), 0, [], ["Learning"]
    ),
    **{
        f"an option that {path} decides: {option}": Case(
            text, (*OF_LOOP, *option.split(), path), 2, [said]
        )
        for path, text, option, said in (
            (
                "train.py",
                HF_IN_CODE,
                "--lr 1e-3",
                "set `learning_rate=0.001` in train.py line 3",
            ),
            ("train.py", PASSING, "--lr 1e-3", "set `lr=0.001` in train.py line 11"),
            (
                "train.py",
                PASSING,
                "--warmup-steps 9",
                "`--warmup-steps 9` has no effect: train.py has an optimizer or a scheduler",
            ),
        )
    },
    # Options that change the global batch.
    **{
        f"{options}: the batch {said.partition(';')[0]}": Case(
            text,
            ("plan", *ON_GPUS, *options.split(), "train.py"),
            0,
            [f"note: `{options}`: the global batch {said}"],
        )
        for text, options, said in (
            (BATCHES, "--grad-accum 2", "falls from 128 to 32; keep it with `--grad-accum 8`"),
            (FIXED_STEPS, "--micro-batch 2", "falls from 128 to 64; an accumulation of 16 in"),
        )
    },
    **{
        f"{options} keeps the batch, {split}": Case(
            text,
            ("plan", *ON_GPUS, *options.split(), "train.py"),
            0,
            [f"Step micro-batch {split} sequences, 64 tokens each"],
            [CHANGES],
        )
        for text, options, split in (
            (BATCHES, "--micro-batch 1", "1 x accumulation 32 x 4 GPUs = 128"),
            (BATCHES, "--micro-batch 8", "8 x accumulation 4 x 4 GPUs = 128"),
            (BATCHES, "--micro-batch 1 --grad-accum 32", "1 x accumulation 32 x 4 GPUs = 128"),
            (BATCHES, "--micro-batch 4", "4 x accumulation 8 x 4 GPUs = 128"),
            (BATCHES, "--global-batch 64", "16 x accumulation 1 x 4 GPUs = 64"),
            (BATCHES, "--micro-batch 1 --global-batch 64", "1 x accumulation 16 x 4 GPUs = 64"),
            # The Trainer's own default is 8.
            (HF_PARSER, "--micro-batch 1", "1 x accumulation 8 x 4 GPUs = 32"),
        )
    },
    "a remedy on more GPUs": Case(
        BATCHES,
        ("plan", "--machine", "4xB300", "--model", "70b", "train.py"),
        4,
        ["`--machine 8xB300`: ZeRO-3 fits", "; the global batch becomes 256"],
    ),
    "a micro-batch that does not divide": Case(
        BATCHES,
        ("plan", *ON_GPUS, "--micro-batch", "3", "train.py"),
        2,
        [
            "`--micro-batch 3` does not divide the 32 sequences",
            "`--micro-batch 2` or `--micro-batch 4`",
        ],
    ),
    "a batch that is not seen": Case(
        CONFIG_ARGUMENTS,
        ("plan", *ON_GPUS, "--micro-batch", "8", "--grad-accum", "2", "train.py"),
        0,
        [],
        [CHANGES],
    ),
    "words behind the script": Case(
        BATCHES,
        ("plan", *ON_GPUS, "--micro-batch", "1", "train.py", "--ga", "2"),
        0,
        ["the global batch falls from 32 to 8; "],
    ),
    # Files of programs.
    "keys that are set": Case(
        YAML,
        (*OF_PROGRAM, "--model", "gpt2", "--seq-len", "512", "--micro-batch", "1", "my.yml"),
        0,
        [
            "base_model: openai-community/gpt2",
            "sequence_len: 512",
            "micro_batch_size: 1",
            "in a copy of this folder",
        ],
    ),
    "a size is no model of a file": Case(
        YAML, (*OF_PROGRAM, "--model", "1b", "my.yml"), 0, [], ["base_model"]
    ),
    "adapters for all weights": Case(
        LLAMA_FACTORY,
        (*OF_PROGRAM, "--method", "full", "my.yml"),
        0,
        ["finetuning_type: full quantization_bit: null then train:"],
    ),
    "all weights for adapters": Case(
        FULL,
        (*OF_PROGRAM, "--method", "lora", "my.yml"),
        0,
        ["finetuning_type: lora quantization_bit: null lora_rank: 16 then train:"],
    ),
    "a key that needs another one": Case(
        f"{LLAMA_FACTORY}double_quantization: true\n",
        *((*OF_PROGRAM, "my.yml"), 0),
        ["`double_quantization` without `quantization_bit` has no effect in my.yml"],
    ),
    "a key that has the other one": Case(
        f"{LLAMA_FACTORY}double_quantization: true\nquantization_bit: 4\n",
        *((*OF_PROGRAM, "my.yml"), 0, (), ["has no effect"]),
    ),
    **{
        f"no key for {option}": Case(
            LLAMA_FACTORY,
            (*OF_PROGRAM, *option.split(), "my.yml"),
            2,
            [f"{NO_KEY} `{option}`", f"remove `{option}`: the plan takes what `my.yml` says"],
        )
        for option in ("--loss chunked", "--trainer dpo")
    },
    **{
        f"a key for {option}": Case(LLAMA_FACTORY, (*OF_PROGRAM, *option.split(), "my.yml"), 0)
        for option in ("--trainer sft", "--loss liger", "--optimizer-state-dtype bf16")
    },
    "the script of a program in a plan": Case(
        RUN_EXP,
        ("plan", *A100, "--model", "1b", "train.py", "my.yaml"),
        0,
        ["takes the config from its YAML file, by the key `deepspeed`"],
    ),
    "the script of a program in a launch": Case(
        RUN_EXP,
        ("launch", *A100, "--model", "1b", "train.py", "my.yaml"),
        5,
        ["by the key `deepspeed`", "pass that file instead: `zerowiz init my.yaml`"],
    ),
    "a file of no program": Case(
        "model_name_or_path: m\n",
        (*OF_PROGRAM, "my.yml"),
        2,
        ["neither a training script nor a file of axolotl"],
    ),
    "no YAML": Case("a: [\n", (*OF_PROGRAM, "my.yml"), 2, ["is not YAML"]),
    "words behind a file": Case(
        YAML, (*OF_PROGRAM, "my.yml", "--learning-rate", "1"), 2, ["after `my.yml` has no effect"]
    ),
    **{
        f"{command} takes no file of a program": Case(
            YAML,
            (command, *A100, "--model", "1b", "my.yml"),
            1,
            ["my.yml is a YAML file, and no training script", "`zerowiz init my.yml`"],
        )
        for command in ("plan", "launch")
    },
    "a file of TRL": Case(
        "model_name_or_path: m\ndataset_name: d\n",
        (*OF_PROGRAM, "my.yml"),
        2,
        ["`zerowiz launch -m trl.scripts.sft --config my.yml`"],
    ),
    "check takes no file of a program": Case(
        LLAMA_FACTORY,
        ("check", "my.yml"),
        1,
        [
            "there is no DeepSpeed config in `my.yml`: it has no `deepspeed`",
            "`zerowiz init my.yml`",
        ],
    ),
    "a key that the program refuses at stage 3": Case(
        GENERATES,
        (*OF_PROGRAM, "--stage", "3", "my.yml"),
        2,
        [
            "LLaMA-Factory refuses `predict_with_generate` in `my.yml` at stage 3",
            "`--stage 2`",
        ],
    ),
    "that key, forced": Case(
        GENERATES, (*OF_PROGRAM, "--stage", "3", "--force", "my.yml"), 0, ["ds_config_zero3.json"]
    ),
    "that key at stage 2": Case(GENERATES, (*OF_PROGRAM, "--stage", "2", "my.yml"), 0),
    "that key turned off": Case(
        GENERATES.replace("generate: true", "generate: false"),
        (*OF_PROGRAM, "--stage", "3", "my.yml"),
        0,
    ),
    "weights in fp32 while the program loads them": Case(
        FULL,
        (*OF_PROGRAM, "--stage", "2", "my.yml"),
        0,
        ["while LLaMA-Factory loads the weights, in fp32, each GPU holds 5.8 GiB"],
    ),
    "those weights at stage 3": Case(
        FULL, (*OF_PROGRAM, "--stage", "3", "my.yml"), 0, unsaid=["in fp32, each GPU holds"]
    ),
    "those weights on the host": Case(
        f"{FULL}low_cpu_mem_usage: false\n",
        (*OF_PROGRAM, "--stage", "2", "my.yml"),
        0,
        unsaid=["in fp32, each GPU holds"],
    ),
    "those weights, too big for a GPU": Case(
        FULL.replace("1b", "7b"),
        (*OF_PROGRAM, "--stage", "2", "--offload", "optimizer", *SMALLER, "my.yml"),
        2,
        ["each GPU holds 28.2 GiB of 25.0 GiB", "`--stage 3`", "`pure_bf16: true` in `my.yml`"],
    ),
    "a program is not launched": Case(
        YAML,
        ("init", "--yes", "--launch", "--machine", "cpu", "my.yml"),
        2,
        ["axolotl starts its own ranks"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_said_of_a_script_and_of_a_file(here: Run, folder: Path, name: str) -> None:
    text, words, code, said, unsaid = CASES[name]
    (folder / ("my.yml" if "my.yml" in words else "train.py")).write_text(text, encoding="utf-8")
    if "mine.json" in words:
        (folder / "mine.json").write_text(MINE)
    verbose = ("--verbose",) if words[0] == "plan" else ()
    result = here(words[0], *verbose, *words[1:])
    shown = " ".join(f"{result.stdout} {result.stderr}".replace("\\\n", "").split())
    assert code == result.code, shown
    assert [] == [line for line in said if line not in shown], shown
    assert [] == [line for line in unsaid if line in shown], shown


def test_a_plan_for_this_machine_names_a_bad_release_that_is_installed(
    here: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "train.py").write_text(PLAIN, encoding="utf-8")
    (folder / "env" / "deepspeed-0.18.2.dist-info").mkdir(parents=True)
    monkeypatch.syspath_prepend(folder / "env")
    step = ("--micro-batch", "1", "--grad-accum", "2", "--precision", "bf16", "train.py")
    said = "note: deepspeed 0.18.2 is installed: ZeRO-2 takes the gradients of the last micro-batch"
    assert said in here("plan", *CPU, "--stage", "2", *step).stderr
    assert said not in here("plan", *CPU, "--stage", "1", *step).stderr
    assert "0.18.2" not in here("plan", *A100, "--model", "10m", "--stage", "2", *step).stderr


@pytest.mark.parametrize(
    ("loop", "said"),
    [
        ("with accelerator.accumulate(model):\n    accelerator.backward(loss)\n", None),
        ("accelerator.backward(loss)\n", "warning"),
    ],
)
def test_doctor_reads_the_loop_before_it_warns_of_a_bad_release(
    here: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, loop: str, said: str | None
) -> None:
    (folder / "train.py").write_text(ACCELERATE + loop, encoding="utf-8")
    (folder / "env" / "accelerate-1.15.0.dist-info").mkdir(parents=True)
    monkeypatch.syspath_prepend(folder / "env")
    step = ("--micro-batch", "1", "--grad-accum", "2", "--precision", "bf16", "train.py")
    found = json.loads(here("doctor", *CPU, "--stage", "2", "--json", *step).stdout)["findings"]
    [severity] = [each["severity"] for each in found if "accelerate 1.15" in str(each)] or [None]
    assert said == severity


@pytest.mark.parametrize(
    ("where", "model", "code"), [("2xA100-40GB-SXM", "1b", 0), ("1xRTX-4090", "30b", 4)]
)
@pytest.mark.parametrize(
    "text",
    [
        f"{LOOP}torch.optim.AdamW(model.parameters())\n",
        "import deepspeed\ndeepspeed.initialize(model=build(), config=make_config())\n",
        f"# No such flag at DeepSpeed's launcher.\n{PLAIN}".replace("--local_rank", "--local-rank"),
    ],
    ids=["no engine", "no way for a config", "another flag"],
)
def test_a_plan_says_that_a_launch_refuses_its_script(
    here: Run, folder: Path, text: str, where: str, model: str, code: int
) -> None:
    (folder / "train.py").write_text(text, encoding="utf-8")
    job = ("--model", model, "--micro-batch", "1", "train.py")
    planned = here("plan", "--machine", where, *job)
    launched = here("launch", "--dry-run", "--machine", "2xA100-40GB-SXM", *job)
    refusal = launched.stderr.partition("error: ")[2].splitlines()[0]
    assert (5, code) == (launched.code, planned.code), planned.stderr
    assert f"note: {refusal}; {REFUSES}" in planned.stderr


def test_ranks_on_the_cpu_are_counted_as_such(here: Run) -> None:
    two = here("plan", "--verbose", *CPU)
    assert "Machine  2 CPU ranks (this host)" in two.stdout
    # A small model is not "0.1 GiB, 0.1 to 0.1".
    assert re.search(r"torch allocates \d+ MiB, \d+ to \d+ on any rank", two.stdout)


# The wizard with the file of a program, axolotl or LLaMA-Factory, instead of a script.


@pytest.fixture
def yaml(folder: Path) -> Path:
    path = folder / "my.yml"
    path.write_text(YAML)
    return path


def test_a_conversation_ends_in_a_config_and_the_keys_to_set(
    terminal: Open, here: Run, yaml: Path
) -> None:
    person = terminal("init", *A100, "my.yml")
    person.finish(
        ("Script   my.yml: a file of axolotl", ""),
        # What it says is not asked; it does not fit.
        ("What do you want to change?", "--gradient-checkpointing" + ENTER),
        ("axolotl starts the ranks", ""),
        ("> yes, write the files", ENTER),
    )
    config = next(yaml.parent.glob("ds_config_zero[0-9].json"))
    shown = person.text.partition("next: set in my.yml\n")[2]
    lines = [line.strip() for line in shown.partition("then train:")[0].splitlines()]
    assert f"deepspeed: {config.name}" == lines[0]
    assert "gradient_checkpointing: true" in lines
    assert "then train: axolotl train my.yml" in person.text
    # The file stays as it is, and once it is edited the same is planned.
    assert YAML == yaml.read_text()
    before = config.read_bytes()
    edited = {line.partition(":")[0]: line for line in lines}
    kept = [each for each in YAML.splitlines() if each.partition(":")[0] not in edited]
    yaml.write_text("\n".join([*kept, *lines]) + "\n")
    config.unlink()
    again = here(*OF_PROGRAM, "my.yml").good
    assert before == config.read_bytes()
    assert f"next: set in my.yml\n  deepspeed: {config.name}\nthen train:" in again.stdout


def workload(folder: Path, *names: str) -> Mapping[str, object]:
    """Of the plan that was written."""
    written = json.loads(next(folder.glob("*.plan.json")).read_text())
    return {name: written["workload"][name] for name in names}


def test_what_the_file_lacks_is_asked(terminal: Open, yaml: Path) -> None:
    yaml.write_text("base_model: 1b\nadapter: lora\nbf16: true\ngradient_checkpointing: true\n")
    person = terminal("init", *A100, "my.yml")
    person.finish(
        ("How many sequences per rank at a time?", "2" + ENTER),
        ("How many tokens per sequence?", "512" + ENTER),
        ("> yes, write the files", ENTER),
    )
    for line in ("micro_batch_size: 2", "sequence_len: 512"):
        assert f"\n  {line}\n" in person.text
    expected = {"method": "lora", "micro_batch": 2}
    assert expected == workload(yaml.parent, *expected)


def test_a_file_of_llama_factory_says_its_job_and_how_to_start_it(here: Run, yaml: Path) -> None:
    yaml.write_text(LLAMA_FACTORY)
    words = ("--micro-batch", "1", "--lora-target-modules", "q_proj", "--gpus-per-node", "2")
    done = here(*OF_PROGRAM, *words, "my.yml").good
    config = next(yaml.parent.glob("ds_config_zero[0-9].json")).name
    assert (
        "next: set in my.yml\n"
        f"  deepspeed: {config}\n"
        "  per_device_train_batch_size: 1\n"
        "  gradient_accumulation_steps: 8\n"
        "  lora_target: q_proj\n"
        "then train: FORCE_TORCHRUN=1 NPROC_PER_NODE=2 llamafactory-cli train my.yml\n"
    ) in done.stdout
    expected = {"method": "lora", "micro_batch": 1, "accumulation_steps": 8}
    expected |= {"sequence_tokens": 1024, "precision": "bf16", "gradient_checkpointing": True}
    assert expected == workload(yaml.parent, *expected)


# What changes what a model learns is said: values of zerowiz's own, and another global batch.


@pytest.mark.parametrize(
    "command", [("plan", "-v"), ("launch", "--dry-run", "--yes"), ("init", "--yes")], ids=" ".join
)
def test_the_optimizer_that_nobody_made_is_said_with_the_config_that_has_another(
    here: Run, folder: Path, command: tuple[str, ...]
) -> None:
    (folder / "train.py").write_text(CONFIG_ARGUMENTS)
    (folder / "ds_config.json").write_text(OWN_CONFIG)
    result = here(*command, "--stage", "1", *CPU, "--micro-batch", "2", "train.py")
    words = " ".join((result.stderr + result.stdout).split())
    assert f"{BY_ZEROWIZ} 0.0006 (the default of `--lr` in train.py line 8)" in words
    assert "`ds_config.json` is not used: `--config ds_config.json --stage auto` takes it" in words
    assert "`--config ds_config.json` alone runs it unchanged" in words


def test_a_config_that_is_used_or_is_zerowizs_own_is_not_named(here: Run, folder: Path) -> None:
    (folder / "train.py").write_text(CONFIG_ARGUMENTS)
    job = (*CPU, "--micro-batch", "2", "train.py")
    assert here("init", "--yes", "--stage", "2", *job).code == 0
    (folder / "ds_notes.json").write_text("[1, 2")
    (folder / "ds_data.json").write_text('{"rows": 3}')
    (folder / "ds_loop.json").symlink_to("ds_loop.json")
    changed = (folder / "ds_config_zero2.json").read_text().replace("0.0006", "0.0007")
    (folder / "ds_config_zero2.json").write_text(changed)
    assert "not used" not in here("plan", "--stage", "1", *job).stderr
    (folder / "ds_mine.json").write_text(OWN_CONFIG)
    for own in (("ds_mine.json",), ("ds_mine.json", "--stage", "1")):
        used = here("plan", *CPU, "--config", *own, "train.py")
        assert (0, False) == (used.code, "not used" in used.stderr)
    (folder / "ds_mine.json").write_text(MINE)
    (folder / "zerowiz.toml").unlink()
    for text, words in ((UNNAMED, job), (DRAWS, (*CPU, "train.py"))):
        (folder / "train.py").write_text(text)
        nameless = here("launch", "--dry-run", *words)
        assert nameless.code == 3
        assert "take it from your config: `--config ds_mine.json --stage auto`" in nameless.stderr
    (folder / "train.py").write_text(CONFIG_ARGUMENTS)
    looped = here("launch", "--dry-run", "--output-dir", "ds_loop.json", *job)
    assert "too many levels of symbolic links" in looped.problem


BY_SHELL = """\
ARGS="--seed 1"
deepspeed --num_gpus 8 \\
    src/train.py $ARGS --deepspeed_config='conf/base.json'
deepspeed other.py --deepspeed gone.json
"""
BY_ACCELERATE = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 2\n"


def test_each_config_that_a_script_its_shell_file_or_its_folder_shows_is_named_in_one_line(
    here: Run, folder: Path
) -> None:
    """What a job is started with today comes first."""
    for name in ("src", "conf"):
        (folder / name).mkdir()
    option = 'parser.add_argument("--own", default="conf/own.json")\n'
    text = CONFIG_ARGUMENTS.replace("parser = deepspeed", f"{option}parser = deepspeed")
    (folder / "src" / "train.py").write_text(text)
    (folder / "run.sh").write_text(BY_SHELL)
    (folder / "src" / "acc.yaml").write_text(BY_ACCELERATE)
    (folder / "src" / "data.yaml").write_text("rows: 3\n")
    paths = ("conf/own.json", "conf/base.json", "src/my-ds.json", "deepspeed.json", "zero3.json")
    for path in paths:
        (folder / path).write_text(f"// mine\n{OWN_CONFIG}")
    result = here("launch", "--dry-run", "--yes", *CPU, "--micro-batch", "2", "src/train.py")
    named = ", ".join(f"`{path}`" for path in (*paths[:2], "src/acc.yaml", *paths[2:]))
    assert f"note: {named} are not used: `--config FILE --stage auto`" in result.stderr


def test_the_wizard_offers_a_config_that_lies_there_as_the_base(
    terminal: Open, folder: Path
) -> None:
    (folder / "train.py").write_text(CONFIG_ARGUMENTS)
    (folder / "ds_config.json").write_text(OWN_CONFIG)
    person = terminal("init", *ON_GPUS, "--stage", "2", "train.py")
    person.finish(
        ("Build on your own config?", ""),
        ("keeps optimizer", ENTER),
        # Its batch is no question.
        ("gradient checkpointing?", ENTER, "How many sequences per rank"),
        ("`ds_config_zero2.json` is built on `ds_config.json`", ""),
        ("Write the files?", ENTER),
    )
    config = json.loads((folder / "ds_config_zero2.json").read_text())
    assert (8, 2) == (
        config["train_micro_batch_size_per_gpu"],
        config["zero_optimization"]["stage"],
    )
    said = answers_of(folder)
    assert ("ds_config.json", "2") == (said["config"], str(said["stage"]))
    # What the file of answers says is not asked again, nor noted.
    again = terminal("init", *ON_GPUS)
    again.talk(("gradient checkpointing?", ENTER, "Build on"), ("Write the files?", ENTER))
    assert "is not used" not in again.text


@pytest.mark.parametrize(
    ("text", "own", "steps", "whole"),
    # The Trainer's own default is 8 x 1.
    [(BATCHES, 4, 32, 128), (HF_PARSER, 8, 8, 32)],
)
def test_the_wizard_keeps_it_and_starts_from_the_scripts_own(
    terminal: Open, folder: Path, text: str, own: int, steps: int, whole: int
) -> None:
    (folder / "train.py").write_text(text)
    person = terminal("init", *ON_GPUS, "--precision", "bf16", "train.py")
    kept = f"Your script keeps its global batch ({whole}): the accumulation follows."
    person.talk(
        ("What is your goal?", DOWN * 2 + ENTER),
        (kept, ""),
        (f"({own})", "3" + ENTER),
        ("use `--micro-batch 2` or `--micro-batch 4`", "\x7f1" + ENTER),
    )
    person.wait_for(f"x accumulation {steps} x 4 GPUs = {whole} sequences")


PICKED = ACCELERATE.replace("Accelerator()", "Accelerator(mixed_precision=pick())")


def test_without_a_person_that_precision_has_to_be_named(here: Run, folder: Path) -> None:
    (folder / "train.py").write_text(PICKED)
    words = ("launch", "--dry-run", "--yes", *CPU, "--micro-batch", "2", "train.py")
    refused = here(*words)
    assert 3 == refused.code
    assert (
        "did not follow `Accelerator(mixed_precision=pick())` in train.py line 3" in refused.hints
    )
    assert 0 == here(*words[:3], "--precision", "fp32", *words[3:]).code
    (folder / "mine.json").write_text('{"bf16": {"enabled": true}}')
    assert 0 == here(*words[:3], "--config", "mine.json", "--stage", "2", *words[3:]).code


TWO = ("--micro-batch", "2", "train.py")
CHECKPOINTING, WRITES = ("gradient checkpointing?", ENTER), ("Write the files?", ENTER)
Seen = Callable[[dict[str, Any], Path], object]
"""Of the config that was written, and of the folder."""
# The files, the words, the conversation between the script and the end, and what is seen then.
ON_SCRIPTS: dict[
    str, tuple[dict[str, str], tuple[str, ...], tuple[tuple[str, ...], ...], Seen, object]
] = {
    "a config that is not wanted as the base is not used": (
        {"train.py": CONFIG_ARGUMENTS, "ds_config.json": OWN_CONFIG},
        TWO,
        (
            ("Build on your own config?", DOWN + ENTER),
            CHECKPOINTING,
            ("`ds_config.json` is not used", ""),
        ),
        lambda config, folder: (
            *(config["train_micro_batch_size_per_gpu"], "config" in answers_of(folder)),
        ),
        (2, False),
    ),
    "a learning rate that nobody names is asked for": (
        {"train.py": UNNAMED},
        TWO,
        (("Which learning rate?", "6e-4" + ENTER), CHECKPOINTING, ("lr 0.0006", "")),
        lambda config, folder: (config["optimizer"]["params"]["lr"], answers_of(folder)["lr"]),
        (6e-4, 6e-4),
    ),
    "a precision that zerowiz cannot follow is asked": (
        {"train.py": PICKED},
        TWO,
        (("Which precision?", DOWN + ENTER), CHECKPOINTING),
        lambda config, folder: (config["fp16"]["enabled"], answers_of(folder)["precision"]),
        (True, "fp16"),
    ),
    "a config that the code names is offered as the base": (
        {
            "train.py": CONFIG_ARGUMENTS.replace("args=args", 'config="mine.json"'),
            "mine.json": OWN_CONFIG,
        },
        ("--stage", "2", "train.py"),
        (("Build on your own config?", ENTER, "zerowiz writes all of it"), CHECKPOINTING),
        lambda config, _: (
            *(config["train_micro_batch_size_per_gpu"], config["zero_optimization"]["stage"]),
        ),
        (8, 2),
    ),
    "a person says how a script gets its config": (
        {"train.py": f"{LOOP}import argparse\np = argparse.ArgumentParser()\n"},
        TWO,
        (
            ("it has no `deepspeed.initialize`", DOWN * 2 + ENTER),
            ("How does the script get its config?", "nope" + ENTER),
            ("is not a way to pass a config", "\x7f" * 4 + "none" + ENTER),
            CHECKPOINTING,
        ),
        lambda _, folder: answers_of(folder)["config-via"],
        "none",
    ),
    "a person plans without a script that takes no config": (
        {"train.py": LOOP},
        TWO[:2],
        (
            ("it has no `deepspeed.initialize`", DOWN * 3 + ENTER),
            ("Which parameters does it train?", ENTER),
            CHECKPOINTING,
        ),
        lambda config, _: config["zero_optimization"]["stage"],
        0,
    ),
}


@pytest.mark.parametrize(
    ("files", "words", "turns", "seen", "expected"), ON_SCRIPTS.values(), ids=ON_SCRIPTS
)
def test_what_a_script_leaves_to_a_person_is_asked_and_written(
    terminal: Open,
    folder: Path,
    files: dict[str, str],
    words: tuple[str, ...],
    turns: tuple[tuple[str, ...], ...],
    seen: Seen,
    expected: object,
) -> None:
    for name, text in files.items():
        (folder / name).write_text(text)
    terminal("init", *ON_GPUS, *words).finish(*turns, WRITES)
    (written,) = folder.glob("ds_config_zero[0-9].json")
    assert expected == seen(json.loads(written.read_text()), folder)
    assert files == {name: (folder / name).read_text() for name in files}
