"""Load checkpoints that other strategies saved, one after the other, write each again, and train on.

GO_ON_FROM names the folders; what this strategy makes of each comes to lie in GO_ON_TO. With none it
trains from the start. GO_ON_ADAPTERS trains adapters on frozen weights. The options are those of
templates/train_deepspeed.py, whose parts this uses.
"""

import os
import sys
from pathlib import Path

import deepspeed
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "templates"))

import train_deepspeed as template  # type: ignore[import-not-found]
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
from peft import LoraConfig, get_peft_model
from portable_checkpoint import load, save  # type: ignore[import-not-found]
from transformers.integrations import HfDeepSpeedConfig


def main() -> None:
    args = template.parse_args()
    sources = os.environ.get("GO_ON_FROM", "")
    adapters = "GO_ON_ADAPTERS" in os.environ
    torch.manual_seed(args.seed + len(sources))  # so that what is not loaded is seen
    deepspeed.init_distributed()
    ds_config = HfDeepSpeedConfig(args.deepspeed_config)
    model = template.build_model(args, ds_config)
    if adapters:
        model = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    optimizer = template.build_optimizer(model, ds_config, args.lr)
    engine, *_ = deepspeed.initialize(
        args=args, model=model, model_parameters=model.parameters(), optimizer=optimizer
    )
    tokens, _ = template.read_tokens(args.corpus, args.seq_len)
    for source in filter(None, sources.split(os.pathsep)):
        folder = Path(os.environ["GO_ON_TO"]) / Path(source).name
        loaded = load(engine, Path(source) / "checkpoint-2")
        save(engine, folder, step=loaded.step, frozen=not adapters)
        args.output_dir, args.resume = folder, True
        template.train(engine, tokens, args)
        see_what_deepspeed_sees(engine, folder / "deepspeed.pt")
    if not sources:
        template.train(engine, tokens, args)
    template.leave(0)


def see_what_deepspeed_sees(engine: deepspeed.DeepSpeedEngine, path: Path) -> None:
    """DeepSpeed's own reading of masters and moments, which it has at stages 1 to 3."""
    if engine.zero_optimization_stage() == 0:
        return
    trained = {n: p for n, p in engine.module.named_parameters() if p.requires_grad}
    seen = {"master": {n: safe_get_full_fp32_param(p).cpu().clone() for n, p in trained.items()}}
    for key in ("exp_avg", "exp_avg_sq"):
        moments = {n: safe_get_full_optimizer_state(p, key) for n, p in trained.items()}
        seen[key] = {n: moment.float().cpu().clone() for n, moment in moments.items()}
    if torch.distributed.get_rank() == 0:
        torch.save(seen, path)


if __name__ == "__main__":
    main()
