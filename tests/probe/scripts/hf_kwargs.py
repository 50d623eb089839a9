import transformers

options = {
    "output_dir": "out",
    "per_device_train_batch_size": 16,
    "activation_checkpointing": True,
}
args = transformers.Seq2SeqTrainingArguments(bf16=True, **options)
transformers.Seq2SeqTrainer(args=args).train()
