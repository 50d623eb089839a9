"""What a script has saved, found in its output folder."""

import os
from pathlib import Path

import pytest

from zerowiz.core.launch.plan import Saved
from zerowiz.core.preflight.facts import SavedStates
from zerowiz.probe.preflight.read_facts import read_resumed, read_saved, read_states


def save(folder: Path, *files: str) -> str:
    for name in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    return str(folder)


@pytest.mark.parametrize("folder", [None, Path("/no/such/folder")])
def test_where_there_is_no_folder_nothing_was_saved(folder: Path | None) -> None:
    assert Saved() == read_saved(folder)


def test_the_newest_of_each_kind_is_found(tmp_path: Path) -> None:
    weights = ("model.safetensors", "config.json")
    save(tmp_path / "checkpoint-9", *weights, "portable.json")
    portable = save(tmp_path / "checkpoint-10", *weights, "portable.json")
    engine = save(tmp_path / "checkpoint-30", "global_step30/mp_rank_00_model_states.pt")
    sharded = save(tmp_path / "checkpoint-20", "model.safetensors.index.json", "config.json")
    assert Saved(portable=portable, engine=engine, weights=sharded) == read_saved(tmp_path)


def test_what_was_saved_before_this_job_is_another_runs_whatever_its_clock_says(
    tmp_path: Path,
) -> None:
    files = ("portable.json", "model.safetensors", "config.json", "global_step9/states.pt")
    old = Path(save(tmp_path / "checkpoint-9", *files))
    before = read_states(tmp_path)
    new = Path(save(tmp_path / "checkpoint-3", *files))
    for path in (new, *new.iterdir()):  # the clock was set back in between
        os.utime(path, (1e9, 1e9))
    assert Saved(portable=str(new), engine=str(new), weights=str(new)) == read_saved(
        tmp_path, before
    )
    # An old folder that was written to again is new.
    os.utime(old / "config.json", (2e9, 2e9))
    assert str(old) == read_saved(tmp_path, before).weights


@pytest.mark.parametrize(
    ("marker", "newest"),
    [
        pytest.param("saves", 3, id="the last that was saved"),
        # As they were written before saves were counted; the clock may have been set back.
        pytest.param("saved_at_ns", 9, id="by the step where a time stands alone"),
    ],
)
def test_the_newest_portable_one_is(marker: str, newest: int, tmp_path: Path) -> None:
    for step, value in ((3, 20), (9, 10)):
        folder = Path(save(tmp_path / f"checkpoint-{step}", "portable.json"))
        (folder / "portable.json").write_text(f'{{"{marker}": {value}}}')
    assert str(tmp_path / f"checkpoint-{newest}") == read_saved(tmp_path).portable


def test_a_checkpoint_that_was_moved_aside_by_a_killed_save_is_found(tmp_path: Path) -> None:
    aside = save(tmp_path / ".checkpoint-9.replaced", "portable.json")
    assert aside == read_saved(tmp_path).portable
    new = save(tmp_path / "checkpoint-9", "portable.json")
    assert new == read_saved(tmp_path).portable


def test_what_is_not_whole_is_passed_over(tmp_path: Path) -> None:
    save(tmp_path / "checkpoint-2", "model.safetensors")
    save(tmp_path / "checkpoint-3", "pytorch_model.bin", "config.json")
    save(tmp_path / ".checkpoint-4.partial", "portable.json")
    save(tmp_path / "runs", "portable.json")
    (tmp_path / "checkpoint-5").write_text("a file")
    assert Saved() == read_saved(tmp_path)


WHOLE = "mp_rank_00_model_states.pt"


def sharded(kind: str, ranks: int, prefix: str = "") -> tuple[str, ...]:
    return tuple(f"{prefix}zero_pp_rank_{i}_mp_rank_00_{kind}_states.pt" for i in range(ranks))


@pytest.mark.parametrize(
    ("names", "stages", "ranks"),
    [
        ((WHOLE,), (0,), None),
        ((WHOLE, *sharded("optim", 2)), (1, 2), 2),
        ((WHOLE, *sharded("optim", 8, "bf16_")), (1, 2), 8),
        ((*sharded("model", 2), *sharded("optim", 2, "bf16_")), (3,), 2),
        ((WHOLE, "expp_rank_0_mp_rank_00_optim_states.pt"), (), None),
    ],
    ids=["DDP", "ZeRO-1 or 2", "in bf16", "ZeRO-3", "experts"],
)
def test_the_files_of_a_checkpoint_show_its_stages_and_its_ranks(
    tmp_path: Path, names: tuple[str, ...], stages: tuple[int, ...], ranks: int | None
) -> None:
    """The names are those that DeepSpeed 0.19.8 gave on two ranks; other tags do not count."""
    save(tmp_path / "global_step1", *sharded("model", 4), *sharded("optim", 4))
    save(tmp_path / "global_step2", *names)
    (tmp_path / "latest").write_text("global_step2\n")
    path = str(tmp_path)
    states = SavedStates(path=path, tag="global_step2", stages=stages, ranks=ranks)
    assert states == read_resumed(path)


def test_a_folder_without_the_states_of_deepspeed_has_none(tmp_path: Path) -> None:
    save(tmp_path / "global_step1", WHOLE)
    assert read_resumed(str(tmp_path)) is None
    for lost in ("global_step4", "a\0b"):
        (tmp_path / "latest").write_text(lost)
        assert read_resumed(str(tmp_path)) is None
    assert read_resumed(str(tmp_path / "missing")) is None
