"""What is typed for each public script, and where the script is from."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Source(NamedTuple):
    """A folder of a public repository at one commit, or of an installed package (no commit).

    The script is started in that folder, of which the parts in `part` are needed.
    """

    name: str
    commit: str
    folder: str
    part: str = ""


TRANSFORMERS = ("huggingface/transformers", "cc041637bc2b3639bba0b8f85672c1653cdb6248")
ACCELERATE = ("huggingface/accelerate", "16cb6eb80dd9aa8b4df1a63ef57863e455d53b83")
EXAMPLES = ("deepspeedai/DeepSpeedExamples", "45b4b7156c8794a3452a5a7d03dbd8d797068569")
PEFT = ("huggingface/peft", "5d602fdbff04c33c1c4de55cda9d4ae1d7cb7e40")
MEDICAL = ("shibing624/MedicalGPT", "2f1008cfa49cbba69ff6f138c3b5e2fb0646bdc7")

LANGUAGE = Source(*TRANSFORMERS, "examples/pytorch/language-modeling")
FEATURES = Source(*ACCELERATE, "examples/by_feature")
SUPEROFFLOAD = Source(*EXAMPLES, "training/DeepSpeed-SuperOffload")
TENSOR_PARALLEL = Source(*EXAMPLES, "training/tensor_parallel/hf_integration", "train.py")
PEFT_SFT = Source(*PEFT, "examples/sft")
MEDICAL_TRAINING = Source(*MEDICAL, "", "training")
FASTCHAT = Source("lm-sys/FastChat", "0e6d3e4beaab66f4d3f93db72541a4abab8af28d", "", "fastchat")
EMBEDDING = Source(
    "FlagOpen/FlagEmbedding", "7ed43d67ec03fbe5c31c0992dbfa941fb1860549", "", "FlagEmbedding"
)
LLMBOX = Source("RUCAIBox/LLMBox", "5a1cfe2ca6d296f2fdc171119012d8fa2cf2fc41", "training")
LESS = Source("princeton-nlp/LESS", "8abf9628b9a814ac3045445eebc8ba3c908fdc78", "", "less")
TRL = Source("trl", "", "scripts")


class Case(NamedTuple):
    """One launch: the options of zerowiz, the script and its words.

    `added` are words of these that only zerowiz asked for. `files` are written beside the script.
    `rows_per_sample` is what a script puts into one batch for each sample of it. `old` is a script
    that no accelerate since 1.0, or no transformers since 5.0, runs: it compares with
    `DistributedType.TPU`, or passes `tokenizer=` to a Trainer.
    """

    name: str
    source: Source
    options: str
    script: str
    added: str = ""
    files: Mapping[str, str] = MappingProxyType({})
    rows_per_sample: int = 1
    old: bool = False


CASES = (
    Case(
        "run_clm",
        LANGUAGE,
        "--stage 2 --precision bf16",
        "run_clm.py --model_name_or_path llama --train_file text.txt --do_train --block_size 64"
        " --max_steps 3 --per_device_train_batch_size 2 --output_dir out",
    ),
    Case(
        "run_clm-settled",
        LANGUAGE,
        "--stage 3 --micro-batch 2 --grad-accum 2 --gradient-checkpointing",
        "run_clm.py --model_name_or_path llama --train_file text.txt --do_train --block_size 64"
        " --max_steps 3 --output_dir out",
    ),
    Case(
        "run_clm-json",
        LANGUAGE,
        "--stage 2 --micro-batch 2",
        "run_clm.py args.json",
        files={
            "args.json": """{
  "model_name_or_path": "llama", "train_file": "text.txt", "do_train": true, "block_size": 64,
  "max_steps": 3, "gradient_accumulation_steps": 2, "output_dir": "out"
}
"""
        },
    ),
    Case(
        "run_clm_no_trainer",
        LANGUAGE,
        "--stage 2 --micro-batch 2 --grad-accum 2",
        "run_clm_no_trainer.py --model_name_or_path gpt2 --train_file text.txt --block_size 64"
        " --max_train_steps 3 --output_dir out",
        old=True,
    ),
    Case(
        "run_mlm",
        LANGUAGE,
        "--stage 3",
        "run_mlm.py --model_name_or_path bert --train_file text.txt --do_train --max_seq_length 64"
        " --max_steps 3 --per_device_train_batch_size 2 --output_dir out",
    ),
    Case(
        "sft",
        TRL,
        "--stage 3 --micro-batch 2 --grad-accum 2",
        "sft.py --model_name_or_path llama --dataset_name sft --max_length 64 --max_steps 3"
        " --output_dir out",
    ),
    Case(
        "sft-lora",
        TRL,
        "--stage 2",
        "sft.py --model_name_or_path llama --dataset_name sft --max_length 64 --max_steps 3"
        " --per_device_train_batch_size 2 --use_peft --lora_r 4 --output_dir out",
    ),
    Case(
        "sft-yaml",
        TRL,
        "--stage 2 --micro-batch 2",
        "sft.py --config sft.yaml",
        files={
            "sft.yaml": """model_name_or_path: llama
