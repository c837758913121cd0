# SPDX-License-Identifier: Apache-2.0
"""froghopper.torch.context_parallel.probe: what transfers and calls cost between the ranks of a group, for the model of
time of the library.

Groups of transfers go the way that those of a plan go: over the group's backend, or by copies between GPUs. Each is
timed with a few bytes, for the latency, and with many. All ranks take part in all of them, and the slowest rank counts.
"""
import ctypes
import json
import math
import os
import pathlib
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from froghopper import _c_parallel as c
from froghopper import _torch_cp_copies as copies
from froghopper import _torch_cp_group as groups
from froghopper import _torch_cp_transport as transport
from froghopper._errors import InvalidProblem, LaunchFailed
from froghopper._torch_attention import attention
from froghopper._torch_calls import stream_of
from froghopper._torch_cp_words import tells_others
from froghopper._words import takes_words_of_others

FEW = 4096  # bytes of a group of transfers that shows the latency
WARM, ROUNDS = 2, 5  # rounds that are not counted, and that are
ALIGNMENT = 256  # of what each of several peers gets
LEAST = 1e-12  # of a measured difference
TRIES = 3  # of a transfer that seems to take no longer than a latency
MOST_IN_FLIGHT = 64  # groups of transfers beside the attention

# Field of fh_cp_topology -> what it is, in the file.
FIELDS = {
    "latency": "seconds of a group of transfers within a host, send and receive",
    "bandwidth": "bytes a second from one peer",
    "gather_bandwidth": "bytes a second from all peers at once",
    "slowdown": "a call of the attention beside transfers over one alone",
    "copy_latency": "the same by copies between GPUs", "copy_bandwidth": "", "copy_gather_bandwidth": "",
    "copy_slowdown": "",
    "far_latency": "the same between hosts, send and receive", "far_bandwidth": "",
    "memory": "bytes a second that a copy in a rank's own memory moves",
    "forward_flops": "FLOP a second of the attention", "backward_flops": "",
}


class Size(NamedTuple):
    """many: bytes that a rank receives in a large group of transfers. attended: heads, rows and head dim."""
    many: int
    attended: tuple[int, int, int]
    dtype: torch.dtype


SIZES = {"cuda": Size(64 << 20, (16, 16384, 128), torch.bfloat16), "cpu": Size(4 << 20, (2, 1024, 64), torch.float32)}


class Peers(NamedTuple):
    """Ranks that this one sends to and receives from; the i-th send of a rank is the i-th receive of its peer."""
    to: list[int]
    source: list[int]


class Link:
    """Groups of transfers of one kind. Peer i of a group has the i-th slot of both buffers."""

    def __init__(self, group: Any, device: torch.device, many: int, by_copies: bool):
        self.sent = torch.zeros(many, dtype=torch.uint8, device=device)
        self.received = torch.zeros_like(self.sent)
        self.shared = copies.of(group, self.sent, "auto" if by_copies else "send_recv")
        if self.shared is not None: self.received = self.shared.workspace(many, "probe")
        self.stream = stream_of(device.index) if device.type == "cuda" else 0
        self.functions = transport.Functions(group, [self.sent, self.received])

    def start(self, peers: Peers, size: int) -> Any:
        """Each peer gets `size` bytes; the ticket."""
        made = [[c.CpTransfer(peer=peer, data=x.data_ptr() + at * size, bytes=size, peer_offset=at * size)
                 for at, peer in enumerate(ranks)]
                for x, ranks in ((self.sent, peers.to), (self.received, peers.source))]
        sends, recvs = ((c.CpTransfer * len(each))(*each) for each in made)
        given = (ctypes.addressof(sends), len(sends), ctypes.addressof(recvs), len(recvs), self.stream)
        if self.shared is None:
            ticket = [0]
            self.functions.exchange(*given, ticket)
            return ticket[0]
        found = ctypes.c_void_p()
        used = self.shared.transport
        check(transport.exchange_type(used.exchange or 0)(used.context, *given, ctypes.byref(found)))
        return found

    def wait(self, ticket: Any) -> None:
        if self.shared is None: self.functions.wait(ticket, self.stream)
        else: check(transport.wait_type(self.shared.transport.wait or 0)(self.shared.transport.context, ticket,
                                                                       self.stream))


def check(code: int) -> None:
    if code: raise LaunchFailed(f"a copy between the GPUs of ranks has failed, with the number {code}. End all ranks.")


def beyond(latency: float, seconds: float) -> float:
    """Seconds of a large transfer without its latency, half of them at least: on a machine that does something else
    meanwhile the latency may come out longer than the transfer, and what is left would be a rate without bound."""
    return max(LEAST, seconds - latency, seconds / 2)


