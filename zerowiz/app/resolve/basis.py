"""Say what a plan rests on."""

from pathlib import Path

from zerowiz.app.resolve.request import Request
from zerowiz.ui import sentences


def find_basis(request: Request, model: str | None, config: Path | None) -> tuple[str, ...]:
    """What a plan rests on, one sentence each.

    Args:
        request: What was planned.
        model: As it was named.
        config: The person's own config, if there is one.
    """
    assumed = (f"assumed {', '.join(request.assumed)}",) if request.assumed else ()
    keys = ", ".join(f"`{key}`" for key in request.uncounted)
    adam = request.unfused_adam
    unfused = (f"{adam}: {sentences.UNFUSED_ADAM}",) if adam else ()
    family = request.job.model.architecture.family
    eager = (sentences.falls_back(family, request.falls_back),) if request.falls_back else ()
    size = request.size_only
    stated = (sentences.size_only(model, size),) if size else ()
    uncounted = (f"`{config}`: {keys} not counted",) if keys else ()
    server = request.elsewhere
    learned = request.job.calibration
    calibrated = (sentences.calibrated(learned),) if learned else ()
    elsewhere = (f"{server}: {sentences.VLLM_ELSEWHERE}",) if server else ()
    return (
        *request.job.machine.notes,
        *request.traced,
        *calibrated,
        *stated,
        *assumed,
        *unfused,
        *eager,
        *uncounted,
        *request.not_counted,
        *elsewhere,
        *((request.cut_group,) if request.cut_group else ()),
    )
