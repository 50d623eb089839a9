"""Train a small causal language model with a plain `deepspeed.initialize` loop.

Run it with `deepspeed train_deepspeed.py --deepspeed --deepspeed_config ds_config.json`: the config
decides the ZeRO stage, the batch, the precision; the options below decide the rest.
Copy it with `portable_checkpoint/`, and put your own model and data in `build_model` and
`read_tokens`.
"""

import argparse
import os
import signal
import sys
from pathlib import Path

import deepspeed
import torch
from deepspeed import comm as dist
from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF
from portable_checkpoint import check_savable, load, save
from portable_checkpoint.signals import SaveSignals
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.integrations import HfDeepSpeedConfig

HERE = Path(__file__).parent


def parse_args() -> argparse.Namespace:
    """Read the command line; `--deepspeed_config` is DeepSpeed's own option."""
    parser = argparse.ArgumentParser(description="Train a small causal language model")
    parser.add_argument("--model_config", default=HERE / "model", help="config.json or its folder")
    parser.add_argument("--corpus", type=Path, default=HERE / "corpus.txt")
    parser.add_argument("--output_dir", type=Path, default=Path("out"))
    parser.add_argument(
        "--resume", action="store_true", help="go on from the newest checkpoint, of any ZeRO stage"
    )
    parser.add_argument("--save_steps", type=int, default=500, help="and at the end; 0: never")
    parser.add_argument(
        "--save_total_limit", type=int, default=2, help="checkpoints that stay; 0: all"
    )
    parser.add_argument(
        "--save_on_signal", action="store_true", help="SIGUSR1: save; SIGTERM: save and end"
    )
    parser.add_argument("--seq_len", type=int, default=128)
    parser.add_argument("--steps", type=int, default=30, help="optimizer steps in all")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gradient_checkpointing", action="store_true")
    parser.add_argument(
        "--sequence_parallel", type=int, default=1, help="ranks that share each sequence (Ulysses)"
    )
    parser.add_argument("--memory_fraction", type=float, help="of each GPU, to try things out")
    parser.add_argument("--local_rank", type=int, default=0, help="passed by the launcher")
    deepspeed.add_config_arguments(parser)
    args = parser.parse_args()
    if args.deepspeed_config is None:
        parser.error("--deepspeed_config FILE is missing: it decides the stage and the batch")
    return args