class Probe:
    """The measurements of one rank of a group."""

    def __init__(self, group: Any):
        self.group = group
        kinds = {device.type for device in group._device_types}
        gpu = "cuda" in kinds and torch.cuda.is_available()
        self.device = torch.device("cuda", torch.cuda.current_device()) if gpu else torch.device("cpu")
        self.size = SIZES[self.device.type]
        self.ranks, self.rank = group.size(), group.rank()
        self.per_host = groups.ranks_per_host(group) or self.ranks
        self.found: dict[str, float] = {}
        heads, rows, dim = self.size.attended
        self.q, self.k, self.v = (torch.randn(1, rows, heads, dim, device=self.device).to(self.size.dtype)
                                  for _ in range(3))

    def all(self) -> dict[str, float]:
        """Fields of fh_cp_topology, the same on all ranks."""
        if self.device.type == "cuda" and self.ranks > 1: groups.connect(self.group, self.q)
        alone = self.local()
        if self.ranks > 1:
            link = Link(self.group, self.device, self.size.many, False)
            self.transfers(link, "", alone)
            if self.per_host < self.ranks and self.ranks % self.per_host == 0:
                self.between("far_", link, Peers([(self.rank + self.per_host) % self.ranks],
                                                 [(self.rank - self.per_host) % self.ranks]))
            if self.device.type == "cuda":
                by_copies = Link(self.group, self.device, self.size.many, True)
                if by_copies.shared is not None: self.transfers(by_copies, "copy_", alone)
        return self.slowest()

    def transfers(self, link: Link, prefix: str, alone: float) -> None:
        """Within a host, where more ranks than one are on it."""
        first = self.rank // self.per_host * self.per_host
        count = min(self.per_host, self.ranks - first)
        if self.per_host == 1: return

        def peer(step: int) -> int: return int(first + (self.rank - first + step) % count)
        ring = Peers([peer(1)], [peer(-1)]) if count > 1 else Peers([], [])
        everyone = Peers([peer(step) for step in range(1, count)], [peer(-step) for step in range(1, count)])
        seconds = self.between(prefix, link, ring)
        most = max(1, min(self.per_host, self.ranks) - 1)
        each = self.size.many // most // ALIGNMENT * ALIGNMENT
        latency = self.found[prefix + "latency"]
        for _ in range(TRIES):
            gathered = self.of_groups(link, everyone, each)
            if gathered > 2 * latency: break
        self.found[prefix + "gather_bandwidth"] = most * each / beyond(latency, gathered)
        self.found[prefix + "slowdown"] = self.slowdown(link, ring, seconds, alone)

    def between(self, prefix: str, link: Link, peers: Peers) -> float:
        """Latency and bandwidth of such groups; seconds of a large one, the same on all ranks."""
        few = many = math.inf
        for _ in range(TRIES):  # the same on all ranks, as the seconds are
            few = min(few, self.of_groups(link, peers, FEW))
            many = min(many, self.of_groups(link, peers, self.size.many))
            if many > 2 * few: break
        self.found[prefix + "latency"] = few
        self.found[prefix + "bandwidth"] = self.size.many / beyond(few, many)
        return many

    def of_groups(self, link: Link, peers: Peers, size: int) -> float:
        """Seconds of one of several groups in a row, on the slowest rank."""
        count = 1 if size * max(1, len(peers.to)) > FEW * 64 else 10

        def several() -> None:
            for _ in range(count): link.wait(link.start(peers, size))
        return self.most(self.timed(several) / count)

    def slowdown(self, link: Link, ring: Peers, seconds: float, alone: float) -> float:
        """Of a call beside transfers that take longer than it does."""
        count = min(MOST_IN_FLIGHT, int(1.5 * self.most(alone) / max(LEAST, seconds)) + 1)  # the same on all ranks
        found = []
        for _ in range(ROUNDS):
            self.meet()
            tickets = [link.start(ring, self.size.many) for _ in range(count)]
            found.append(self.attended_for())
            for ticket in tickets: link.wait(ticket)
        return max(1.0, statistics.median(found) / max(LEAST, alone))

    def attended_for(self) -> float:
        """Seconds of a call, in whose stream nothing else is; transfers may be on their way."""
        if self.device.type == "cpu":
            begun = time.perf_counter()
            attention(self.q, self.k, self.v, causal=True)
            return time.perf_counter() - begun
        event: Any = torch.cuda.Event
        events = [event(enable_timing=True) for _ in range(2)]
        events[0].record()
        attention(self.q, self.k, self.v, causal=True)
        events[1].record()
        events[1].synchronize()
        return float(events[0].elapsed_time(events[1])) / 1e3

    def local(self) -> float:
        """What a rank does by itself; seconds of a call of the attention."""
        heads, rows, dim = self.size.attended
        flops = 2 * 2 * dim * heads * rows * (rows + 1) / 2  # of the products q k^T and P V
        for _ in range(WARM): attention(self.q, self.k, self.v, causal=True)
        alone = statistics.median(self.attended_for() for _ in range(ROUNDS))
        self.found["forward_flops"] = flops / max(LEAST, alone)
        leaves = [x.clone().requires_grad_() for x in (self.q, self.k, self.v)]
        o = attention(*leaves, causal=True)
        grad = torch.randn_like(o)
        gradients: Callable[[], Any] = lambda: torch.autograd.grad(o, leaves, grad, retain_graph=True)
        self.found["backward_flops"] = 2.5 * flops / max(LEAST, self.timed(gradients))
        source = torch.zeros(self.size.many, dtype=torch.uint8, device=self.device)
        target: Tensor = torch.empty_like(source)
        self.found["memory"] = self.size.many / max(LEAST, self.timed(lambda: target.copy_(source)))
        return alone

    def timed(self, call: Callable[[], Any]) -> float:
        """Seconds of a call that is waited for; all ranks begin it together."""
        found = []
        for _ in range(WARM + ROUNDS):
            self.meet()
            begun = time.perf_counter()
            call()
            if self.device.type == "cuda": torch.cuda.synchronize(self.device)
            found.append(time.perf_counter() - begun)
        return statistics.median(found[WARM:])

    def meet(self) -> None:
        if self.device.type == "cuda": torch.cuda.synchronize(self.device)
        groups.exchange(self.group, b"")

    def most(self, seconds: float) -> float:
        return max(float(said) for said in groups.exchange(self.group, repr(seconds).encode()))

    def slowest(self) -> dict[str, float]:
        said = [json.loads(each) for each in groups.exchange(self.group, json.dumps(self.found).encode())]
        pick: dict[bool, Callable[[Sequence[float]], float]] = {True: max, False: min}
        return {name: pick[name.endswith(("latency", "slowdown"))]([each[name] for each in said])
                for name in FIELDS if name in said[0]}

    def text(self, found: dict[str, float]) -> str:
        """The lines of a file that fh_cp_topology_parse reads."""
        what = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "CPU"
        lines = [f"# froghopper probe: {self.ranks} ranks, {min(self.per_host, self.ranks)} a host, {what}, PyTorch "
                 f"{torch.__version__}"]
        lines += [f"{name} {number:.4g}" + (FIELDS[name] and f"  # {FIELDS[name]}") for name, number in found.items()]
        return "\n".join(lines) + "\n"


