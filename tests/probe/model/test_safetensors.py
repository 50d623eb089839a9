"""Headers and indexes read without weights, and held against the config beside them."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from zerowiz.core.model.hf_config import model_from_config
from zerowiz.core.model.types import Model, ModelSource
from zerowiz.errors import UsageError
from zerowiz.probe.model.hf import model_of, parse_header, parse_index, read_config, read_stored

CONFIG: dict[str, object] = {
    "model_type": "gpt2",
    "vocab_size": 7,
    "n_embd": 4,
    "n_layer": 1,
    "n_head": 2,
    "n_positions": 5,
}
SHAPES: dict[str, list[int]] = {
    "transformer.wte.weight": [7, 4],
    "transformer.wpe.weight": [5, 4],
    "transformer.h.0.ln_1.weight": [4],
    "transformer.h.0.ln_1.bias": [4],
    "transformer.h.0.attn.c_attn.weight": [4, 12],
    "transformer.h.0.attn.c_attn.bias": [12],
    "transformer.h.0.attn.c_proj.weight": [4, 4],
    "transformer.h.0.attn.c_proj.bias": [4],
    "transformer.h.0.ln_2.weight": [4],
    "transformer.h.0.ln_2.bias": [4],
    "transformer.h.0.mlp.c_fc.weight": [4, 16],
    "transformer.h.0.mlp.c_fc.bias": [16],
    "transformer.h.0.mlp.c_proj.weight": [16, 4],
    "transformer.h.0.mlp.c_proj.bias": [4],
    "transformer.ln_f.weight": [4],
    "transformer.ln_f.bias": [4],
}
PARAMS = model_from_config("a", CONFIG).params
# What older releases saved with the weights, and a tied weight that is saved twice.
EXTRA: dict[str, list[int]] = {
    "transformer.h.0.attn.bias": [1, 1, 5, 5],
    "transformer.h.0.attn.masked_bias": [],
    "lm_head.weight": [7, 4],
}


def read_model(text: str, *, environ: Mapping[str, str]) -> Model:
    return model_of(text, read_config(text, environ=environ))


def write_weights(path: Path, shapes: Mapping[str, list[int]], dtype: str = "BF16") -> None:
    """A file of safetensors whose weights were cut off: only its header is read."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    for name, shape in shapes.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [0, 0]}
    content = json.dumps(header).encode()
    path.write_bytes(len(content).to_bytes(8, "little") + content)


def split_weights(folder: Path) -> None:
    """Two files and their index."""
    names = sorted(SHAPES)
    parts = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file_name, held in parts.items():
        write_weights(folder / file_name, {name: SHAPES[name] for name in held})
    weight_map = {name: file_name for file_name, held in parts.items() for name in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def test_a_checkpoint_that_agrees_confirms_the_count(folder: Path) -> None:
    write_weights(folder / "model.safetensors", SHAPES)
    model = read_model(str(folder), environ={})
    assert (PARAMS, ModelSource.SAFETENSORS) == (model.params, model.source)
    assert model.stored_params is None


def test_a_checkpoint_in_parts_is_read_through_its_index(folder: Path) -> None:
    split_weights(folder)
    assert ModelSource.SAFETENSORS == read_model(str(folder), environ={}).source


def test_buffers_and_a_tied_head_are_no_more_parameters(folder: Path) -> None:
    write_weights(folder / "model.safetensors", {**SHAPES, **EXTRA})
    assert ModelSource.SAFETENSORS == read_model(str(folder), environ={}).source


def test_the_count_of_an_unknown_family_is_that_of_its_checkpoint(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({**CONFIG, "model_type": "unheard_of"}))
    guessed = read_model(str(folder), environ={})
    write_weights(folder / "model.safetensors", SHAPES)
    counted = read_model(str(folder), environ={})
    assert PARAMS == counted.params != guessed.params
    assert (ModelSource.GUESS, ModelSource.GUESS) == (guessed.source, counted.source)


def test_a_head_that_is_not_tied_counts(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({**CONFIG, "tie_word_embeddings": False}))
    write_weights(folder / "model.safetensors", {**SHAPES, "lm_head.weight": [7, 4]})
    model = read_model(str(folder), environ={})
    assert (PARAMS + 7 * 4, ModelSource.SAFETENSORS) == (model.params, model.source)


def test_a_checkpoint_that_disagrees_is_named_and_the_config_counts(folder: Path) -> None:
    write_weights(folder / "model.safetensors", {**SHAPES, "transformer.wte.weight": [9, 4]})
    model = read_model(str(folder), environ={})
    assert (PARAMS, ModelSource.CONFIG) == (model.params, model.source)
    assert PARAMS + 2 * 4 == model.stored_params


def test_a_download_that_is_not_finished_says_nothing(folder: Path) -> None:
    split_weights(folder)
    (folder / "model-2.safetensors").unlink()
    model = read_model(str(folder), environ={})
    assert (ModelSource.CONFIG, None) == (model.source, model.stored_params)


@pytest.mark.parametrize("shape", ["[null]", '["7"]', '"74"', "[-7, 4]", "[1e400]", "[[7], 4]"])
def test_a_shape_that_no_tensor_has_is_refused(shape: str) -> None:
    with pytest.raises(UsageError, match="its header is invalid"):
        parse_header("`a`", f'{{"w": {{"dtype": "F32", "shape": {shape}}}}}'.encode())


@pytest.mark.parametrize("name", ["1", "null", "true", "[]"])
def test_an_index_names_files_by_texts(name: str) -> None:
    with pytest.raises(UsageError, match="is not an index"):
        parse_index("`a`", f'{{"weight_map": {{"w": {name}}}}}'.encode())


def test_a_folder_without_weights_has_no_checkpoint(folder: Path) -> None:
    assert read_stored(folder) is None


def test_the_number_format_of_most_weights_comes_first(folder: Path) -> None:
    write_weights(folder / "model.safetensors", SHAPES, "F16")
    whole = read_stored(folder)
    assert whole is not None
    assert ("F16",) == whole.dtypes
    content = b'{"a": {"dtype": "F32", "shape": [2]}, "b": {"dtype": "BF16", "shape": [3]}}'
    assert ["F32", "BF16"] == [tensor.dtype for tensor in parse_header("`a`", content)]


@pytest.mark.parametrize(
    "content",
    [b"", b"<html>", b"[]", b'{"a": {}}', b'{"a": 1}', b"\x93NUMPY", b'{"a": {"dtype": 1}}'],
)
def test_a_header_that_is_none_is_refused_with_its_place(content: bytes) -> None:
    with pytest.raises(UsageError, match=r"`a\.safetensors` is not a safetensors file"):
        parse_header("`a.safetensors`", content)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"weight_map": 1}'])
def test_an_index_that_is_none_is_refused_with_its_place(content: bytes) -> None:
    with pytest.raises(UsageError, match=r"`a\.json` is not an index of safetensors"):
        parse_index("`a.json`", content)


def test_a_file_that_is_something_else_is_not_read_whole(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(UsageError, match="is not a safetensors file"):
        read_model(str(folder), environ={})
