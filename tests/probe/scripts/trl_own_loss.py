"""A Trainer of the script's own, with a loss of its own."""

from transformers import AutoModelForCausalLM, Trainer, TrainingArguments


class ContrastiveTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **_):
        near = model(**inputs["near"]).logits
        far = model(**inputs["far"]).logits
        loss = (near - far).mean()
        return (loss, near) if return_outputs else loss


model = AutoModelForCausalLM.from_pretrained("gpt2")
args = TrainingArguments(output_dir="out", per_device_train_batch_size=2, bf16=True)
trainer = ContrastiveTrainer(model=model, args=args, train_dataset=[])
trainer.train()
