"""Vast.ai in a thread: its REST API with the shapes and faults of the real one, and boxes that do nothing.

Who wants boxes that do something hooks into `on_create`, `on_attach` and `on_destroy`, which get the row of
the box, and sets its `public_ipaddr`, `ports` and `host_key`; `ssh_keys` are those it was given.
"""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "fake-account-key-0123456789abcdef"
BOOT = (None, "loading", "running")
PRIVATE = ("ssh_keys", "host_key", "log")
HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFakeHostKeyFakeHostKeyFakeHostKeyFakeHostK1"
COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "eq": lambda value, limit: value == limit,
    "gte": lambda value, limit: value >= limit,
    "lte": lambda value, limit: value <= limit,
    "in": lambda value, limit: value in limit,
}

Row = dict[str, Any]
Answer = tuple[int, Any]


@dataclass
class Trouble:
    """What happens to the next `times` requests that match, instead of an answer.

    `path`: pattern of the whole path. `after`: the request is carried out first. `cut`: the connection ends
    without an answer. `wait_s`: pause before all this. `body` may be a function of the body it replaces.
    """

    method: str
    path: str
    times: int = 1
    status: int = 503
    body: Any = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    after: bool = False
    cut: bool = False
    wait_s: float = 0.0


@dataclass(frozen=True)
class Seen:
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any


def make_offer(number: int, dollars: float, **changes: Any) -> Row:
    """An offer as good as any; `dollars` per hour without storage, which costs 0.20 a GB and month."""
    return {
        "id": number,
        "ask_contract_id": number,
        "machine_id": number // 10,
        "host_id": 7,
        "gpu_name": "RTX 4090",
        "num_gpus": 1,
        "gpu_ram": 24564,
        "cuda_max_good": 13.0,
        "driver_version": "580.95.05",
        "dph_base": dollars,
        "storage_cost": 0.20,
        "min_bid": dollars / 2,
        "reliability": 0.99,
        "reliability2": 0.99,
        "inet_down": 900.0,
        "disk_space": 500.0,
        "direct_port_count": 20,
        "static_ip": True,
        "verification": "verified",
        "verified": True,
        "external": False,
        "rentable": True,
        "hosting_type": 0,
        "geolocation": "Sweden, SE",
        "duration": 1e6,
    } | changes


