"""DPO with a reference that the script loads itself."""

from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer

name = "Qwen/Qwen2.5-7B-Instruct"
model = AutoModelForCausalLM.from_pretrained(name)
ref_model = AutoModelForCausalLM.from_pretrained(name)
args = DPOConfig(
    output_dir="out", beta=0.1, max_length=2048, per_device_train_batch_size=2, bf16=True
)
trainer = DPOTrainer(
    model,
    ref_model,
    args=args,
    train_dataset=[],
    processing_class=AutoTokenizer.from_pretrained(name),
)
trainer.train()
