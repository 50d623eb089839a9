"""The schema that ships, held against the DeepSpeed that is installed."""

import copy
import inspect
import json
import warnings
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schema.by_hand import FACTS
from schema.make_schema import FILE, KINDS, VERSIONS, read_rows, text_of

from zerowiz.core.dsconfig.schema import Kind, SchemaKey, Unknown, Where
from zerowiz.probe.files import read_ds_schema, read_ds_schemas

SCHEMA = read_ds_schema(VERSIONS[0])
KEYS = tuple(key for key in SCHEMA.keys.values() if key.path)

# Values that the generator did not try.
OTHERS: tuple[object, ...] = (
    *(None, True, False, 5, 7.0, 12345678901, -3, 2.25, 0.25, -0.125),
    *("7", "-7", "12.0", "3e4", "0.25", "yes", "no", "zeta", "auto", "AUTO"),
    *([], ["zeta"], {}),
)

EXAMPLES = {Kind.BOOLEAN: True, Kind.WHOLE: 1, Kind.OBJECT: {}}

# What hangs on more than the value of this one key, or on how Python writes a number.
TRUE_LIKE = (True, 5, 7.0, 12345678901, -3)
NOT_FORETOLD: Mapping[str, tuple[object, ...]] = {
    # swap_tensor/aio_config.py: only with CUDA.
    "aio.use_gds": (*TRUE_LIKE, ["zeta"]),
    # autotuning/config.py: anything but what Python calls false.
    "autotuning.exps_dir": (False, [], {}),
    "autotuning.results_dir": (False, [], {}),
    # data_pipeline/config.py: once enabled, other keys are asked for.
    "data_efficiency.data_sampling.curriculum_learning.enabled": (*TRUE_LIKE, ["zeta"]),
    "data_efficiency.data_sampling.dynamic_batching.enabled": (*TRUE_LIKE, ["zeta"]),
    # module_inject/auto_ep_config.py: nothing that Python calls false is read.
    "expert_parallel": (*TRUE_LIKE, ["zeta"]),
    # runtime/config.py: `|` takes 7 and not 7.0; `%` takes an empty list.
    "flops_profiler.enabled": (7.0,),
    "wall_clock_breakdown": (7.0,),
    "vocabulary_size": (["zeta"],),
}


