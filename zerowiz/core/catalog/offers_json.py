"""The JSON of the machines that a job fits: it changes only on purpose."""

from zerowiz.core.catalog.offers import Offer, Offers
from zerowiz.core.catalog.prices import PriceList
from zerowiz.core.catalog.run_json import encode_times
from zerowiz.core.model.types import Model
from zerowiz.core.plan_json import SCHEMA_VERSION, encode_step_time


def _offer(offer: Offer) -> dict[str, object]:
    candidate, chosen, run = offer.candidate, offer.chosen, offer.run
    network = offer.machine.network
    return {
        "machine": candidate.name,
        "gpu": offer.machine.gpus[0].name,
        "gpus_per_node": candidate.size.gpus,
        "nodes": candidate.size.nodes,
        "instance": candidate.instance,
        "network": {
            "kind": network.kind.value,
            "bytes_per_s": network.bytes_per_s,
            "assumed": offer.assumes_network,
        },
        "micro_batch": offer.workload.micro_batch,
        "accumulation_steps": offer.workload.accumulation_steps,
        "gradient_checkpointing": offer.workload.gradient_checkpointing,
        "precision": offer.workload.precision.value,
        "strategy": chosen.strategy.name,
        "verdict": chosen.verdict.value,
        "peak_bytes": chosen.estimate.peak_bytes,
        "device_bytes": chosen.device_bytes,
        "headroom_bytes": chosen.headroom_bytes,
        **encode_step_time(chosen.step_time),
        "price_per_hour": offer.price_per_hour,
        "run": None if run is None else {"tokens": run.tokens, **encode_times(run)},
    }


def encode_offers(
    found: Offers, model: Model, prices: PriceList, *, version: str
) -> dict[str, object]:
    """One JSON object, whose `machines` are in the order of the table."""
    return {
        "schema_version": SCHEMA_VERSION,
        "zerowiz_version": version,
        "model": {"name": model.name, "params": model.params, "source": model.source.value},
        "currency": prices.currency or None,
        "machines": [_offer(offer) for offer in found.offers],
        "gpus_tried": found.kinds,
        "gpus_that_do_not_fit": found.kinds_without,
        "gpus_without_a_plan": found.kinds_unasked,
        "prices_without_a_machine": list(found.unlisted_prices),
    }
