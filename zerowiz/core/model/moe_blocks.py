"""Name the modules that hold a model's experts, for ZeRO-3's `leaf_module.classes`."""

from collections.abc import Mapping

from zerowiz.core.model.families import FAMILIES

# transformers 5.23, models/*/modeling_*.py: the class whose `experts` attribute holds the experts;
# by the `model_type` of config.json, and that of the text model inside it. Families with formulas
# have it in their row.
_WITHOUT_A_ROW: Mapping[str, str] = {
    "afmoe": "AfmoeSparseMoeBlock",
    "aria": "AriaTextMoELayer",
    "aria_text": "AriaTextMoELayer",
    "dbrx": "DbrxFFN",
    "deepseek_v2": "DeepseekV2Moe",
    "deepseek_v3": "DeepseekV3MoE",
    "deepseek_v32": "DeepseekV32MoE",
    "dots1": "Dots1MoE",
    "ernie4_5_moe": "Ernie4_5_MoeSparseMoeBlock",
    "flex_olmo": "FlexOlmoSparseMoeBlock",
    "glm4_moe": "Glm4MoeMoE",
    "glm4_moe_lite": "Glm4MoeLiteMoE",
    "glm4v_moe": "Glm4vMoeTextMoE",
    "glm4v_moe_text": "Glm4vMoeTextMoE",
    "gpt_oss": "GptOssMLP",
    "granitemoe": "GraniteMoeMoE",
    "granitemoehybrid": "GraniteMoeHybridMoE",
    "granitemoeshared": "GraniteMoeSharedMoE",
    "hunyuan_v1_moe": "HunYuanMoEV1Moe",
    "jamba": "JambaSparseMoeBlock",
    "kimi_linear": "KimiLinearMoE",
    "lfm2_moe": "Lfm2MoeSparseMoeBlock",
    "llama4": "Llama4TextMoe",
    "llama4_text": "Llama4TextMoe",
    "longcat_flash": "LongcatFlashMoE",
    "minimax": "MiniMaxSparseMoeBlock",
    "minimax_m2": "MiniMaxM2SparseMoeBlock",
    "nemotron_h": "NemotronHMoE",
    "nllb-moe": "NllbMoeSparseMLP",
    "olmoe": "OlmoeSparseMoeBlock",
    "phimoe": "PhimoeSparseMoeBlock",
    "qwen3_5_moe": "Qwen3_5MoeSparseMoeBlock",
    "qwen3_5_moe_text": "Qwen3_5MoeSparseMoeBlock",
    "qwen3_next": "Qwen3NextSparseMoeBlock",
    "qwen3_vl_moe": "Qwen3VLMoeTextSparseMoeBlock",
    "qwen3_vl_moe_text": "Qwen3VLMoeTextSparseMoeBlock",
    "switch_transformers": "SwitchTransformersSparseMLP",
}

# Their experts are modules of their own (`nn.ModuleDict`), and which of them run differs from rank
# to rank. Everywhere else transformers 5 holds all experts of a layer in one tensor, which every
# rank gathers at the same moment: those train without leaf modules, to the same weights.
APART = frozenset({"nllb-moe", "switch_transformers"})

MOE_BLOCKS: Mapping[str, str] = {
    **_WITHOUT_A_ROW,
    **{name: family.moe_block for name, family in FAMILIES.items() if family.moe_block is not None},
}
"""By the `model_type` of every model whose experts are known."""
