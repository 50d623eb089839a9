"""GRPO with a vLLM in the GPUs that train."""

from trl import GRPOConfig, GRPOTrainer


def length(completions, **_):
    return [-abs(20 - len(each)) for each in completions]


training_args = GRPOConfig(
    output_dir="out",
    per_device_train_batch_size=4,
    gradient_accumulation_steps=8,
    steps_per_generation=4,
    max_prompt_length=512,
    max_completion_length=1024,
    num_generations=8,
    beta=0.04,
    bf16=True,
    use_vllm=True,
    vllm_mode="colocate",
    vllm_gpu_memory_utilization=0.4,
)
trainer = GRPOTrainer(
    model="Qwen/Qwen2.5-7B-Instruct",
    reward_funcs=[length],
    args=training_args,
    train_dataset=[],
)
trainer.train()
