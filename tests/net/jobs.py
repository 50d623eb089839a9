"""The jobs that are planned: one command line of `plan` for each, as people write them."""

from typing import NamedTuple

SHORT = "--seq-len 512 --micro-batch 8"
LONG = "--seq-len 32768 --gradient-checkpointing --attention flash"


class Job(NamedTuple):
    """One job, planned with an unknown host memory and with `host_memory`.

    Its name is that of its file. It runs in a folder that has those of tests/probe/scripts.txt, templates/,
    tests/models as `models`, the recordings of tests/machines, as `machine --save` writes them, as `machines`, and the files of `inputs`.
    """

    name: str
    words: str
    host_memory: str | None = "1TiB"
    """None where the machine has its own: it is planned once."""
    screen: bool = False
    """Whether its text is kept too, not only its JSON."""


JOBS = (
    # Machines.
    Job("7b-8xH100", "--model 7b --machine 8xH100", screen=True),
    Job("7b-4xA100-40", "--model 7b --machine 4xA100-40GB", "512GiB", screen=True),
    Job("7b-2x4090", "--model 7b --machine 2xRTX4090", "64GiB", screen=True),
    Job("7b-1xA100", "--model 7b --machine 1xA100-80GB", "256GiB", screen=True),
    Job("7b-8xV100", "--model 7b --machine 8xV100", "512GiB", screen=True),
    Job("7b-8x4090", "--model 7b --machine 8xRTX4090 --micro-batch 1", "512GiB"),
    Job("7b-4x-infiniband", "--model 7b --machine 4x8xH100 --interconnect infiniband:400Gb/s"),
    Job("70b-4x-infiniband", "--model 70b --machine 4x8xH100 --interconnect infiniband:400Gb/s"
        " --gradient-checkpointing", "2TiB", screen=True),
    Job("7b-2x-slow", "--model 7b --machine 2x8xA100-40GB --interconnect ethernet:10Gb/s"),
    Job("7b-2x-allow-slow", "--model 7b --machine 2x8xA100-40GB"
        " --interconnect ethernet:10Gb/s --allow-slow", screen=True),
    Job("70b-nodes", "--model 70b --machine 8xH100 --nodes 4 --gradient-checkpointing"),
    Job("8b-instance", "--model llama-3.1-8b --machine p5.48xlarge", None, screen=True),
    Job("8b-instance-a100", "--model llama-3.1-8b --machine p4d.24xlarge", None),
    Job("8b-h200-file", "--model llama-3.1-8b --machine machines/h200-x4.json", None),
    Job("1b-busy-file", "--model 1b --machine machines/h200-x4-busy.json", None),
    Job("8b-v100-cube", "--model llama-3.1-8b --machine machines/synthetic/dgx1v-cube.json"
        " --gradient-checkpointing", None),
    Job("1b-mig", "--model 1b --machine machines/synthetic/a100-mig.json", None),
    Job("8b-lora-8xL40S", "--model llama-3.1-8b --machine 8xL40S --method lora"),
    Job("32b-8xB200", "--model qwen3-32b --machine 8xB200", "2TiB"),
    Job("1b-cpu", "--model 1b --machine inputs/cpu.json --gpus-per-node 2", None),
    Job("8b-some-gpus", "--model llama-3.1-8b --machine 8xH100 --gpus-per-node 4"),
    Job("8b-catalog", "--model llama-3.1-8b --machine all --method lora", None, screen=True),
    # Models.
    Job("8b-4xA100", "--model llama-3.1-8b --machine 4xA100-80GB"),
    Job("1b-1xH100", "--model 1b --machine 1xH100", "128GiB"),
    Job("3b-2x3090", "--model 3b --machine 2xRTX3090 --gradient-checkpointing", "64GiB"),
    Job("13b-8xA100-40", "--model 13b --machine 8xA100-40GB"),
    Job("32b-8xH100", "--model 32b --machine 8xH100"),
    Job("70b-8xH100", "--model 70b --machine 8xH100 --gradient-checkpointing", "2TiB"),
    Job("qwen-14b", "--model qwen2.5-14b --machine 8xA100-80GB"),
    Job("qwen-0.5b", f"--model models/qwen2.5-0.5b --machine 2xH100 {SHORT}"),
    Job("moe-mixtral", "--model mixtral-8x7b --machine 8xH100 --gradient-checkpointing", "2TiB",
        screen=True),
    Job("moe-qwen", "--model models/qwen1.5-moe-a2.7b --machine 8xA100-80GB"),
    Job("t5", "--model models/flan-t5-base --machine 4xA100-40GB --micro-batch 16 --seq-len 512"),
    Job("bert", "--model models/bert-base --machine 2xRTX4090 --micro-batch 32"),
    Job("vit", "--model models/vit-base --machine 2xRTX4090 --micro-batch 64", screen=True),
    Job("gpt2", "--model models/gpt2-medium --machine 4xV100-16GB --micro-batch 8"),
    Job("gemma", "--model models/gemma-2-2b --machine 2xA100-40GB --seq-len 4096"),
    Job("falcon", "--model models/falcon-7b --machine 8xA100-40GB"),
    # Methods, and the training step.
    Job("8b-lora", "--model llama-3.1-8b --machine 2xRTX4090 --method lora --lora-rank 64",
        "128GiB", screen=True),
    Job("8b-lora-modules", "--model llama-3.1-8b --machine 4xA100-40GB --method lora"
        " --lora-target-modules q_proj,v_proj --gradient-checkpointing"),
    Job("70b-qlora", "--model 70b --machine 2xA100-80GB --method qlora --gradient-checkpointing",
        "512GiB", screen=True),
    Job("8b-qlora", "--model llama-3.1-8b --machine 1xRTX4090 --method qlora", "64GiB"),
    Job("7b-fp16", "--model 7b --machine 8xA100-40GB --precision fp16"),
    Job("1b-fp32", "--model 1b --machine 4xA100-40GB --precision fp32"),
    Job("1b-autocast", "--model 1b --machine 4xA100-40GB --precision fp32 --torch-autocast bf16"),
    Job("7b-bf16-states", "--model 7b --machine 4xH100 --optimizer-state-dtype bf16"),
    Job("7b-adam-8bit", "--model 7b --machine 4xA100-80GB --optimizer adamw_8bit"),
    Job("7b-adafactor", "--model 7b --machine 4xA100-80GB --optimizer adafactor"),
    Job("7b-lion", "--model 7b --machine 4xA100-80GB --optimizer lion"),
    Job("7b-sgd", "--model 7b --machine 4xA100-80GB --optimizer sgd"),
    Job("8b-long", f"--model llama-3.1-8b --machine 8xH100 {LONG}", screen=True),
    Job("8b-long-liger", f"--model llama-3.1-8b --machine 8xH100 {LONG} --loss liger"),
    Job("8b-chunked", "--model llama-3.1-8b --machine 8xH100 --loss chunked --seq-len 8192"),
    Job("7b-eager", "--model 7b --machine 8xA100-80GB --attention eager --seq-len 4096"),
    Job("8b-packed", "--model llama-3.1-8b --machine 8xH100 --packing --micro-batch 4"
        " --attention flash"),
    Job("8b-accumulation", "--model llama-3.1-8b --machine 8xH100 --micro-batch 2 --grad-accum 8"),
    Job("8b-global-batch", "--model llama-3.1-8b --machine 8xH100 --global-batch 256",
        screen=True),
    Job("8b-eval", "--model llama-3.1-8b --machine 8xH100 --eval-batch 16"),
    # Choices.
    Job("8b-stage0", "--model 1b --machine 8xH100 --stage 0"),
    Job("8b-stage1", "--model llama-3.1-8b --machine 8xA100-80GB --stage 1"),
    Job("8b-stage2-offload", "--model llama-3.1-8b --machine 4xA100-40GB --stage 2"
        " --offload optimizer", "512GiB"),
    Job("8b-stage3", "--model llama-3.1-8b --machine 8xA100-80GB --stage 3", screen=True),
    Job("8b-stage3-offload", "--model llama-3.1-8b --machine 2xRTX4090 --stage 3 --offload all"
        " --gradient-checkpointing", "256GiB", screen=True),
    Job("13b-nvme", "--model 13b --machine 2xRTX4090 --stage 3 --offload all --nvme-path nvme"
        " --gradient-checkpointing", "64GiB"),
    Job("70b-hpz", "--model 70b --machine 4x8xH100 --interconnect infiniband:400Gb/s --stage 3"
        " --hpz --gradient-checkpointing", "2TiB"),
    Job("70b-quantized", "--model 70b --machine 4x8xH100 --interconnect infiniband:400Gb/s"
        " --stage 3 --quantized-weights --gradient-checkpointing", "2TiB"),
    Job("8b-fastest", "--model llama-3.1-8b --machine 8xH100 --objective fastest"
        " --global-batch 128", screen=True),
    Job("8b-smallest", "--model llama-3.1-8b --machine 8xA100-40GB --objective smallest",
        screen=True),
    Job("7b-fastest-4090", "--model 7b --machine 8xRTX4090 --objective fastest", "512GiB"),
    Job("7b-textbook", "--model 7b --machine 4xA100-40GB --accounting textbook", screen=True),
    Job("8b-budget", "--model llama-3.1-8b --machine 8xH100 --memory-budget 30GiB"),
    Job("8b-budget-fraction", "--model llama-3.1-8b --machine 8xH100 --memory-budget 0.5"),
    Job("8b-limits", "--model llama-3.1-8b --machine 4xA100-40GB --method lora --limits",
        screen=True),
    Job("8b-cost", "--model llama-3.1-8b --machine all --price H100-80GB=2.50,p5.48xlarge=3", None,
        screen=True),
    # What fits nothing, and what helps.
    Job("70b-2x4090", "--model 70b --machine 2xRTX4090", "64GiB", screen=True),
    Job("70b-lora-1xA100", "--model 70b --machine 1xA100-80GB --method lora", "128GiB",
        screen=True),
    Job("13b-long-4xA100-40", "--model 13b --machine 4xA100-40GB --seq-len 16384", "128GiB"),
    Job("8b-stage1-too-big", "--model llama-3.1-8b --machine 2xRTX4090 --stage 1"),
    # Trainers.
    Job("8b-dpo", "--model llama-3.1-8b --machine 8xH100 --trainer dpo", screen=True),
    Job("8b-dpo-precomputed", "--model llama-3.1-8b --machine 8xH100 --trainer dpo"
        " --reference precomputed"),
    Job("1b-grpo", "--model 1b --machine 8xA100-80GB --trainer grpo --completion-tokens 1024",
        screen=True),
    Job("1b-grpo-vllm", "--model 1b --machine 8xA100-80GB --trainer grpo"
        " --vllm-memory-fraction 0.3 --vllm-sleeps"),
    Job("8b-reward", "--model llama-3.1-8b --machine 8xH100 --trainer reward"),
    Job("1b-kto", "--model 1b --machine 4xA100-40GB --trainer kto --micro-batch 4"),
    Job("1b-ppo", "--model 1b --machine 8xA100-80GB --trainer ppo"),
    Job("1b-rloo", "--model 1b --machine 8xA100-80GB --trainer rloo --generation-batch 32"),
    # Scripts, and a person's own files.
    Job("script-hf-parser", "--machine 8xH100 hf_parser.py --output_dir out", screen=True),
    Job("script-hf-in-code", "--model 7b --machine 4xA100-40GB hf_in_code.py", screen=True),
    Job("script-trl-sft", "--machine 8xH100 hf_parser_trl.py --model_name_or_path"
        " models/llama-3.1-8b --bf16 --max_length 4096"),
    Job("script-trl-lora", "--machine 2xRTX4090 lora_trl_sft.py"),
    Job("script-qlora", "--machine 1xRTX4090 lora_qlora_tutorial.py"),
    Job("script-dpo", "--machine 8xA100-80GB trl_dpo_in_code.py"),
    Job("script-grpo", "--model 1b --machine 8xA100-80GB trl_grpo_vllm.py"),
    Job("script-accelerate", "--model 1b --machine 4xA100-40GB accelerate_bare.py", screen=True),
    Job("script-raw", "--model 1b --machine 4xA100-40GB raw_own_flag.py", screen=True),
    Job("script-raw-literal", "--model 1b --machine 4xA100-40GB raw_literal.py"),
    Job("script-lightning", "--model 1b --machine 4xA100-40GB lightning.py"),
    Job("script-own-flag", "--model 7b --machine 8xA100-40GB hf_own_flag.py"),
    Job("template-hf", "--model 1b --machine 4xA100-40GB templates/train_hf.py"),
    Job("template-deepspeed", "--model 1b --machine 4xA100-40GB templates/train_deepspeed.py"),
    Job("config-zero2", "--model 7b --machine 8xH100 --config inputs/zero2.json", screen=True),
    Job("config-zero3-offload", "--model 7b --machine 4xA100-40GB"
        " --config inputs/zero3_offload.json", "512GiB"),
    Job("config-with-script", "--model 7b --machine 8xH100 --config inputs/zero2.json"
        " hf_parser.py --output_dir out --per_device_train_batch_size 4"),
    Job("compare", "--model 7b --machine 4xA100-40GB --compare --machine 8xH100"),
)  # fmt: skip