dataset_name: sft
max_length: 64
max_steps: 3
gradient_accumulation_steps: 2
output_dir: out
"""
        },
    ),
    Case(
        "dpo",
        TRL,
        "--stage 2 --micro-batch 2",
        "dpo.py --model_name_or_path llama --dataset_name preferences --max_length 64"
        " --max_steps 3 --output_dir out",
        rows_per_sample=2,
    ),
    Case(
        "reward",
        TRL,
        "--stage 2 --micro-batch 2 --no-gradient-checkpointing",
        "reward.py --model_name_or_path llama --dataset_name preferences --max_length 64"
        " --max_steps 3 --output_dir out",
        rows_per_sample=2,
    ),
    Case(
        "kto",
        TRL,
        "--stage 3 --micro-batch 2",
        "kto.py --model_name_or_path llama --dataset_name judged --max_length 64 --max_steps 3"
        " --output_dir out",
    ),
    Case(
        "deepspeed_with_config_support",
        FEATURES,
        "--stage 2 --micro-batch 2 --grad-accum 2",
        "deepspeed_with_config_support.py --model_name_or_path gpt2 --train_file text.txt"
        " --block_size 64 --max_train_steps 3 --output_dir out",
    ),
    Case(
        "finetune_zero3",
        SUPEROFFLOAD,
        "--stage 3 --micro-batch 2",
        "finetune_zero3.py --model_name llama --dataset_name instructions --lr 1e-3"
        " --batch_size 2 --max_length 64 --attn_implementation sdpa --bench_steps 3"
        " --output_dir out",
    ),
    Case(
        "tensor_parallel",
        TENSOR_PARALLEL,
        "--stage 2 --micro-batch 2",
        "train.py --model_name_or_path llama --data_path instructions.json"
        " --model_max_length 64 --max_steps 3 --output_dir out",
    ),
    Case(
        "peft-sft",
        PEFT_SFT,
        "--stage 2 --micro-batch 2 --seq-len 64 --gradient-checkpointing --method lora"
        " --lora-rank 4 --lora-target-modules q_proj,v_proj",
        "train.py --model_name_or_path llama --dataset_name sft"
        " --use_peft_lora True --lora_r 4 --lora_target_modules q_proj,v_proj"
        " --dataset_text_field text --max_length 64 --max_steps 3 --output_dir out",
        added="--seq-len 64 --gradient-checkpointing --method lora --lora-rank 4"
        " --lora-target-modules q_proj,v_proj",
    ),
    Case(
        "medical-sft",
        MEDICAL_TRAINING,
        "--stage 2 --grad-accum 2",
        "training/supervised_finetuning.py --model_name_or_path llama --train_file_dir talks --do_train"
        " --use_peft False --model_max_length 64 --max_steps 3 --per_device_train_batch_size 2"
        " --output_dir out",
    ),
    Case(
        "medical-pretraining",
        MEDICAL_TRAINING,
        "--stage 1 --micro-batch 2 --grad-accum 2 --gradient-checkpointing",
        "training/pretraining.py --model_name_or_path llama --train_file_dir texts --do_train"
        " --use_peft False --block_size 64 --max_steps 3 --output_dir out",
    ),
    Case(
        "fastchat",
        FASTCHAT,
        "--stage 2 --micro-batch 2 --grad-accum 2",
        "-m fastchat.train.train --model_name_or_path llama --data_path talks.json"
        " --model_max_length 64 --max_steps 3 --output_dir out",
        old=True,
    ),
    Case(
        "bge-embedder",
        EMBEDDING,
        "--stage 1 --micro-batch 2 --grad-accum 2",
        "-m FlagEmbedding.finetune.embedder.encoder_only.base --model_name_or_path bert"
        " --train_data retrieval.jsonl --train_group_size 2 --query_max_len 32"
        " --passage_max_len 64 --max_steps 3 --output_dir out",
        old=True,
    ),
    Case(
        "bge-decoder",
        EMBEDDING,
        "--stage 2",
        "-m FlagEmbedding.finetune.embedder.decoder_only.base --model_name_or_path llama"
        " --train_data retrieval.jsonl --train_group_size 2 --query_max_len 32"
        " --passage_max_len 64 --use_lora False --per_device_train_batch_size 2 --max_steps 3"
        " --output_dir out",
        old=True,
    ),
    Case(
        "llmbox",
        LLMBOX,
        "--stage 3 --micro-batch 2 --gradient-checkpointing",
        "train.py --model_name_or_path llama --data_path data/ --dataset alpaca_data_1k.json"
        " --use_flash_attention False --tf32 False --model_max_length 64 --max_steps 3"
        " --output_dir out",
        old=True,
    ),
    Case(
        "less",
        LESS,
        "--stage 3 --grad-accum 2",
        "-m less.train.train --model_name_or_path llama --train_files asked.jsonl"
        " --max_seq_length 64 --per_device_train_batch_size 2 --learning_rate 2e-3"
        " --max_grad_norm 0.5 --max_steps 3 --output_dir out",
        files={"asked.jsonl": '{"prompt": "Name a clause", "completion": "of the licence"}\n' * 24},
        old=True,
    ),
)
