"""Train a small causal language model with a plain `deepspeed.initialize` loop.

Run it with `deepspeed train_deepspeed.py --deepspeed --deepspeed_config ds_config.json`.
The config decides the ZeRO stage, the micro-batch, the accumulation and the precision; the options
here decide the rest. Copy it, and put your own model and data in `build_model` and `read_tokens`.
"""

import argparse
import os
import sys
from pathlib import Path

import deepspeed
import torch
from deepspeed import comm as dist
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.integrations import HfDeepSpeedConfig

HERE = Path(__file__).parent


def parse_args() -> argparse.Namespace:
    """Read the command line; `--deepspeed_config` is DeepSpeed's own option."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model_config", default=HERE / "model", help="config.json or its folder")
    parser.add_argument("--corpus", type=Path, default=HERE / "corpus.txt")
    parser.add_argument("--output_dir", type=Path, default=Path("out"))
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    parser.add_argument("--seq_len", type=int, default=128)
    parser.add_argument("--steps", type=int, default=30, help="optimizer steps")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gradient_checkpointing", action="store_true")
    parser.add_argument("--local_rank", type=int, default=0, help="passed by the launcher")
    args = deepspeed.add_config_arguments(parser).parse_args()
    if args.deepspeed_config is None:
        parser.error("--deepspeed_config FILE is missing: it decides the stage and the batch")
    return args


def read_tokens(path: Path, seq_len: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The corpus as bytes, one token each: what to train on, and the last tenth in windows."""
    tokens = torch.tensor(list(path.read_bytes()))
    split = len(tokens) * 9 // 10
    held_out = tokens[split:]
    if len(held_out) < seq_len:
        sys.exit(f"{path} is too short for --seq_len {seq_len}")
    return tokens[:split], held_out[: len(held_out) // seq_len * seq_len].view(-1, seq_len)


def draw(tokens: torch.Tensor, rows: int, seq_len: int, generator: torch.Generator) -> torch.Tensor:
    """Draw `rows` windows of the corpus at random places."""
    starts = torch.randint(len(tokens) - seq_len + 1, (rows,), generator=generator)
    return torch.stack([tokens[start : start + seq_len] for start in starts])


def build_model(args: argparse.Namespace, ds_config: HfDeepSpeedConfig) -> PreTrainedModel:
    """Build the model from its config.json with fresh weights, in the precision of the config.

    transformers looks for a living HfDeepSpeedConfig: at stage 3 it then builds under
    `deepspeed.zero.Init`, so that no rank ever holds the whole model.
    """
    dtype = torch.float32
    if ds_config.is_true("bf16.enabled"):
        dtype = torch.bfloat16
    elif ds_config.is_true("fp16.enabled"):
        dtype = torch.float16
    config = AutoConfig.from_pretrained(args.model_config)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.config.use_cache = False
    if args.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    return model


def build_optimizer(
    model: PreTrainedModel, ds_config: HfDeepSpeedConfig, lr: float
) -> torch.optim.Optimizer | None:
    """AdamW where its states live; None when the config's `optimizer` section builds it."""
    if ds_config.get_value("optimizer") is not None:
        return None
    if ds_config.get_value("zero_optimization.offload_optimizer.device", "none") != "none":
        bf16_states = ds_config.is_true("bf16.bf16_optimizer_states")
        return deepspeed.ops.adam.DeepSpeedCPUAdam(
            model.parameters(), lr=lr, fp32_optimizer_states=not bf16_states
        )
    return torch.optim.AdamW(model.parameters(), lr=lr, fused=True)


def train(engine: deepspeed.DeepSpeedEngine, tokens: torch.Tensor, args: argparse.Namespace) -> None:
    """Take the steps that are left, then save; a resumed run draws what an unbroken one would."""
    state = engine.load_checkpoint(args.output_dir)[1] if args.resume else None
    done = state["step"] if state else 0
    rank = dist.get_rank()
    if done and rank == 0:
        print(f"resumed after step {done}")
    rows, micro_steps = engine.train_micro_batch_size_per_gpu(), engine.gradient_accumulation_steps()
    for step in range(done + 1, args.steps + 1):
        generator = torch.Generator().manual_seed(args.seed + 1_000_003 * step + rank)
        step_loss = torch.zeros((), device=engine.device)
        for _ in range(micro_steps):
            batch = draw(tokens, rows, args.seq_len, generator).to(engine.device)
            loss = engine(input_ids=batch, labels=batch).loss
            engine.backward(loss)
            engine.step()
            step_loss += loss.detach() / micro_steps
        if rank == 0 and (step % 5 == 0 or step in {done + 1, args.steps}):
            print(f"step {step}  loss {step_loss.item():.3f}", flush=True)
    engine.save_checkpoint(args.output_dir, client_state={"step": max(done, args.steps)})


@torch.no_grad()
def evaluate(engine: deepspeed.DeepSpeedEngine, held_out: torch.Tensor) -> float:
    """Mean loss over the held-out windows; every rank sees them all, as ZeRO-3 needs."""
    engine.eval()
    batches = held_out.to(engine.device).split(engine.train_micro_batch_size_per_gpu())
    losses = [engine(input_ids=batch, labels=batch).loss * len(batch) for batch in batches]
    return float(sum(losses)) / len(held_out)


def leave() -> None:
    """End this rank when all have ended their work."""
    dist.barrier()
    if deepspeed.get_accelerator().device_name() == "cpu":
        # gloo's thread wants the interpreter lock while Python finalises: one run in ten aborts
        # there ("terminate called without an active exception") with all its work done and saved.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    dist.destroy_process_group()


def main() -> None:
    """Train, save, evaluate."""
    args = parse_args()
    torch.manual_seed(args.seed)
    deepspeed.init_distributed()
    ds_config = HfDeepSpeedConfig(args.deepspeed_config)
    model = build_model(args, ds_config)
    engine, *_ = deepspeed.initialize(
        args=args,
        model=model,
        model_parameters=model.parameters(),
        optimizer=build_optimizer(model, ds_config, args.lr),
    )
    tokens, held_out = read_tokens(args.corpus, args.seq_len)
    train(engine, tokens, args)
    eval_loss = evaluate(engine, held_out)
    if dist.get_rank() == 0:
        print(f"eval_loss {eval_loss:.3f}", flush=True)
    leave()


if __name__ == "__main__":
    main()
