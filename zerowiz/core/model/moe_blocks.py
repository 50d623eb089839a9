"""The classes of modules that hold a model's experts, for ZeRO-3's `leaf_module.classes`."""

from collections.abc import Mapping

from zerowiz.core.model.families import FAMILIES

# transformers 5.23, models/*/modeling_*.py: the class whose `experts` attribute holds the experts,
# by the `model_type` of config.json or of its text model. A family of FAMILIES has it in its row.
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

# Their experts are separate modules (`nn.ModuleDict`), and different experts run on different
# ranks. In all other models transformers 5 holds the experts of a layer in one tensor, which all
# ranks gather at the same time. Those models train to the same weights without leaf modules.
APART = frozenset({"nllb-moe", "switch_transformers"})

MOE_BLOCKS: Mapping[str, str] = {
    **_WITHOUT_A_ROW,
    **{name: family.moe_block for name, family in FAMILIES.items() if family.moe_block is not None},
}
"""By the `model_type` of every model whose experts are known."""