# What `launch --dry-run` would write and start; the whole text of each is kept.
LAUNCHES = {
    "hf-parser": "--machine 8xH100 --model 7b hf_parser.py --output_dir out",
    "hf-parser-fastest": "--machine 8xH100 --model 7b --objective fastest hf_parser.py"
    " --output_dir out",
    "hf-in-code": "--machine 8xA100-80GB --model 7b --stage 3 hf_in_code.py",
    "hf-literal": "--machine 4xA100-40GB --model 1b hf_literal.py",
    "trl-lora": "--machine 2xRTX4090 lora_trl_sft.py",
    "dpo": "--machine 8xA100-80GB trl_dpo_in_code.py",
    "accelerate": "--machine 4xA100-40GB --model 1b accelerate_bare.py",
    "raw-own-flag": "--machine 4xA100-40GB --model 1b --micro-batch 4 --lr 5e-5 raw_own_flag.py",
    "raw-offload": "--machine 2xRTX4090 --model 7b --stage 3 --offload all --host-memory 256GiB"
    " --micro-batch 1 --lr 5e-5 raw_own_flag.py",
    "nvme": "--machine 2xRTX4090 --model 13b --stage 3 --offload all --nvme-path nvme"
    " --host-memory 96GiB hf_parser.py --output_dir out",
    "own-config": "--machine 8xH100 --model 7b --config inputs/zero2.json hf_parser.py"
    " --output_dir out",
    "too-big": "--machine 2xRTX4090 --model 70b --host-memory 64GiB hf_parser.py --output_dir out",
    "torchrun": "--machine 4xA100-40GB --model 1b torchrun --nproc_per_node 4 hf_parser.py"
    " --output_dir out",
    "template-hf": "--machine 4xA100-40GB --model models/llama-3.2-1b templates/train_hf.py",
    "template-deepspeed": "--machine 4xA100-40GB --model models/llama-3.2-1b"
    " templates/train_deepspeed.py",
    "unreachable": "--machine 4xA100-40GB --model 1b raw_dict.py",
}