class FakeVast:
    """A context manager; `url` and `key` are what a client needs.

    `troubles`: what goes wrong next, the first that matches first. `boot`: the statuses that a new box goes
    through, one at each look at it; `boot_of_machine`: on that machine. `filters`: a search is obeyed.
    `late`: looks that pass before a new box appears. `resale`: an offer stays when it is taken. `stubborn`:
    requests to destroy a new box that are taken and forgotten. `log_polls`: times that a log which was asked
    for is not there yet.
    """

    def __init__(self, offers: Sequence[Row] = ()) -> None:
        self.key = KEY
        self.offers: dict[int, Row] = {row["id"]: dict(row) for row in offers}
        self.boxes: dict[int, Row] = {}
        self.seen: list[Seen] = []
        self.troubles: list[Trouble] = []
        self.boot: Sequence[str | None] = BOOT
        self.boot_of_machine: dict[int, Sequence[str | None]] = {}
        self.filters = True
        self.late = 0
        self.resale = False
        self.stubborn = 0
        self.log_polls = 1
        self.host_key = HOST_KEY
        self.created: list[int] = []
        self.destroyed: list[int] = []
        self.on_create: Callable[[Row], None] = lambda row: None
        self.on_destroy: Callable[[Row], None] = lambda row: None
        self.on_attach: Callable[[Row], None] = lambda row: None
        self.lock = threading.RLock()
        self._next = 5000
        self._steps: dict[int, list[str | None]] = {}
        self._late: dict[int, int] = {}
        self._stubborn: dict[int, int] = {}
        self._results: dict[str, list[Any]] = {}

    def __enter__(self) -> FakeVast:
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    # What a test does to boxes.

    def add_box(
        self, label: str | None, machine: int = 100, status: str | None = "running", late: int = 0
    ) -> int:
        """A box that was made some other time, by anyone. `late`: looks that pass before it appears."""
        with self.lock:
            number = self._new_number()
            self.boxes[number] = self._row(number, machine, label, 0.40) | {
                "start_date": time.time() - 3600.0
            }
            self._set_status(self.boxes[number], status)
            self._late[number] = late
            return number

    def outbid(self, number: int) -> None:
        with self.lock:
            self._steps.pop(number, None)
            self.boxes[number].update(actual_status="stopped", intended_status="stopped", cur_state="stopped")

    def restart(self, number: int, port: int, host_key: str) -> None:
        """The box comes back at another port, with another host key."""
        with self.lock:
            row = self.boxes[number]
            row["ports"] = {"22/tcp": [{"HostIp": "0.0.0.0", "HostPort": str(port)}]}
            row["host_key"] = host_key
            row["log"] += _printed(host_key)

    def requests(self, method: str, path: str = ".*") -> list[Seen]:
        with self.lock:
            return [seen for seen in self.seen if seen.method == method and re.fullmatch(path, seen.path)]

    # What the API does.

    def answer(self, seen: Seen) -> Answer:
        for method, pattern, act in self._routes():
            match = re.fullmatch(pattern, seen.path)
            if match and method == seen.method:
                return act(seen, *match.groups())
        return 404, "404 page not found"

    def _routes(self) -> tuple[tuple[str, str, Callable[..., Answer]], ...]:
        one = r"/api/v0/instances/(\d+)/"
        return (
            ("POST", "/api/v0/bundles/", self._search),
            ("PUT", r"/api/v0/asks/(\d+)/", self._create),
            ("GET", "/api/v1/instances/", self._list),
            ("GET", "/api/v0/instances/", lambda seen: (410, {"error": "deprecated_endpoint"})),
            ("GET", one, self._show),
            ("DELETE", one, self._destroy),
            ("PUT", one, self._manage),
            ("POST", one + "ssh/", self._attach),
            ("PUT", r"/api/v0/instances/request_logs/(\d+)/?", self._request_logs),
        )

    def _search(self, seen: Seen) -> Answer:
        disk = float(seen.body.get("allocated_storage") or 5)
        rows = [self._priced(row, disk) for row in self.offers.values()]
        for name, conditions in seen.body.items():
            if isinstance(conditions, dict) and self.filters:
                rows = [row for row in rows if _holds(row, name, conditions)]
        rows.sort(key=lambda row: row["dph_total"])
        return 200, {"offers": rows[: int(seen.body.get("limit") or 64)]}

    def _priced(self, row: Row, disk: float) -> Row:
        return row | {"dph_total": round(row["dph_base"] + row["storage_cost"] * disk / 730, 6)}

    def _create(self, seen: Seen, number: str) -> Answer:
        offer = self.offers.get(int(number))
        if offer is None or not offer["rentable"]:
            message = f"error 404/3603: no_such_ask Instance type by id {number} is not available."
            return 400, {"success": False, "error": "invalid_args", "msg": message}
        if not self.resale:
            del self.offers[int(number)]
        box = self._new_number()
        price = self._priced(offer, float(seen.body["disk"]))["dph_total"]
        row = self._row(box, offer["machine_id"], seen.body["label"], price) | {
            "image_uuid": seen.body["image"],
            "gpu_name": offer["gpu_name"],
            "num_gpus": offer["num_gpus"],
        }
        row["onstart"] = seen.body.get("onstart")
        self.boxes[box] = row
        self.created.append(box)
        self._late[box] = self.late
        self._stubborn[box] = self.stubborn
        self._steps[box] = list(self.boot_of_machine.get(offer["machine_id"], self.boot))
        self.on_create(row)
        return 200, {"success": True, "new_contract": box, "instance_api_key": "instance-scoped-key-fake"}

    def _list(self, seen: Seen) -> Answer:
        filters = json.loads(seen.query.get("select_filters", "{}"))
        numbers = sorted(number for number in self.boxes if not self._hidden(number))
        for name, conditions in filters.items():
            numbers = [number for number in numbers if _holds(self.boxes[number], name, conditions)]
        after, limit = int(seen.query.get("after_token") or 0), int(seen.query.get("limit") or 25)
        page = [number for number in numbers if number > after][:limit]
        more = any(number > page[-1] for number in numbers) if page else False
        return 200, {
            "success": True,
            "instances": [self._look(number) for number in page],
            "next_token": str(page[-1]) if more else None,
            "total_instances": len(numbers),
        }

    def _show(self, seen: Seen, number: str) -> Answer:
        known = int(number) in self.boxes and not self._hidden(int(number))
        return 200, {"instances": self._look(int(number)) if known else None}

    def _destroy(self, seen: Seen, number: str) -> Answer:
        row = self.boxes.get(int(number))
        if row is None:
            return 404, {"success": False, "error": "no_such_instance", "msg": f"Instance {number} not found"}
        if self._stubborn.get(int(number), 0) > 0:
            self._stubborn[int(number)] -= 1
            return 200, {"success": True}
        del self.boxes[int(number)]
        self.destroyed.append(int(number))
        self.on_destroy(row)
        return 200, {"success": True, "msg": "destroyed"}

    def _manage(self, seen: Seen, number: str) -> Answer:
        row = self.boxes.get(int(number))
        if row is None:
            return 404, {"success": False, "error": "no_such_instance", "msg": f"Instance {number} not found"}
        if "label" in seen.body:
            row["label"] = seen.body["label"]
        if "state" in seen.body:
            row.update(dict.fromkeys(("intended_status", "cur_state", "actual_status"), seen.body["state"]))
        return 200, {"success": True}

    def _attach(self, seen: Seen, number: str) -> Answer:
        row = self.boxes.get(int(number))
        if row is None:
            return 404, {"success": False, "error": "no_such_instance", "msg": f"Instance {number} not found"}
        key = seen.body["ssh_key"]
        if key in row["ssh_keys"]:
            return 400, {"success": False, "error": "invalid_request", "msg": "SSH key is already associated"}
        row["ssh_keys"].append(key)
        self.on_attach(row)
        return 200, {"success": True, "msg": "SSH key added to instance."}

    def _request_logs(self, seen: Seen, number: str) -> Answer:
        row = self.boxes.get(int(number))
        if row is None:
            return 404, {"success": False, "error": "no_such_instance", "msg": f"Instance {number} not found"}
        name = f"/results/{len(self._results)}.log"
        self._results[name] = [self.log_polls, row["log"]]
        return 200, {"success": True, "result_url": self.url + name, "msg": "requested"}

    def result(self, path: str) -> tuple[int, str]:
        """A text that is kept for whoever knows its address, and is not there at once."""
        kept = self._results.get(path)
        if kept is None:
            return 404, "<Error>NoSuchKey</Error>"
        kept[0] -= 1
        return (403, "<Error>AccessDenied</Error>") if kept[0] >= 0 else (200, kept[1])

    # The life of a box.

    def _new_number(self) -> int:
        self._next += 1
        return self._next

    def _row(self, number: int, machine: int, label: str | None, price: float) -> Row:
        return {
            "id": number,
            "label": label,
            "actual_status": None,
            "intended_status": "running",
            "cur_state": "unloaded",
            "next_state": "running",
            "status_msg": None,
            "ssh_host": "ssh4.vast.example",
            "ssh_port": 10000 + number,
            "public_ipaddr": None,
            "ports": None,
            "image_runtype": "ssh_direc ssh_proxy",
            "machine_id": machine,
            "host_id": 7,
            "gpu_name": "RTX 4090",
            "num_gpus": 1,
            "driver_version": "580.95.05",
            "cuda_max_good": 13.0,
            "disk_space": 100.0,
            "disk_usage": -1.0,
            "dph_total": price,
            "start_date": None,
            "end_date": None,
            "extra_env": None,
            "onstart": None,
            "template_hash_id": None,
            "ssh_keys": [],
            "host_key": self.host_key,
            "log": "",
        }

    def _hidden(self, number: int) -> bool:
        left = self._late.get(number, 0)
        self._late[number] = left - 1
        return left > 0

    def _look(self, number: int) -> Row:
        row, steps = self.boxes[number], self._steps.get(number)
        if steps:
            self._set_status(row, steps.pop(0) if len(steps) > 1 else steps[0])
        return {name: value for name, value in row.items() if name not in PRIVATE}

    def _set_status(self, row: Row, status: str | None) -> None:
        began = status == "running" and row["actual_status"] != "running"
        row["actual_status"] = status
        row["status_msg"] = None if status is None else f"status is {status}\n"
        if not began:
            return
        row["cur_state"] = "running"
        row["start_date"] = row["start_date"] or time.time()
        row["extra_env"] = [["CUDA", "13"]]
        if row["ports"] is None:
            row["public_ipaddr"] = " 203.0.113.9\n"
            row["ports"] = {"22/tcp": [{"HostIp": "0.0.0.0", "HostPort": str(40000 + row["id"] % 1000)}]}
        row["log"] += _printed(row["host_key"])


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that die in the middle are what is tested."""


def _printed(host_key: str) -> str:
    return (
        "pulling image\ncaf\u00e9 \u2713\n"
        f"llm-ladder-host-keys begin\n{host_key} root@box\nllm-ladder-host-keys end\nready\n"
    )


def _holds(row: Row, name: str, conditions: Mapping[str, Any]) -> bool:
    value = row.get(name)
    if name == "driver_version" and value is not None:
        major, minor, patch = (int(part) for part in str(value).split("."))
        value = major * 1_000_000 + minor * 1_000 + patch
    # Like the real search, rows with a null come through: clients must look again.
    return value is None or all(
        COMPARISONS[sign](value, _like(value, limit)) for sign, limit in conditions.items()
    )


def _like(value: Any, limit: Any) -> Any:
    """The vendor's client sends numbers as text."""
    return type(value)(limit) if isinstance(limit, str) else limit


