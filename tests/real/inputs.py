"""Make the models and the data that the scripts are given; nothing is downloaded.

The text is the licence of this repository. Models are of their family's own classes, with random
weights. Run by the Python that has transformers: `python inputs.py FOLDER`.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

LICENSE = Path(__file__).parents[2] / "LICENSE"
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>", "<mask>")
UNKNOWN = "<unk>"
VOCABULARY = 512
POSITIONS = 256
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}{{ eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)


def make(folder: Path) -> None:
    """Write every model and every file of data into the folder."""
    torch.manual_seed(1)
    sentences = read_sentences()
    tokenizer = train_tokenizer(sentences)
    for name, model in make_models().items():
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    write_data(folder, sentences)


def read_sentences() -> list[str]:
    """The licence's clauses, each on one line."""
    clauses = LICENSE.read_text().split("\n\n")
    return [" ".join(clause.split()) for clause in clauses if len(clause.split()) > 3]


def train_tokenizer(sentences: list[str]) -> PreTrainedTokenizerFast:
    """A tokenizer of this text alone."""
    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences, trainer)
    ends = [(word, tokenizer.token_to_id(word)) for word in ("<s>", "</s>")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=ends
    )
    names = {
        "pad_token": "<pad>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "mask_token": "<mask>",
        "cls_token": "<s>",
        "sep_token": "</s>",
    }
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=POSITIONS, **names)
    made.chat_template = CHAT_TEMPLATE
    return made


def make_models() -> dict[str, Any]:
    """Three families, each of two layers and 64 wide."""
    marks = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    llama = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=POSITIONS,
        **marks,
    )
    bert = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=POSITIONS,
        pad_token_id=0,
    )
    gpt2 = GPT2Config(
        vocab_size=VOCABULARY, n_positions=POSITIONS, n_embd=64, n_layer=2, n_head=4, **marks
    )
    return {
        "llama": LlamaForCausalLM(llama),
        "bert": BertForMaskedLM(bert),
        "gpt2": GPT2LMHeadModel(gpt2),
    }


def write_data(folder: Path, sentences: list[str]) -> None:
    """The text in every form that a script reads."""
    rows = sentences * 12
    halves = [(" ".join(row.split()[:6]), " ".join(row.split()[6:])) for row in rows]
    (folder / "text.txt").write_text("\n".join(rows) + "\n")
    (folder / "texts").mkdir()
    (folder / "texts" / "text.txt").symlink_to(folder / "text.txt")

    write_lines(folder / "sft", [{"text": row} for row in rows])
    (folder / "sft" / "test.jsonl").write_text(json.dumps({"text": rows[0]}) + "\n")
    pairs = [
        {
            "prompt": [{"role": "user", "content": first}],
            "chosen": [{"role": "assistant", "content": rest}],
            "rejected": [{"role": "assistant", "content": first}],
        }
        for first, rest in halves
    ]
    write_lines(folder / "preferences", pairs)
    judged = [
        {"prompt": first, "completion": rest, "label": place % 2 == 0}
        for place, (first, rest) in enumerate(halves)
    ]
    write_lines(folder / "judged", judged)
    asked = [{"instruction": first, "input": "", "output": rest} for first, rest in halves]
    write_lines(folder / "instructions", asked)
    (folder / "instructions.json").write_text(json.dumps(asked))
    talks = [
        {"conversations": [{"from": "human", "value": first}, {"from": "gpt", "value": rest}]}
        for first, rest in halves
    ]
    write_lines(folder / "talks", talks)
    (folder / "talks.json").write_text(
        json.dumps([{"id": str(place), **talk} for place, talk in enumerate(talks)])
    )
    found = [{"query": first, "pos": [rest], "neg": [first[::-1]]} for first, rest in halves]
    (folder / "retrieval.jsonl").write_text("\n".join(map(json.dumps, found)) + "\n")


def write_lines(folder: Path, rows: list[dict[str, Any]]) -> None:
    """A folder that `datasets.load_dataset` takes: its split is named by the file."""
    folder.mkdir(exist_ok=True)
    (folder / "train.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + "\n")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
