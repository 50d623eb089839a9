from trl import SFTConfig, SFTTrainer

args = SFTConfig(output_dir="out", per_device_train_batch_size=4, packing=True, use_liger_kernel=True)
SFTTrainer(model="Qwen/Qwen2.5-0.5B", args=args).train()
