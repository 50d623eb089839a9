"""The usual notebook turned into a script: everything is written down in it."""

from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer
from transformers import TrainingArguments as TA

MODEL = "Qwen/Qwen2.5-0.5B"
BATCH = 4

tokenizer = AutoTokenizer.from_pretrained(MODEL)
model = AutoModelForCausalLM.from_pretrained(MODEL, attn_implementation="flash_attention_2")


def tokenize(rows):
    return tokenizer(rows["text"], truncation=True, max_length=2 * 512)


data = load_dataset("wikitext", "wikitext-2-raw-v1", split="train").map(tokenize, batched=True)
training_args = TA(
    output_dir="out",
    num_train_epochs=3,
    per_device_train_batch_size=BATCH,
    gradient_accumulation_steps=4,
    learning_rate=2e-4,
    fp16=True,
    optim="adamw_bnb_8bit",
)
Trainer(model=model, args=training_args, train_dataset=data).train()