@pytest.fixture(scope="module")
def deepspeed_config() -> Any:
    """DeepSpeed's own config class."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setenv("DS_ACCELERATOR", "cpu")
        warnings.simplefilter("ignore")
        from deepspeed.runtime.config import DeepSpeedConfig
    return DeepSpeedConfig


# A few keys are for one stage alone.
BESIDE: tuple[Mapping[str, Any], ...] = (
    {},
    {"zero_optimization": {"stage": 3}},
    {"zero_optimization": {"stage": 1}, "bf16": {"bf16_master_weights_and_grads": True}},
)


def is_taken(path: str, value: object, config_class: Any) -> bool:
    return any(is_taken_beside(beside, path, value, config_class) for beside in BESIDE)


def is_taken_beside(beside: Mapping[str, Any], path: str, value: object, config_class: Any) -> bool:
    config: dict[str, Any] = copy.deepcopy({"train_micro_batch_size_per_gpu": 1, **beside})
    at = config
    *sections, name = path.split(".")
    for section in sections:
        at = at.setdefault(section, {})
    at[name] = copy.deepcopy(value)
    try:
        config_class(config)
    except Exception:  # noqa: BLE001 (whatever DeepSpeed raises is its answer)
        return False
    return True


def test_the_newest_schema_is_that_of_the_deepspeed_it_is_tested_with() -> None:
    assert version("deepspeed") == VERSIONS[0] == SCHEMA.version


@pytest.mark.slow
def test_the_schema_is_what_the_generator_reads_out_of_deepspeed() -> None:
    shipped = json.loads(FILE.read_text(encoding="utf-8"))["versions"][0]
    assert read_rows() == {kind: shipped[kind] for kind in KINDS}


@pytest.mark.parametrize("name", ["SGD", "RAdam", "Adafactor", "LBFGS"])
def test_an_optimizer_of_torch_takes_what_its_signature_has(name: str) -> None:
    import torch

    built = SCHEMA.optimizer(name)
    assert built is not None
    signature = inspect.signature(getattr(torch.optim, name)).parameters
    assert sorted(signature.keys() - {"params"}) == list(built.arguments or ())


def test_what_the_engine_hands_over_itself_is_no_argument() -> None:
    """`adamw_mode` is DeepSpeedCPUAdam's, and get_optimizer_configuration's to say."""
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    built = SCHEMA.optimizer("AdamW", Where.CPU)
    assert built is not None
    assert "adamw_mode" in inspect.signature(DeepSpeedCPUAdam).parameters
    assert {"adam_w_mode", "torch_adam"} <= {*(built.arguments or ())}
    assert "adamw_mode" not in (built.arguments or ())


def test_the_file_is_as_the_generator_writes_it() -> None:
    text = FILE.read_text(encoding="utf-8")
    assert text_of(json.loads(text)["versions"]) == text


def test_no_fact_by_hand_is_of_a_key_that_no_version_has() -> None:
    known = {path for schema in read_ds_schemas() for path in schema.keys}
    assert set() == set(FACTS) - known


def test_a_default_is_accepted_by_the_schema_and_by_deepspeed(deepspeed_config: Any) -> None:
    defaults = [(key, json.loads(key.default or "null")) for key in KEYS]
    assert [] == [
        key.path
        for key, default in defaults
        if default is not None
        if not (key.accepts(default) and is_taken(key.path, default, deepspeed_config))
    ]


def test_the_schema_foretells_what_deepspeed_does_with_a_value(deepspeed_config: Any) -> None:
    surprising = {
        (key.path, repr(value))
        for key in KEYS
        for value in OTHERS
        if is_taken(key.path, value, deepspeed_config) is not key.accepts(value)
    }
    known = {(path, repr(value)) for path, values in NOT_FORETOLD.items() for value in values}
    assert known == surprising


VALUES = st.one_of(
    *(st.none(), st.booleans(), st.just([]), st.just({})),
    *(st.integers(-(10**12), 10**12), st.integers(-(10**12), 10**12).map(float)),
    *(st.integers(-(10**6), 10**6).map(str), st.floats(-1e6, 1e6), st.floats(0.001, 0.999)),
    st.sampled_from(["cpu", "CPU", "bf16", "FP16", "on", "OFF", "auto", "warn", "step", "torch"]),
)


@settings(max_examples=500, deadline=None)
@given(
    key=st.sampled_from([key for key in KEYS if key.path not in NOT_FORETOLD]),
    value=VALUES,
)
def test_the_schema_foretells_any_value(
    key: SchemaKey, value: object, deepspeed_config: Any
) -> None:
    assert is_taken(key.path, value, deepspeed_config) is key.accepts(value)


SECTIONS = [key for key in SCHEMA.keys.values() if key.unknown is not None]


@pytest.mark.parametrize("section", SECTIONS, ids=lambda key: key.path or "the config")
def test_an_unknown_key_is_refused_where_the_schema_says_so(
    section: SchemaKey, deepspeed_config: Any
) -> None:
    path = f"{section.path}.never_a_key".lstrip(".")
    expected = Unknown.REFUSED is not section.unknown
    assert expected is is_taken(path, 1, deepspeed_config)


@pytest.mark.parametrize(
    ("key", "alias"),
    [(key, alias) for key in KEYS for alias in key.aliases],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_another_name_of_a_key_is_read_by_deepspeed(
    key: SchemaKey, alias: str, deepspeed_config: Any
) -> None:
    path = f"{key.section}.{alias}".lstrip(".")
    assert key == SCHEMA.names().get(path)
    taken = [kind for kind in key.takes if kind not in {Kind.NULL, Kind.AUTO}]
    assert taken
    assert is_taken(path, EXAMPLES[taken[0]], deepspeed_config)


TEMPLATES = sorted((Path(__file__).parents[2] / "templates").glob("ds_config_*.json"))


def leaves(section: Mapping[str, object], above: str = "") -> Iterator[tuple[str, object]]:
    """Every path of a config and what it holds."""
    for name, value in section.items():
        path = f"{above}.{name}".lstrip(".")
        yield path, value
        if isinstance(value, Mapping):
            yield from leaves(value, path)


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_every_key_of_a_template_is_known_and_takes_its_value(template: Path) -> None:
    config = json.loads(template.read_text(encoding="utf-8"))
    keys = {path: SCHEMA.names().get(path) for path, _ in leaves(config)}
    assert [] == [path for path, key in keys.items() if key is None]
    refused = {path for path, value in leaves(config) if value != "auto" and not takes(path, value)}
    assert set() == refused


def takes(path: str, value: object) -> bool:
    key = SCHEMA.names().get(path)
    return key is not None and key.accepts(value)
