"""What a rank holds where ranks share weights, as AutoTP or AutoEP of a config makes them."""

import json
import re
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
from ranks.harness import BIN, rank_environ, run_loaded

from zerowiz.core.dsconfig.schema import release
from zerowiz.core.memory.buffers import DEEPSPEED_DEFAULTS
from zerowiz.core.memory.rank_sizes import RankSizes, rank_sizes
from zerowiz.core.model.hf_config import model_from_config
from zerowiz.core.strategies import STRATEGIES
from zerowiz.core.workload import Workload
from zerowiz.probe.preflight.read_facts import find_free_port

SCRIPT = Path(__file__).with_name("held_by_ranks.py")
AUTO_TP, AUTO_EP = "tensor_parallel", "expert_parallel"
# A model, what shares it, how many ranks share, and all ranks: the elements that each rank held, and
# those of its master weights. Read at stages 1 and 3, AutoEP with transformers 5.17.
HELD = {
    ("llama", AUTO_TP, 2, 2): (13472, 13472),
    ("llama", AUTO_TP, 2, 4): (13472, 6736),
    ("llama", AUTO_TP, 4, 4): (7840, 7840),
    ("qwen2", AUTO_TP, 2, 2): (13568, 13568),
    ("qwen3", AUTO_TP, 2, 2): (13504, 13504),
    ("mixtral", AUTO_EP, 2, 2): (37280, 30928),
}
# AutoEP of DeepSpeed 0.19.8 ends with a TypeError from here on (transformers 5.22 has no such registry).
FIRST_WITHOUT_AUTO_EP = (5, 23)
TINY = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8}
SECTIONS: dict[str, Callable[[int], dict[str, object]]] = {
    AUTO_TP: lambda ranks: {"autotp_size": ranks},
    AUTO_EP: lambda ranks: {"enabled": True, "autoep_size": ranks, "preset_model": "mixtral"},
}
Case = tuple[str, str, int, int]


def config(kind: str) -> dict[str, object]:
    experts = {"num_local_experts": 4} if kind == "mixtral" else {}
    return {"model_type": kind, **TINY, **HEADS, **experts, "tie_word_embeddings": False}


def sizes(case: Case, stage: int) -> RankSizes:
    kind, key, shared, ranks = case
    model = model_from_config(kind, config(kind))
    strategy = next(s for s in STRATEGIES if s.stage == stage)
    cut = key == AUTO_TP
    step = Workload(tensor_parallel=shared if cut else 1, expert_parallel=1 if cut else shared)
    return rank_sizes(model, step, ranks, strategy, DEEPSPEED_DEFAULTS)


@pytest.mark.parametrize("stage", [1, 3])
@pytest.mark.parametrize("case", HELD, ids=str)
def test_a_rank_holds_what_real_ones_held(case: Case, stage: int) -> None:
    r = sizes(case, stage)
    assert HELD[case] == (r.trainable, r.share)


@pytest.mark.deepspeed
@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in HELD if case[3] == 2], ids=str)
def test_real_ranks_hold_it(tmp_path: Path, case: Case) -> None:
    kind, key, shared, ranks = case
    if key == AUTO_EP and release(version("transformers")) >= FIRST_WITHOUT_AUTO_EP:
        pytest.skip("AutoEP of DeepSpeed 0.19.8 does not train with this transformers")
    done = run_loaded(
        (BIN / "deepspeed", "--num_gpus", str(ranks), "--master_port", str(find_free_port()))
        + (SCRIPT, json.dumps(config(kind)), json.dumps({key: SECTIONS[key](shared)})),
        env=rank_environ(tmp_path / "reports"),
        cwd=tmp_path,
    ).good
    held = re.findall(r"^held (\d+) (\d+)$", done.stdout, re.MULTILINE)
    assert [tuple(map(str, HELD[case]))] * ranks == held