@tells_others
@takes_words_of_others("torch.context_parallel")
def probe(group: Any = None, file: str | os.PathLike[str] | None = None) -> dict[str, float]:
    """Measures what transfers and calls of the attention cost between the ranks of a group, for the model of time.

    group   a group as of attention; all its ranks call this, while nothing else runs on their GPUs, or cores
    file    where rank 0 writes the numbers, as lines of text. The environment variable FROGHOPPER_CP_TOPOLOGY names
            such a file to later processes, of which all plans then use it; explain takes it too

    Returns the fields of fh_cp_topology in include/froghopper/cp.h that it has found, the same on all ranks: latencies
    in seconds and bandwidths in bytes a second, within a host ("latency", "bandwidth", "gather_bandwidth"), by copies
    between GPUs ("copy_..."), and between hosts ("far_..."); how many times as long a call takes beside transfers
    ("slowdown"); and the rates of the attention and of copies in memory. It takes some seconds.
    """
    return measured(group, file)[0]


def measured(group: Any, file: str | os.PathLike[str] | None) -> tuple[dict[str, float], str]:
    """The numbers, and the text of the file."""
    held = groups.resolved(group)
    groups.agree(held, "probe", dict, dict)  # or a rank that refuses its arguments would be waited for
    asked = Probe(held)
    with torch.enable_grad(): found = asked.all()
    said, refusal = asked.text(found), ""
    if file is not None and asked.rank == 0:
        try: pathlib.Path(file).write_text(said)
        except (OSError, TypeError, ValueError) as error:
            refusal = f"file must be one that can be written, but {error}. Give another."
    for heard in groups.exchange(held, refusal.encode()):
        if heard: raise InvalidProblem(heard.decode())
    return found, said
