"""What a family's row says of it is so; tests/core/model/test_types.py builds each model."""

from measured.rows import family_of, read_every_row

from zerowiz.core.model.families import FAMILIES


def test_a_family_is_measured_if_a_row_is_of_it() -> None:
    measured = {family_of(row) for row in read_every_row()}
    assert measured & set(FAMILIES) == {name for name, each in FAMILIES.items() if each.measured}


def test_a_family_with_experts_names_the_block_that_holds_them() -> None:
    experts = {name for name, each in FAMILIES.items() if "num_experts" in each.defaults}
    assert experts == {name for name, each in FAMILIES.items() if each.moe_block is not None}
