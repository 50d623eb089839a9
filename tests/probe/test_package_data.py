"""The schema file that ships: which versions it holds, and what is known of their history."""

from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import pytest

from zerowiz.core.dsconfig.schema import Unknown
from zerowiz.probe.files import parse_release, read_ds_schema, read_ds_schemas, read_version

MINORS = ("0.19.8", "0.18.9", "0.17.6", "0.16.9")


def test_four_minor_versions_ship_and_every_patch_with_keys_of_its_own() -> None:
    patches = [f"0.19.{patch}" for patch in range(8, 1, -1)]
    assert [*patches, *MINORS[1:]] == [schema.version for schema in read_ds_schemas()]


def test_a_key_is_known_from_its_patch_on() -> None:
    found = {
        patch: read_ds_schema(f"0.19.{patch}").names().get("zero_optimization.compute_grad_norm")
        for patch in range(9)
    }
    assert [7, 8] == [patch for patch, key in found.items() if key is not None]


def test_the_file_stays_small() -> None:
    file = files("zerowiz").joinpath("data", "ds_schema.json")
    assert len(file.read_bytes()) < 150_000


def test_a_version_without_a_schema_of_its_own_reads_the_one_before_it() -> None:
    assert "0.18.9" == read_ds_schema("0.19.1").version
    assert "0.19.8" == read_ds_schema().version


# DeepSpeed's pull requests and releases: 0.17.1 made fp16 and bf16 models, 0.19.3 began to clip.
@pytest.mark.parametrize(
    ("path", "defaults"),
    [
        ("gradient_clipping", ["1.0", "0.0", "0.0", "0.0"]),
        ("zero_optimization.offload_param.pin_memory", ["true", "false", "false", "false"]),
        ("zero_optimization.reduce_bucket_size", ["500000000"] * 4),
        ("fp16.min_loss_scale", ["1"] * 4),
    ],
)
def test_a_default_is_that_of_its_version(path: str, defaults: list[str]) -> None:
    found = [read_ds_schema(version).names().get(path) for version in MINORS]
    assert defaults == [key and key.default for key in found]


def test_fp16_keys_under_bf16_were_ignored_once_and_are_refused_now() -> None:
    fates = [read_ds_schema(version).keys["bf16"].unknown for version in MINORS]
    assert [Unknown.REFUSED, Unknown.REFUSED, Unknown.REFUSED, Unknown.IGNORED] == fates


def test_a_section_that_was_removed_is_still_known() -> None:
    amps = [read_ds_schema(version).names().get("amp") for version in MINORS]
    assert [True, False, False, False] == [amp and amp.removed for amp in amps]


def test_a_documented_name_and_a_field_name_are_one_key() -> None:
    schema = read_ds_schema()
    documented = schema.names().get("zero_optimization.stage3_max_live_parameters")
    assert documented is not None
    assert documented == schema.names().get("zero_optimization.max_live_parameters")


def test_every_key_says_where_deepspeed_reads_it() -> None:
    keys = [key for schema in read_ds_schemas() for key in schema.keys.values() if key.path]
    assert [] == [key.path for key in keys if not key.source]


# Which release of a library is installed.


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("5.23.0", (5, 23)),
        ("5.24.0.dev0", (5, 24)),
        ("5.9", (5, 9)),
        ("", None),
        ("main", None),
        (None, None),
    ],
)
def test_a_release_is_its_major_and_minor(
    text: str | None, release: tuple[int, int] | None
) -> None:
    assert release == parse_release(text)


@pytest.mark.parametrize("package", ["torch", "transformers", "deepspeed", "accelerate", "pytest"])
def test_a_version_is_the_one_that_python_tells(package: str) -> None:
    assert version(package) == read_version(package)


def test_a_place_that_cannot_be_looked_into_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    # As one that nobody may read: what the kernel says is no "not there".
    monkeypatch.syspath_prepend("/" + 300 * "x")
    assert version("pytest") == read_version("pytest")


def test_what_is_not_installed_has_no_version() -> None:
    assert read_version("no-such-library-of-anybody") is None


def test_the_first_on_the_path_is_what_python_would_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "transformers-5.17.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: transformers\nVersion: 5.17.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert read_version("transformers") == "5.17.0"
