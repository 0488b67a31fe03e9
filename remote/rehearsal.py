"""What --dry-run prints: what would be done, in order. Only searches are made; nothing is changed."""

from __future__ import annotations

from collections.abc import Sequence

from remote import money
from remote.desk import CHECKOUT, RESULTS, Desk
from remote.prepare import HOUSES, setup_command
from remote.providers.base import Box, Offer
from remote.status import aligned
from remote.takeover import box_of


def offer_lines(offers: Sequence[Offer]) -> list[str]:
    if not offers:
        return ["nothing is on offer that has all that is wanted at this price"]
    heads = ("$/h", "machine", "gpu", "driver", "cuda", "disk GB", "reliability", "Mbit/s", "location")
    rows = [
        (
            f"{offer.dollars_per_hour:.3f}",
            offer.machine_id,
            f"{offer.num_gpus} x {offer.gpu}" if offer.gpu else "",
            offer.driver or "",
            _number(offer.cuda_max, ".1f"),
            _number(offer.disk_gb, ".0f"),
            _number(offer.reliability, ".3f"),
            _number(offer.down_mbps, ".0f"),
            offer.location,
        )
        for offer in offers
    ]
    return aligned([heads, *rows])


def rent_lines(desk: Desk) -> list[str]:
    """The cheapest offer and how long its box may live. Raises RemoteError when the caps are too small."""
    offers = desk.provider.offers(desk.settings.wanted)
    if not offers:
        return offer_lines(offers)
    best, now = offers[0], desk.clock.now()
    hours = (
        money.deadline(desk.settings.caps, best.dollars_per_hour, now, desk.spent()) - now
    ) / money.HOUR_S
    if not desk.settings.rented:
        return [f"would use {best.id} for at most {hours:.2f} h"]
    what = f"machine {best.machine_id} ({best.num_gpus} x {best.gpu}) at ${best.dollars_per_hour:.3f}/h"
    most = f"at most {hours:.2f} h, ${hours * best.dollars_per_hour:.2f}"
    return [f"would rent {what} for {most}; {len(offers) - 1} more offers"]


def push_lines(desk: Desk) -> list[str]:
    return [f"would push {desk.checkout.name} to {CHECKOUT} on {_which(desk)}"]


def prepare_lines(desk: Desk) -> list[str]:
    houses = [f"would push {house} to {HOUSES}/{house.name}" for house in desk.settings.wheelhouses]
    command = setup_command(desk.settings)
    setup = [f"would run: {command}"] if command else []
    return [f"would arm the dead-man switch of {_which(desk)}", *push_lines(desk), *houses, *setup]


def stage_lines(desk: Desk, stages: Sequence[str]) -> list[str]:
    """Machine and provider are known only when there is a box."""
    box = box_of(desk)
    commands = [desk.stage_command(stage, box or _unknown(desk)) for stage in stages]
    return [f"would run: {command}" for command in commands]


def fetch_lines(desk: Desk) -> list[str]:
    return [
        f"would fetch {RESULTS} from {_which(desk)}, verify it, and put complete runs into {desk.results}"
    ]


def destroy_lines(desk: Desk) -> list[str]:
    if not desk.settings.rented:
        return ["would leave the box, which is your own"]
    return [f"would destroy {_which(desk)}"]


def campaign_lines(desk: Desk) -> list[str]:
    first = [f"run {desk.run}"]
    box = box_of(desk)
    first += rent_lines(desk) if box is None else [f"would go on with box {box.id}"]
    stages = stage_lines(desk, desk.settings.stages)
    return [*first, *prepare_lines(desk), *stages, *fetch_lines(desk), *destroy_lines(desk)]


def _which(desk: Desk) -> str:
    box = box_of(desk)
    return f"box {box.id}" if box else f"the box of run {desk.run}"


def _unknown(desk: Desk) -> Box:
    return Box("BOX", desk.provider.name, "", "MACHINE", "starting", (), 0.0, None)


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
