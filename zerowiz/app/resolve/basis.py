"""Say what a plan rests on."""

from collections.abc import Collection
from pathlib import Path

from zerowiz.app.resolve.request import Request
from zerowiz.ui.basis import notes
from zerowiz.words import _, listing


def find_basis(
    request: Request,
    model: str | None,
    config: Path | None,
    known: Collection[str] = (),
) -> tuple[str, ...]:
    """What a plan rests on, one sentence each.

    Args:
        request: What was planned.
        model: As it was named.
        config: The person's own config, if there is one.
        known: Clauses on what is assumed that need no other note.
    """
    clauses = [clause for clause in request.assumed if clause not in known]
    assumed = (_("assumed {assumed}", assumed=listing(clauses)),) if clauses else ()
    keys = listing(f"`{key}`" for key in request.uncounted)
    adam = request.unfused_adam
    unfused = (f"{adam}: {notes.UNFUSED_ADAM}",) if adam else ()
    slow = (notes.in_fp32(request.in_fp32, request.loads_16_bit),) if request.in_fp32 else ()
    family = request.job.model.architecture.family
    eager = (notes.falls_back(family, request.falls_back),) if request.falls_back else ()
    size = request.size_only
    stated = () if size is None else (notes.size_only(model, size),)
    built = (notes.built_beside(model, request.builds),) if request.builds else ()
    trusted = (notes.trusted(request.trusted),) if request.trusted else ()
    uncounted = (_("`{config}`: {keys} not counted", config=config, keys=keys),) if keys else ()
    too_long = notes.beyond_positions(request.job.model, request.job.workload)
    long = () if too_long is None else (too_long,)
    server = request.elsewhere
    learned = request.job.calibration
    calibrated = (notes.calibrated(learned),) if learned else ()
    elsewhere = (f"{server}: {notes.VLLM_ELSEWHERE}",) if server else ()
    metrics = (f"{request.metrics}: {notes.METRICS}",) if request.metrics else ()
    return (
        *request.job.machine.notes,
        *request.traced,
        *calibrated,
        *stated,
        *built,
        *trusted,
        *assumed,
        *unfused,
        *slow,
        *long,
        *eager,
        *uncounted,
        *request.not_counted,
        *elsewhere,
        *metrics,
        *((request.cut_group,) if request.cut_group else ()),
    )