def read_tokens(path: Path, seq_len: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The corpus as bytes, one token each: what to train on, and the last tenth in windows."""
    tokens = torch.tensor(list(path.read_bytes()))
    windows = len(tokens) // 10 // seq_len
    if windows == 0:
        sys.exit(f"{path} is too short for --seq_len {seq_len}")
    held_out = windows * seq_len
    return tokens[:-held_out], tokens[-held_out:].view(windows, seq_len)


def build_model(args: argparse.Namespace, ds_config: HfDeepSpeedConfig) -> PreTrainedModel:
    """Build the model from its config.json, with fresh weights in the config's precision.

    transformers sees the living `ds_config`: at stage 3 it builds under `deepspeed.zero.Init`, so
    that no rank ever holds the whole model.
    """
    dtype = torch.float32
    if ds_config.is_true("bf16.enabled"):
        dtype = torch.bfloat16
    elif ds_config.is_true("fp16.enabled"):
        dtype = torch.float16
    config = AutoConfig.from_pretrained(args.model_config, use_cache=False)
    # Some billion random numbers take a CPU minutes, and a GPU none.
    with torch.device(deepspeed.get_accelerator().current_device_name()):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    if args.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    return model


def build_optimizer(
    model: PreTrainedModel, ds_config: HfDeepSpeedConfig, lr: float
) -> torch.optim.Optimizer | None:
    """AdamW where its states live; None when the config's `optimizer` section builds it."""
    if ds_config.get_value("optimizer") is not None:
        return None
    settings = {"lr": lr, "weight_decay": 0.01}
    if ds_config.get_value("zero_optimization.offload_optimizer.device", "none") == "none":
        return torch.optim.AdamW(model.parameters(), **settings, fused=True)
    settings["fp32_optimizer_states"] = not ds_config.is_true("bf16.bf16_optimizer_states")
    return deepspeed.ops.adam.DeepSpeedCPUAdam(model.parameters(), **settings)


def share_sequences(
    model: PreTrainedModel, ds_config: HfDeepSpeedConfig, args: argparse.Namespace
) -> object | None:
    """Let groups of ranks exchange their parts of a sequence around each attention.

    Evaluation runs whole sequences. The engine wants what this returns as its `mpu`.
    """
    if args.sequence_parallel == 1:
        return None
    return UlyssesSPAttentionHF.register_with_transformers(
        model_name_or_path=model,
        core_attn_implementation="sdpa",
        sequence_parallel_size=args.sequence_parallel,
        micro_batch_size=ds_config.get_value("train_micro_batch_size_per_gpu"),
        seq_length_is_variable=True,
        disable_in_eval=True,
    )


def loss_of(engine: deepspeed.DeepSpeedEngine, batch: torch.Tensor) -> torch.Tensor:
    """This rank's part of the mean loss of a batch: all of it, unless ranks share sequences.

    The parts of a group add up to the mean over all tokens of the batch, and so do the gradients.
    """
    ranks = engine.sequence_parallel_size
    if ranks == 1:
        return engine(input_ids=batch, labels=batch).loss
    # Before the cut: the first token of a part is what the part before it has to tell.
    labels = functional.pad(batch[:, 1:], (0, 1), value=-100)
    positions = torch.arange(batch.shape[1], device=batch.device).expand_as(batch)
    place, whole = dist.get_rank() % ranks, (batch, labels, positions)
    ids, labels, positions = (each.chunk(ranks, 1)[place].contiguous() for each in whole)
    return engine(
        input_ids=ids,
        position_ids=positions,
        labels=labels,
        shift_labels=labels,
        num_items_in_batch=batch.numel() - len(batch),
    ).loss


def train(engine: deepspeed.DeepSpeedEngine, tokens: torch.Tensor, args: argparse.Namespace) -> int:
    """Take the steps that are left; a resumed run draws what an unbroken one would.

    Returns:
        The script's exit status: 0, or 143 where SIGTERM ended it.
    """
    if args.save_steps or args.save_on_signal:
        check_savable(engine)
    done = load(engine, args.output_dir).step if args.resume else 0
    signals = SaveSignals() if args.save_on_signal else None
    shape = (engine.train_micro_batch_size_per_gpu(), 1)
    micro_steps, ranks = engine.gradient_accumulation_steps(), engine.sequence_parallel_size
    # DeepSpeed adds the gradients of all ranks, and divides by the groups; at stage 3 by all ranks
    # (0.19.8, runtime/zero/stage3.py, __avg_scatter_grads), so that a group's are too small.
    scale = ranks if engine.zero_optimization_partition_weights() else 1
    # Ranks that share sequences take by turns those that each would have alone.
    first = dist.get_rank() // ranks * ranks
    for step in range(done + 1, args.steps + 1):
        seeds = (args.seed + 1_000_003 * step + first + n for n in range(ranks))
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        mean_loss = torch.zeros((), device=engine.device)
        for micro_step in range(micro_steps):
            generator = generators[micro_step % ranks]
            starts = torch.randint(len(tokens) - args.seq_len, shape, generator=generator)
            batch = tokens[starts + torch.arange(args.seq_len)].to(engine.device)
            loss = loss_of(engine, batch)
            engine.backward(loss * scale)
            engine.step()
            mean_loss += loss.detach() / micro_steps
        if ranks > 1:
            dist.all_reduce(mean_loss, group=engine.mpu.get_sequence_parallel_group())
        if dist.get_rank() == 0 and (step % 5 == 0 or step in {done + 1, args.steps}):
            print(f"step {step}  loss {mean_loss.item():.3f}", flush=True)
        asked = signals.agreed(engine.device) if signals else 0
        if asked or (args.save_steps and (step % args.save_steps == 0 or step == args.steps)):
            texts = {"config.json": engine.module.config.to_json_string()}
            save(engine, args.output_dir, step=step, keep=args.save_total_limit, texts=texts)
        if asked == signal.SIGTERM:
            return 128 + asked
    return 0


def evaluate(engine: deepspeed.DeepSpeedEngine, held_out: torch.Tensor) -> float:
    """Mean loss over the held-out windows; every rank runs them all, as stage 3 needs."""
    engine.eval()
    batches = held_out.to(engine.device).split(engine.train_micro_batch_size_per_gpu())
    with torch.no_grad():
        losses = [engine(input_ids=batch, labels=batch).loss * len(batch) for batch in batches]
    return float(sum(losses)) / len(held_out)


def drop_shared_memory() -> None:
    """Remove what DeepSpeed's CPU op leaves in /dev/shm: 69 MB a rank (csrc/cpu/comm/shm.cpp)."""
    port, rank = os.environ["MASTER_PORT"], os.environ["RANK"]
    for buffer in Path("/dev/shm").glob(
        f"deepspeed_allreduce_buffer_{os.getuid()}_*_{port}_{rank}"
    ):
        buffer.unlink(missing_ok=True)


def leave(status: int) -> None:
    """End this rank once every rank has done its work."""
    dist.barrier()
    if deepspeed.get_accelerator().device_name() == "cpu":
        drop_shared_memory()
        # gloo's thread wants the interpreter lock while Python finalises: one run in ten aborts
        # there ("terminate called without an active exception") with all its work done and saved.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    dist.destroy_process_group()
    sys.exit(status)


def main() -> None:
    """Train, save, evaluate."""
    args = parse_args()
    torch.manual_seed(args.seed)
    deepspeed.init_distributed()
    if args.memory_fraction and torch.cuda.is_available():
        device = int(os.environ["LOCAL_RANK"])  # not set yet: `initialize` does
        torch.cuda.set_per_process_memory_fraction(args.memory_fraction, device)
    ds_config = HfDeepSpeedConfig(args.deepspeed_config)
    model = build_model(args, ds_config)
    optimizer = build_optimizer(model, ds_config, args.lr)
    engine, *_ = deepspeed.initialize(
        args=args,
        model=model,
        model_parameters=model.parameters(),
        optimizer=optimizer,
        mpu=share_sequences(model, ds_config, args),
    )
    tokens, held_out = read_tokens(args.corpus, args.seq_len)
    status = train(engine, tokens, args)
    if status == 0:
        eval_loss = evaluate(engine, held_out)
        if dist.get_rank() == 0:
            print(f"eval_loss {eval_loss:.3f}", flush=True)
    leave(status)


if __name__ == "__main__":
    main()
