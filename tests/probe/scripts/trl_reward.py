"""A reward model, with adapters on its base."""

from peft import LoraConfig
from transformers import AutoModelForSequenceClassification
from trl import RewardConfig, RewardTrainer

model = AutoModelForSequenceClassification.from_pretrained("Qwen/Qwen2.5-0.5B", num_labels=1)
trainer = RewardTrainer(
    model=model,
    args=RewardConfig(output_dir="out", per_device_train_batch_size=4),
    train_dataset=[],
    peft_config=LoraConfig(task_type="SEQ_CLS", r=8, target_modules=["q_proj", "v_proj"]),
)
trainer.train()
