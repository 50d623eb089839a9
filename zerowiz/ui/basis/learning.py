"""Say what of a plan changes what a model learns: values of zerowiz's own, and another batch."""

from collections.abc import Mapping, Sequence

from zerowiz.core import shell
from zerowiz.core.launch.machine_change import BatchChange
from zerowiz.core.settings import Change
from zerowiz.ui import remedies
from zerowiz.words import _, listing


def own_values(config: str, optimizer: str | None, values: Mapping[str, object]) -> str:
    """What a config that zerowiz writes has where the script decides nothing.

    Args:
        config: Its path.
        optimizer: That DeepSpeed makes of it, if it makes one.
        values: By their keys in the file.
    """
    shown = listing(f"`{key}` {value}" for key, value in values.items())
    if optimizer is None:
        return _(
            "`{config}` sets {values}, a default of zerowiz's own", config=config, values=shown
        )
    return _(
        "`{config}` sets {optimizer} with {values}: these are zerowiz's own defaults, because it"
        " sees no optimizer that your script passes to DeepSpeed",
        config=config,
        optimizer=optimizer,
        values=shown,
    )


def unused_configs(paths: Sequence[str]) -> str:
    """That configs lie beside the script which this plan does not use."""
    if len(paths) == 1:
        return _(
            "`{path}` is not used; `$config {quoted}` runs with it",
            path=paths[0],
            quoted=shell.quote(paths[0]),
        )
    return _(
        "{paths} are not used; `$config FILE` runs with one", paths=listing(f"`{p}`" for p in paths)
    )


def batch_by_options(said: Change, batch: BatchChange) -> str:
    """That options change the global batch which the script would have by itself."""
    return _(
        "your script's batch changes with `{options}`: {moves}",
        options=remedies.options(said),
        moves=global_batch(batch),
    )


def global_batch(batch: BatchChange) -> str:
    """From what to what it changes, and how to keep it."""
    values = {"before": batch.before, "now": batch.now}
    moves = (
        _("the global batch falls from {before} to {now}", **values)
        if batch.now < batch.before
        else _("the global batch rises from {before} to {now}", **values)
    )
    if batch.accumulation_steps is None:
        return moves
    if batch.by_script:
        return _(
            "{moves}; an accumulation of {steps} in your script keeps it",
            moves=moves,
            steps=batch.accumulation_steps,
        )
    return _(
        "{moves}; keep it with `{options}`",
        moves=moves,
        options=remedies.options({"accumulation_steps": batch.accumulation_steps}),
    )
