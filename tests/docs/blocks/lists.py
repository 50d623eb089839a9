"""The strategies, the model families and the trainers, as pages list them."""

import textwrap

from zerowiz.core.model.families import FAMILIES
from zerowiz.core.script.trainers import TRAINERS, TrainerRow
from zerowiz.core.strategies import FLOWCHART_STRATEGIES, STRATEGIES
from zerowiz.core.strategy import Offload, Part, Strategy

STATES = {
    Part.OPTIMIZER: "optimizer states",
    Part.GRADIENTS: "gradients",
    Part.PARAMETERS: "parameters",
}
ON_HOST = {
    Offload.NONE: "",
    Offload.OPTIMIZER: "optimizer states",
    Offload.ALL: "optimizer states, parameters",
}


def strategy_row(strategy: Strategy) -> str:
    sharded = ", ".join(words for part, words in STATES.items() if part in strategy.sharded)
    asked = "" if strategy in FLOWCHART_STRATEGIES else "; only where `--offload` asks for it"
    cells = (
        *(f"`{strategy.name}`", f"`{strategy.config_name}`", str(strategy.stage)),
        *(sharded or "nothing", f"{ON_HOST[strategy.offload]}{asked}"),
    )
    return f"| {' | '.join(cells)} |\n".replace("  ", " ")


def strategies() -> str:
    head = "| strategy | file | stage | what is sharded | what is on the host |\n|---|---|---|---|---|\n"
    return head + "".join(map(strategy_row, STRATEGIES))


def families() -> str:
    named = textwrap.fill(", ".join(f"`{name}`" for name in FAMILIES), width=120)
    return f"{named}\n"


def trainer_row(name: str, row: TrainerRow) -> str:
    has_reference = row.trainer.compares and row.refers
    cells = (f"`{name}`", row.trainer, "by its settings" if has_reference else "none")
    return f"| {' | '.join(cells)} | {row.uncounted or '-'} |\n"


def trainers() -> str:
    head = "| class | counted as | reference | not counted |\n|---|---|---|---|\n"
    return head + "".join(trainer_row(name, row) for name, row in TRAINERS.items())
