"""From an offer to a running box, with failover to the next offer, and back.

Each step stands in the journal before and after it is taken. Whatever goes wrong between intent and the
return of a running box, this run has no box left when `rent` raises; where not even that can be done
(LeftBehind), or the process is killed, `reap` finds what is left by its label.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from remote import money
from remote.clock import SYSTEM_CLOCK, Clock
from remote.errors import Busy, OfferGone, ProviderError, Refused, RemoteError, Unclear
from remote.journal import Entry, Journal, Step
from remote.labels import PREFIX, Label, make_label, parse_label
from remote.providers.base import Box, Offer, Provider, Wanted

ATTEMPTS = 8
BUSY_PAUSE_S = 30.0
POLL_S = 10.0
SETTLE_S = 120.0  # how long after its request a box may still appear when the answer was lost
PRICE_TOLERANCE = 1.02


@dataclass(frozen=True)
class Order:
    """What to rent it for. `run`: run id, also in the label; `onstart`: shell commands run at its start."""

    run: str
    image: str
    disk_gb: int
    public_key: str
    onstart: str
    caps: money.Caps
    prefix: str = PREFIX


@dataclass(frozen=True)
class Patience:
    """Limits of waiting for a box, in seconds: without a sign of progress, and in all.

    A large image takes long on a slow line, which is no fault while the provider reports progress.
    """

    stalled_s: float = 900.0
    total_s: float = 3600.0


class NotUsable(RemoteError):
    """The box never came to run as ordered; it is destroyed."""


class LeftBehind(RemoteError):
    """A box may exist that is not known to be destroyed: nothing more is rented, `reap` has to look."""


def rent(
    provider: Provider,
    wanted: Wanted,
    order: Order,
    journal: Journal,
    ready: Callable[[Box], bool] = lambda box: True,
    say: Callable[[str], None] = print,
    clock: Clock = SYSTEM_CLOCK,
    patience: Patience = Patience(),
) -> Box:
    """The cheapest box that runs and is `ready` (asked at each look, for example whether its ssh answers).

    The caller holds the run's lock: boxes that are rented at the same time have run ids of their own. Raises
    RemoteError when the caps are too small, the account cannot rent, or no offer of ATTEMPTS gave a usable
    box; the message lists what was tried.
    """
    failures: list[str] = []
    tried: set[str] = set()
    for _ in range(ATTEMPTS):
        offers = [offer for offer in provider.offers(wanted) if offer.id not in tried]
        if not offers:
            break
        offer = offers[0]
        attempt = _Attempt(provider, order, journal, clock, say, offer, _label(order, offer, journal, clock))
        try:
            return attempt.make(ready, patience, wanted.max_dollars_per_hour)
        except Busy as error:
            failures.append(str(error))
            clock.sleep(BUSY_PAUSE_S)
            continue
        except Refused:
            raise
        except OfferGone as error:
            failures.append(str(error))
        except (NotUsable, ProviderError) as error:
            failures.append(str(error))
            wanted = replace(wanted, exclude_machines=wanted.exclude_machines | {offer.machine_id})
        tried.add(offer.id)
        say(f"next offer: {failures[-1]}")
    tale = "; ".join(failures) or "nothing is on offer that has all that is wanted at this price"
    raise RemoteError(f"no box for run {order.run}: {tale}")


def keep(box: Box, journal: Journal, clock: Clock = SYSTEM_CLOCK) -> None:
    """Hands the box to the user: it stays until its deadline although no controller holds its run."""
    journal.write(_entry("kept", box, clock))


def give_back(
    provider: Provider, box: Box, journal: Journal, clock: Clock = SYSTEM_CLOCK, why: str = ""
) -> None:
    """Destroys the box and sees it gone, with or without a journal; raises RemoteError where either fails."""
    try:
        journal.write(_entry("destroying", box, clock, why))
    finally:
        provider.destroy(box.id)
    journal.write(_entry("destroyed", box, clock, why))


def _label(order: Order, offer: Offer, journal: Journal, clock: Clock) -> Label:
    """A label that no earlier request of the run had: what a lost answer leaves is looked for by it."""
    entries = [entry for entry in journal.read()[0] if entry.run == order.run]
    spent = money.price_so_far(money.rents_of(entries), clock.now())
    deadline = money.deadline(order.caps, offer.dollars_per_hour, clock.now(), spent)
    used = {entry.deadline for entry in entries}
    while deadline in used:
        deadline -= 1
    return make_label(order.prefix, order.run, deadline)


def _entry(step: Step, box: Box, clock: Clock, note: str = "") -> Entry:
    label = parse_label(box.label)
    if label is None:
        raise RemoteError(f"box {box.id} has the label {box.label!r}, which is not PREFIX/RUN/DEADLINE")
    return Entry(
        at=clock.now(),
        run=label.run,
        step=step,
        provider=box.provider,
        label=str(label),
        deadline=label.deadline,
        machine=box.machine_id,
        box=box.id,
        dollars_per_hour=box.dollars_per_hour,
        note=note,
    )


@dataclass
class _Attempt:
    """One create request and what follows from it."""

    provider: Provider
    order: Order
    journal: Journal
    clock: Clock
    say: Callable[[str], None]
    offer: Offer
    label: Label
    asked_at: float = field(init=False, default=0.0)

    def make(self, ready: Callable[[Box], bool], patience: Patience, max_price: float) -> Box:
        offer = self.offer
        if offer.gpu:
            price = f"${offer.dollars_per_hour:.3f}/h"
            self.say(f"renting {offer.num_gpus} x {offer.gpu} on machine {offer.machine_id} at {price}")
        else:
            self.say(f"using {offer.machine_id}")
        self.asked_at = self.clock.monotonic()
        self._note("intent")
        try:
            order = self.order
            box = self.provider.create(
                self.offer, str(self.label), order.image, order.disk_gb, order.public_key, order.onstart
            )
        except Unclear as error:
            self._clear(error.box_id, str(error))
            raise
        except ProviderError as error:
            self._note("refused", note=str(error))
            raise
        except BaseException as error:
            self._clear(None, type(error).__name__)
            raise
        try:
            self.journal.write(_entry("created", box, self.clock))
            self._check_alone(box)
            box = self._wait(box, ready, patience, max_price)
            self.journal.write(_entry("running", box, self.clock))
        except BaseException as error:
            self._end(box, str(error) or type(error).__name__)
            raise
        return box

    def _end(self, box: Box, why: str) -> None:
        self.say(f"destroying box {box.id}: {why}")
        try:
            give_back(self.provider, box, self.journal, self.clock, why)
        except RemoteError as error:
            raise LeftBehind(f"box {box.id} may be left behind ({why}): {error}") from error

    def _clear(self, box_id: str | None, why: str) -> None:
        """Destroys what a lost create has made, waiting for it to appear."""
        try:
            try:
                self._note("unclear", box_id or "", why)
            finally:
                self._find_and_destroy(box_id)
        except RemoteError as error:
            raise LeftBehind(f"a box labelled {self.label} may be left behind ({why}): {error}") from error

    def _find_and_destroy(self, box_id: str | None) -> None:
        while True:
            found = {box.id for box in self.provider.boxes(str(self.label))} | ({box_id} if box_id else set())
            for one in sorted(found):
                self.say(f"destroying box {one}, made by a request without a usable answer")
                self.provider.destroy(one)
                self._note("cleared", one)
            if found:
                return
            if self.clock.monotonic() - self.asked_at >= SETTLE_S:
                self._note("cleared")
                return
            self.clock.sleep(POLL_S)

    def _check_alone(self, box: Box) -> None:
        """The provider may sell one offer twice. Of two boxes of ours on a machine the older one stays."""
        for other in self.provider.boxes(f"{self.label.prefix}/"):
            same = other.machine_id and other.machine_id == box.machine_id and other.id != box.id
            if same and (len(other.id), other.id) < (len(box.id), box.id):
                raise NotUsable(f"machine {box.machine_id} holds box {other.id} ({other.label}) already")

    def _wait(self, box: Box, ready: Callable[[Box], bool], patience: Patience, max_price: float) -> Box:
        begun = moved = self.clock.monotonic()
        progress: object = None
        while True:
            seen = self._look(box)
            now = self.clock.monotonic()
            if seen is not None:
                self._check(seen, max_price)
                if seen.state == "running" and ready(seen):
                    return seen
                if (seen.state, seen.message) != progress:
                    progress, moved = (seen.state, seen.message), now
                    self.say(f"box {box.id}: {seen.message}")
            if now - moved >= patience.stalled_s or now - begun >= patience.total_s:
                raise NotUsable(
                    f"box {box.id} on machine {box.machine_id} is not usable after {now - begun:.0f} s, "
                    f"{now - moved:.0f} s without progress; last: {seen.message if seen else 'not known'}"
                )
            self.clock.sleep(POLL_S)

    def _look(self, box: Box) -> Box | None:
        """The box as it is now, None when the provider cannot tell at the moment."""
        try:
            seen = self.provider.box(box.id)
        except ProviderError as error:
            self.say(f"box {box.id}: {error}")
            return None
        if seen is None:
            if self.clock.monotonic() - self.asked_at < SETTLE_S:
                return None
            raise NotUsable(f"box {box.id} on machine {box.machine_id} has vanished")
        price = seen.dollars_per_hour or box.dollars_per_hour
        return replace(seen, label=str(self.label), dollars_per_hour=price)

    def _check(self, seen: Box, max_price: float) -> None:
        if seen.state in ("stopped", "failed"):
            raise NotUsable(f"box {seen.id} on machine {seen.machine_id} is {seen.state}: {seen.message}")
        self._check_ordered(seen)
        self._check_price(seen, max_price)
        if self.clock.now() >= self.label.deadline:
            raise NotUsable(f"box {seen.id} is not usable at its deadline")

    def _check_ordered(self, seen: Box) -> None:
        """The row of a box may say another GPU than its offer did."""
        offer = self.offer
        if seen.gpu not in (None, offer.gpu) or seen.num_gpus not in (None, offer.num_gpus):
            ordered = f"ordered was {offer.num_gpus} x {offer.gpu}"
            raise NotUsable(f"box {seen.id} has {seen.num_gpus} x {seen.gpu}, {ordered}")

    def _check_price(self, seen: Box, max_price: float) -> None:
        """The deadline was computed from the price of the offer, which the box may not keep."""
        price = f"${seen.dollars_per_hour:.3f}/h"
        if seen.dollars_per_hour > max_price * PRICE_TOLERANCE:
            raise NotUsable(f"box {seen.id} costs {price}, the limit is ${max_price:.3f}/h")
        if seen.dollars_per_hour <= self.offer.dollars_per_hour * PRICE_TOLERANCE:
            return
        entries = [entry for entry in self.journal.read()[0] if entry.run == self.order.run]
        left_h = (self.label.deadline - self.clock.now()) / money.HOUR_S
        spent = money.price_so_far(money.rents_of(entries), self.clock.now())
        if (most := spent + left_h * seen.dollars_per_hour) > self.order.caps.dollars:
            raise NotUsable(
                f"box {seen.id} costs {price}, it was offered for ${self.offer.dollars_per_hour:.3f}/h: "
                f"${most:.2f} by its deadline, the cap is ${self.order.caps.dollars:.2f}"
            )

    def _note(self, step: Step, box_id: str = "", note: str = "") -> None:
        self.journal.write(
            Entry(
                at=self.clock.now(),
                run=self.label.run,
                step=step,
                provider=self.provider.name,
                label=str(self.label),
                deadline=self.label.deadline,
                offer=self.offer.id,
                machine=self.offer.machine_id,
                box=box_id,
                dollars_per_hour=self.offer.dollars_per_hour,
                note=note,
            )
        )
