"""What a provider of boxes can do. A provider is one file with a class that has these methods."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, Protocol

State = Literal["starting", "running", "stopped", "failed"]

HOST_KEYS = "llm-ladder-host-keys"
PRINT_HOST_KEYS = f"""\
( until ls /etc/ssh/ssh_host_*_key.pub >/dev/null 2>&1; do sleep 1; done
  echo "{HOST_KEYS} begin"
  cat /etc/ssh/ssh_host_*_key.pub
  echo "{HOST_KEYS} end" ) >/proc/1/fd/1 2>&1 &
"""


@dataclass(frozen=True)
class Address:
    host: str
    port: int


@dataclass(frozen=True)
class Offer:
    """A machine that can be rented now. None stands for what the provider does not know.

    `driver`: version as the driver tells it; `cuda_max`: highest CUDA version it serves; `gpu_ram_mb`: of one
    GPU, MB; `disk_gb`: largest disk to be had; `reliability`: 0 to 1; `down_mbps`: Mbit/s;
    `dollars_per_hour`: in total, with a disk of the size that was asked for.
    """

    id: str
    provider: str
    machine_id: str
    gpu: str | None
    num_gpus: int | None
    gpu_ram_mb: float | None
    driver: str | None
    cuda_max: float | None
    disk_gb: float | None
    reliability: float | None
    down_mbps: float | None
    dollars_per_hour: float
    location: str


@dataclass(frozen=True)
class Wanted:
    """What an offer must have. `gpu` is the exact name at the provider; GB are 10^9 bytes.

    The defaults of `driver` and `cuda` are what torch 2.11.0 (built for CUDA 13.0) needs: on less it silently
    computes on the CPU.
    """

    gpu: str
    num_gpus: int
    gpu_ram_gb: float
    disk_gb: int
    max_dollars_per_hour: float
    driver: int = 580
    cuda: float = 13.0
    reliability: float = 0.95
    down_mbps: float = 200
    exclude_machines: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Box:
    """A rented machine, as the provider describes it.

    `state`: only `starting` can still become `running`; `stopped` (outbid, too) costs its disk. `addresses`:
    of its ssh server, the best first; they can change whenever the box restarts. `started_at`: seconds since
    the epoch. `message`: the provider's own words about the state. `gpu`, `num_gpus`: None where it does not
    say.
    """

    id: str
    provider: str
    label: str
    machine_id: str
    state: State
    addresses: tuple[Address, ...]
    dollars_per_hour: float
    started_at: float | None
    message: str = ""
    gpu: str | None = None
    num_gpus: int | None = None


class Provider(Protocol):
    """All methods raise ProviderError when the provider cannot be asked or refuses."""

    name: str

    def offers(self, wanted: Wanted) -> list[Offer]:
        """Offers that have all that is wanted, the cheapest first."""

    def create(
        self, offer: Offer, label: str, image: str, disk_gb: int, public_key: str, onstart: str
    ) -> Box:
        """Rents, in one try.

        Raises OfferGone, Busy and Refused when nothing was rented, Unclear when a box may exist.
        """

    def boxes(self, label_prefix: str) -> list[Box]:
        """All boxes of the account whose label starts so. Raises rather than return a part of them."""

    def box(self, box_id: str) -> Box | None:
        """None only when the provider says that there is no such box."""

    def destroy(self, box_id: str) -> None:
        """Returns when the provider no longer lists the box, at once when there is none; otherwise raises."""

    def host_keys(self, box: Box) -> list[str] | None:
        """Public host keys ("TYPE BASE64") that the box printed to its log; None while there are none.

        They come through the provider's authenticated channel, which makes them fit for pinning.
        """


def suits(offer: Offer, wanted: Wanted) -> bool:
    """Whether the offer has all that is wanted; what the provider does not know it does not have."""
    return (
        offer.gpu == wanted.gpu
        and offer.num_gpus == wanted.num_gpus
        and _at_least(offer.gpu_ram_mb, wanted.gpu_ram_gb * 1000)
        and _at_least(_major(offer.driver), wanted.driver)
        and _at_least(offer.cuda_max, wanted.cuda)
        and _at_least(offer.disk_gb, wanted.disk_gb)
        and _at_least(offer.reliability, wanted.reliability)
        and _at_least(offer.down_mbps, wanted.down_mbps)
        and offer.dollars_per_hour <= wanted.max_dollars_per_hour
        and offer.machine_id not in wanted.exclude_machines
    )


def host_keys_in(log: str) -> list[str] | None:
    """Keys of the last complete block that PRINT_HOST_KEYS printed: a box that restarts prints a new one."""
    blocks = re.findall(rf"^{HOST_KEYS} begin\r?$(.*?)^{HOST_KEYS} end\r?$", log, re.DOTALL | re.MULTILINE)
    if not blocks:
        return None
    kinds = r"ssh-ed25519|ecdsa-sha2-nistp\d+|ssh-rsa"
    last = blocks[-1].rpartition(" begin")[2]
    return re.findall(rf"^((?:{kinds}) [A-Za-z0-9+/=]+)", last, re.MULTILINE) or None


def _at_least(value: float | None, limit: float) -> bool:
    return value is not None and value >= limit


def _major(version: str | None) -> int | None:
    match = re.match(r"\d+", version or "")
    return int(match[0]) if match else None
