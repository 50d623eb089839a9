"""What a family's row says of it is so; tests/core/model/test_types.py builds each model."""

import ast
import re
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest
from measured.rows import family_of, read_every_row

from zerowiz.core.model.families import FAMILIES
from zerowiz.core.model.hf_config import (
    APART,
    MOE_BLOCKS,
    size_keys,
)


def test_a_family_is_measured_if_a_row_is_of_it() -> None:
    measured = {family_of(row) for row in read_every_row()}
    assert measured & set(FAMILIES) == {name for name, each in FAMILIES.items() if each.measured}


def test_a_family_with_experts_names_the_block_that_holds_them() -> None:
    experts = {name for name, each in FAMILIES.items() if "num_experts" in each.defaults}
    assert experts == {name for name, each in FAMILIES.items() if each.moe_block is not None}
    assert experts <= set(MOE_BLOCKS)


def test_a_size_goes_by_each_name_that_transformers_maps_to_it() -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    for name in FAMILIES:
        aliases = CONFIG_MAPPING[name].attribute_map
        assert {old for old, new in aliases.items() if new in size_keys()} <= size_keys(), name
    assert {"n_embd", "hidden_size"} <= size_keys()
    assert not {"use_cache", "bos_token_id"} & size_keys()


# The table of MoE blocks, held against the sources of the installed transformers.


def modeling_files() -> Iterator[tuple[list[str], ast.Module]]:
    """The model types of every family of the installed transformers, and its syntax tree."""
    spec = find_spec("transformers")
    assert spec is not None
    assert spec.origin is not None
    for path in sorted(Path(spec.origin).parent.glob("models/*/modeling_*.py")):
        text = path.read_text(encoding="utf-8")
        if "self.experts = " in text:
            configs = path.parent.glob("configuration_*.py")
            told = "\n".join(config.read_text(encoding="utf-8") for config in configs)
            types = re.findall(r'^    model_type(?:: str)? = "(.+)"', told, re.MULTILINE)
            yield types, ast.parse(text)


def experts_of(tree: ast.Module) -> Mapping[str, str]:
    """By the class that holds experts, the class that they are."""
    return {
        block.name: node.value.func.id
        for block in tree.body
        if isinstance(block, ast.ClassDef)
        for node in ast.walk(block)
        if isinstance(node, ast.Assign)
        and any(isinstance(t, ast.Attribute) and t.attr == "experts" for t in node.targets)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Name)
    }


def bases_of(tree: ast.Module, name: str) -> list[str]:
    named = (c for c in tree.body if isinstance(c, ast.ClassDef) and c.name == name)
    return [ast.unparse(base) for each in named for base in each.bases]


@pytest.fixture(scope="module")
def holders() -> Mapping[str, Mapping[str, list[str]]]:
    """By model type: the classes that hold experts, and what those derive from."""
    return {
        model_type: {block: bases_of(tree, experts) for block, experts in experts_of(tree).items()}
        for types, tree in modeling_files()
        for model_type in types
    }


@pytest.mark.parametrize(("model_type", "block"), MOE_BLOCKS.items(), ids=list(MOE_BLOCKS))
def test_a_block_holds_the_experts_of_its_model(
    holders: Mapping[str, Mapping[str, list[str]]], model_type: str, block: str
) -> None:
    assert block in holders[model_type]


def test_only_the_experts_said_to_stand_apart_do(
    holders: Mapping[str, Mapping[str, list[str]]],
) -> None:
    containers = {"nn.ModuleDict", "nn.ModuleList"}
    apart = {
        model_type
        for model_type, block in MOE_BLOCKS.items()
        if containers & set(holders[model_type][block])
    }
    assert apart == APART