def _handler(fake: FakeVast) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = urllib.parse.urlsplit(self.path)
            query = dict(urllib.parse.parse_qsl(parts.query))
            headers = {name.lower(): value for name, value in self.headers.items()}
            seen = Seen(self.command, parts.path, query, headers, json.loads(content) if content else None)
            with fake.lock:
                fake.seen.append(seen)
                trouble = self._trouble(seen)
            if trouble and trouble.wait_s:
                time.sleep(trouble.wait_s)
            status, body = self._answer(seen) if trouble is None or trouble.after else (trouble.status, "")
            if trouble and trouble.cut:
                self.close_connection = True
                return
            if trouble:
                given = trouble.body
                status, body = trouble.status, given(body) if callable(given) else given
            self._send(status, body, trouble.headers if trouble else {})

        do_GET = do_PUT = do_POST = do_DELETE = _serve

        def _trouble(self, seen: Seen) -> Trouble | None:
            for trouble in fake.troubles:
                if (
                    trouble.times > 0
                    and trouble.method == seen.method
                    and re.fullmatch(trouble.path, seen.path)
                ):
                    trouble.times -= 1
                    return trouble
            return None

        def _answer(self, seen: Seen) -> tuple[int, Any]:
            with fake.lock:
                if seen.path.startswith("/results/"):
                    return fake.result(seen.path)
                if seen.headers.get("authorization") != f"Bearer {fake.key}":
                    return 404, {"success": False, "error": "auth_error", "msg": "Invalid user key"}
                return fake.answer(seen)

        def _send(self, status: int, body: Any, headers: Mapping[str, str]) -> None:
            content = (body if isinstance(body, str) else json.dumps(body)).encode()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    return Handler
