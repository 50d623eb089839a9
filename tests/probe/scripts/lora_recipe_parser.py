"""A recipe's fields as options, in the manner of axolotl: `--adapter` says how to train."""

import argparse

import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--base_model", default="NousResearch/Llama-2-7b-hf")
    p.add_argument("--adapter", choices=["lora", "qlora", "none"], default="lora")
    p.add_argument("--lora_r", type=int, default=32)
    p.add_argument("--lora_target_modules", nargs="+", default=["q_proj", "k_proj", "v_proj"])
    p.add_argument("--sequence_len", type=int, default=4096, dest="sequence_length")
    p.add_argument("--micro_batch_size", type=int, default=2)
    p.add_argument("--gradient_accumulation_steps", type=int, default=4)
    p.add_argument("--gradient_checkpointing", action="store_true")
    p.add_argument("--optimizer", default="adamw_bnb_8bit")
    p.add_argument("--bf16", action=argparse.BooleanOptionalAction, default=True)
    return p.parse_args()


def load_model(args):
    quantization = None
    if args.adapter == "qlora":
        quantization = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)
    model = AutoModelForCausalLM.from_pretrained(args.base_model, quantization_config=quantization)
    if args.adapter == "qlora":
        model = prepare_model_for_kbit_training(
            model, use_gradient_checkpointing=args.gradient_checkpointing
        )
    return model


def add_adapter_to(model, args):
    lora = LoraConfig(r=args.lora_r, target_modules=args.lora_target_modules)
    return get_peft_model(model, lora)


def main():
    args = parse_args()
    model = load_model(args)
    if args.adapter in ("lora", "qlora"):
        model = add_adapter_to(model, args)
    training = TrainingArguments(
        output_dir="out",
        per_device_train_batch_size=args.micro_batch_size,
        gradient_accumulation_steps=args.gradient_accumulation_steps,
        gradient_checkpointing=args.gradient_checkpointing,
        optim=args.optimizer,
        bf16=args.bf16,
    )
    Trainer(model=model, args=training, train_dataset=load_rows(args)).train()


if __name__ == "__main__":
    main()
