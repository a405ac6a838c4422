"""Many runs on a Ray cluster: the driver keeps the queue, a worker on each core or GPU takes from it.

Runs live under ``job.root``, which all nodes must share; nothing but progress and results travels through Ray. A worker
that dies, alone or with its node, gives its unfinished runs back to the queue, and they go on from their checkpoints.

Who may write to a run's folder: one worker, the one that the driver handed it to. A folder's lock also holds between
machines where the shared file system passes locks on, as NFS does by default, but nothing here relies on that. Ray ends
the workers of a driver that has died. One that is cut off from its driver hears nothing, and stops by itself.
"""

import importlib
import logging
import math
import signal
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from ocil.config import RunConfig
from ocil.engine import gpu, local
from ocil.engine.local import Job, Outcome, Watcher, explained, look_up
from ocil.engine.nodes import examiner, place_marker, unfit
from ocil.errors import InUseError, OcilError, WriteError, optional
from ocil.runner import Interrupted, Progress, pick_device

RETRIES = 3  # of a run whose worker died
SILENCE = 20.0  # seconds without the driver after which a worker saves and stops; Ray takes longer to give up a node
PATIENCE = 120.0  # seconds to wait for a folder that is still held: by a worker cut off, or in the name of a dead node
ANSWER = 180.0  # seconds for a node to load PyTorch and the datasets for the first time
LOOK_EVERY = 5.0  # seconds between two looks at which nodes there are
GRACE = 60.0  # seconds without any node before the rest is given up

log = logging.getLogger(__name__)


def run_all(
    configs: Sequence[RunConfig],
    job: Job,
    workers: int = 0,
    watch: Watcher = lambda number, event: None,
    should_stop: Callable[[], bool] = lambda: False,
    address: str | None = None,
) -> list[Outcome]:
    """Run every configuration on the cluster at ``address``, with the contract of the other engines.

    On CPUs a worker takes ``job.threads`` of them and one run at a time; there are at most ``workers``, by default as
    many as fit. On GPUs a worker takes ``job.gpu_share`` of one and runs ``workers`` at once, by default ten. The
    device ``auto`` is a GPU if the cluster has one.
    """
    if not 0 < job.gpu_share <= 1:
        raise OcilError(f"--gpu-share {job.gpu_share:g} must be above 0 and at most 1.")
    outcomes = look_up(configs, job, watch)
    waiting = [number for number in range(len(configs)) if number not in outcomes]
    if waiting and not should_stop():
        with connected(address) as ray:
            device = _device(job.device, ray.cluster_resources())
            data_dir = job.data_dir and job.data_dir.expanduser().resolve()
            job = replace(job, root=job.root.resolve(), device=device, data_dir=data_dir)
            if device == "cuda":
                crew = Crew(job.gpu_share, job.gpu_share, workers or gpu.SIDE_BY_SIDE, packed=True)
            else:
                crew = Crew(job.threads, 0.0, 1, most=workers or None)
            outcomes |= Sweep(ray, configs, waiting, job, crew, watch, should_stop).go()
    return [outcomes.get(number, Interrupted("not started")) for number in range(len(configs))]


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """The package ``ray`` with a connection to a cluster: the one there is, else one for this block."""
    with optional("--engine ray needs a package", "ray", "ray"):
        ray: Any = importlib.import_module("ray")
    if ray.is_initialized():
        yield ray
        return
    how = "Start one with `ray start --head`, or give --address HOST:PORT."
    if address is not None and address != "auto":
        _must_answer(address, how)
    terminated = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address or "auto", log_to_driver=False, logging_level=logging.ERROR)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, terminated)  # Ray's own would end this process before its runs are saved
    except (ConnectionError, ValueError, RuntimeError) as error:
        if address is None:
            raise OcilError(f"this machine belongs to no Ray cluster. {how}") from error
        raise OcilError(f"no Ray cluster at {address}: {str(error).splitlines()[0]} {how}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _must_answer(address: str, how: str) -> None:
    """Ray would try for minutes."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or "/" in host:
        raise OcilError(f"--address {address} is not HOST:PORT, as `ray start --head` prints it.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        raise OcilError(f"no Ray cluster at {address}: {error}. {how}") from None


def _device(wanted: str, resources: Mapping[str, float]) -> str:
    has_gpu = resources.get("GPU", 0) > 0
    if wanted not in ("auto", "cpu", "cuda"):
        raise OcilError(f"device '{wanted}' does not name a kind of node: use auto, cpu or cuda with --engine ray.")
    if wanted == "cuda" and not has_gpu:
        raise OcilError("no node of the Ray cluster has a GPU: use --device cpu, or start a node that has one.")
    return "cuda" if has_gpu and wanted != "cpu" else "cpu"


@dataclass(frozen=True)
class Crew:
    """What a worker takes of its node, how many runs it is handed at a time, how many workers there may be."""

    cpus: float
    gpus: float
    together: int
    most: int | None = None
    packed: bool = False

    def room(self, resources: Mapping[str, float]) -> int:
        """Workers that a node with these resources has room for."""
        fits = [resources.get(name, 0) / need for name, need in (("CPU", self.cpus), ("GPU", self.gpus)) if need]
        return int(min(fits) + 1e-6)


class Worker:
    """Lives on a node. A thread runs what it was handed; meanwhile ``news`` tells the driver how it goes."""

    def __init__(self, job: Job, crew: Crew) -> None:
        self.job, self.crew = job, crew
        self.events: SimpleQueue[tuple[int, Progress | Outcome]] = SimpleQueue()
        self.stop = False
        self.heard = time.monotonic()

    def hello(self) -> str | None:
        """What keeps it from working, if anything does."""
        try:
            pick_device(self.job.device)
        except OcilError as error:
            return str(error)
        return None

    def take(self, unit: dict[int, RunConfig]) -> None:
        self.heard = time.monotonic()
        Thread(target=self.work, args=(unit,), daemon=True).start()

    def news(self, stop: bool) -> list[tuple[int, Progress | Outcome]]:
        """What happened since the last call; waits a moment for something to happen."""
        self.heard, self.stop = time.monotonic(), self.stop or stop
        found = []
        with suppress(Empty):
            found.append(self.events.get(timeout=1.0))
            while True:
                found.append(self.events.get_nowait())
        self.heard = time.monotonic()
        return found

    def should_stop(self) -> bool:
        return self.stop or time.monotonic() - self.heard > SILENCE

    def work(self, unit: dict[int, RunConfig]) -> None:
        """Each run of the unit ends with one outcome among the events."""
        until = time.monotonic() + PATIENCE
        while unit := self.attempt(unit, patient=time.monotonic() < until):
            time.sleep(1)

    def attempt(self, unit: dict[int, RunConfig], patient: bool) -> dict[int, RunConfig]:
        """Run the unit. Returns what to try again: runs whose folder somebody else may still hold for a moment."""
        numbers, left = list(unit), dict(unit)

        def tell(position: int, event: Progress | Outcome) -> None:
            if isinstance(event, InUseError | WriteError) and patient and not self.should_stop():
                return
            if not isinstance(event, Progress):
                del left[numbers[position]]
            self.events.put((numbers[position], event))

        run_all, size = (gpu.run_all, self.crew.together) if self.crew.packed else (local.run_all, 1)
        try:
            found = run_all(list(unit.values()), self.job, size, tell, self.should_stop)
        except Exception as error:  # before any run: a dataset that cannot be read, say
            found = [explained(error, config) for config in unit.values()]
        for position, outcome in enumerate(found):
            if numbers[position] in left:  # it was not begun, or nothing could be
                tell(position, outcome)
        return left


@dataclass(eq=False)
class Node:
    """A machine that was looked at and found fit."""

    id: str
    host: str
    room: int
    alive: bool = True
    failed_starts: int = 0


@dataclass(eq=False)
class Hand:
    """A worker as the driver sees it, with the runs it has not yet finished."""

    actor: Any
    node: Node
    numbers: list[int] = field(default_factory=list)


class Sweep:
    """The driver: hands runs to workers, hears of them, and hands out again what a dead worker left."""

    def __init__(
        self,
        ray: Any,
        configs: Sequence[RunConfig],
        waiting: Iterable[int],
        job: Job,
        crew: Crew,
        watch: Watcher = lambda number, event: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.ray, self.configs, self.job, self.crew = ray, configs, job, crew
        self.watch, self.should_stop = watch, should_stop
        self.waiting = deque(waiting)
        self.outcomes: dict[int, Outcome] = {}
        self.begun: set[int] = set()
        self.deaths: Counter[int] = Counter()  # by run: of its workers
        self.nodes: dict[str, Node] = {}
        self.seen: set[str] = set()  # nodes that were asked, fit or not
        self.calls: dict[Any, Callable[[Any], None]] = {}  # what was asked of the cluster -> who hears the answer
        self.hands: list[Hand] = []
        self.stopping = False
        self.looked = self.manned = time.monotonic()
        self.trouble = ""
        self.worker = ray.remote(Worker)
        self.examine = examiner()
        names = sorted({configs[number].dataset for number in self.waiting})
        self.datasets = (names, None if job.data_dir is None else str(job.data_dir))
        self.mine = self.examine(None, *self.datasets)
        self.torch: str | None = None  # the nodes' version
        # Libraries that pay no heed to torch.set_num_threads do so to this.
        self.environment = {"env_vars": {"OMP_NUM_THREADS": str(job.threads)}}

    def go(self) -> dict[int, Outcome]:
        try:
            self.admit()
            while self.waiting or any(hand.numbers for hand in self.hands):
                if self.should_stop():
                    self.stopping = True
                    self.waiting.clear()
                    for hand in [hand for hand in self.hands if not hand.numbers]:
                        self.dismiss(hand)
                self.look_for_nodes()
                self.hire()
                self.listen()
        finally:
            for hand in list(self.hands):
                self.dismiss(hand)
        return self.outcomes

    def admit(self) -> None:
        """Ask every node before anything runs. All must be fit: that one is not is a mistake to mend."""
        fitting = self.fitting()
        if not fitting:
            needs = f"{self.crew.cpus:g} CPUs" + (f" and {self.crew.gpus:g} GPU" if self.crew.gpus else "")
            raise OcilError(f"no node of the Ray cluster has {needs} for a worker: start one, or use fewer --threads.")
        asked = [self.ask(node) for node in fitting]
        self.ray.wait([ref for ref, _ in asked], num_returns=len(asked), timeout=ANSWER)
        problems = [self.judge(node, marker, ref) for (ref, marker), node in zip(asked, fitting, strict=True)]
        for problem in filter(None, problems):
            raise OcilError(problem)

    def fitting(self) -> list[dict[str, Any]]:
        """Nodes with room for a worker; what is known of the others is brought up to date."""
        self.looked = time.monotonic()
        alive = {node["NodeID"]: node for node in self.ray.nodes() if node["Alive"]}
        for node in self.nodes.values():
            node.alive = node.id in alive
        return [node for node in alive.values() if self.crew.room(node["Resources"])]

    def look_for_nodes(self) -> None:
        """Nodes that joined since are asked too. One that is not fit is left out and said."""
        if time.monotonic() - self.looked < LOOK_EVERY:
            return
        for node in self.fitting():
            if node["NodeID"] not in self.seen:
                ref, marker = self.ask(node)
                self.calls[ref] = partial(self.joined, node, marker)

    def ask(self, node: dict[str, Any]) -> tuple[Any, Path]:
        self.seen.add(node["NodeID"])
        marker = place_marker(self.job.root)
        task = self.ray.remote(self.examine).options(**self.on(node["NodeID"]), num_cpus=0, max_retries=0)
        return task.remote(str(marker), *self.datasets), marker

    def judge(self, node: dict[str, Any], marker: Path, ref: Any) -> str | None:
        """Take a node that has answered into service, or say why not."""
        host = node["NodeManagerHostname"]
        try:
            theirs = self.ray.get(ref, timeout=0)
        except self.ray.exceptions.GetTimeoutError:
            problem: str | None = "does not answer: look at it with `ray status`."
        except self.ray.exceptions.RayError as error:
            if not any(other["Alive"] for other in self.ray.nodes() if other["NodeID"] == node["NodeID"]):
                marker.unlink(missing_ok=True)
                return None  # it left while it was asked
            problem = f"cannot be asked: {str(error).splitlines()[0]}"
        else:
            problem = unfit(theirs, self.mine, self.job.root, self.torch)
        marker.unlink(missing_ok=True)
        if problem is not None:
            return f"node {host} of the Ray cluster {problem}"
        self.torch = theirs["torch"]
        self.nodes[node["NodeID"]] = Node(node["NodeID"], host, self.crew.room(node["Resources"]))
        return None

    def joined(self, node: dict[str, Any], marker: Path, ref: Any) -> None:
        if (problem := self.judge(node, marker, ref)) is not None:
            log.warning("%s It is left out.", problem)

    def on(self, node_id: str) -> dict[str, Any]:
        strategies: Any = importlib.import_module("ray.util.scheduling_strategies")
        there = strategies.NodeAffinitySchedulingStrategy(node_id, soft=False)
        return {"scheduling_strategy": there, "runtime_env": self.environment}

    def free_node(self) -> Node | None:
        """The node with the most room."""
        taken = Counter(hand.node.id for hand in self.hands)
        usable = [node for node in self.nodes.values() if node.alive and node.failed_starts < RETRIES]
        if usable:
            self.manned = time.monotonic()
        free = [node for node in usable if taken[node.id] < node.room]
        return max(free, key=lambda node: node.room - taken[node.id], default=None)

    def hire(self) -> None:
        """Start workers while there are runs for them and nodes with room."""
        if self.hands:
            self.manned = time.monotonic()
        starting = sum(not hand.numbers for hand in self.hands)
        while starting < len(self.waiting) and len(self.hands) < (self.crew.most or math.inf):
            if (node := self.free_node()) is None:
                break
            takes = {"num_cpus": self.crew.cpus, "num_gpus": self.crew.gpus}
            there = self.worker.options(**self.on(node.id), **takes, max_restarts=0)
            hand = Hand(there.remote(self.job, self.crew), node)
            self.hands.append(hand)
            self.calls[hand.actor.hello.remote()] = partial(self.greeted, hand)
            starting += 1
        if self.waiting and not self.hands and time.monotonic() - self.manned > GRACE:
            reason = f" ({self.trouble})" if self.trouble else ""
            message = f"no node of the Ray cluster is left to work{reason}: start one, and the same command goes on."
            while self.waiting:
                self.settle(self.waiting.popleft(), OcilError(message))

    def listen(self) -> None:
        if not self.calls:
            time.sleep(0.2)
            return
        ready, _ = self.ray.wait(list(self.calls), num_returns=1, timeout=0.2)
        for ref in ready:
            self.calls.pop(ref)(ref)

    def greeted(self, hand: Hand, ref: Any) -> None:
        """A worker is up, or has said why it cannot work, or died before it could."""
        if hand not in self.hands:
            return
        try:
            problem = self.ray.get(ref)
        except self.ray.exceptions.RayError:
            self.lost(hand)
            return
        if problem is None:
            self.hand_over(hand)
            return
        self.trouble = f"node {hand.node.host}: {problem}"
        log.warning("%s It is left out.", self.trouble)
        hand.node.failed_starts = RETRIES
        self.dismiss(hand)

    def hand_over(self, hand: Hand) -> None:
        if not self.waiting:
            self.dismiss(hand)
            return
        hand.numbers = self.next_unit()
        hand.actor.take.remote({number: self.configs[number] for number in hand.numbers})
        self.follow(hand)

    def next_unit(self) -> list[int]:
        """Runs for one worker: they share dataset and precision, and leave enough for the other workers."""
        first = self.waiting.popleft()
        if self.deaths[first] > 1:
            return [first]  # two workers died under it: alone it can take nobody along
        slots = sum(node.room for node in self.nodes.values() if node.alive)
        size = min(self.crew.together, math.ceil((1 + len(self.waiting)) / max(1, slots)))
        alike = [n for n in self.waiting if self.kind(n) == self.kind(first) and self.deaths[n] <= 1]
        for number in alike[: size - 1]:
            self.waiting.remove(number)
        return [first, *alike[: size - 1]]

    def kind(self, number: int) -> tuple[str, str]:
        config = self.configs[number]
        return config.dataset, config.learner.precision

    def follow(self, hand: Hand) -> None:
        self.calls[hand.actor.news.remote(self.stopping)] = partial(self.heard, hand)

    def heard(self, hand: Hand, ref: Any) -> None:
        try:
            events = self.ray.get(ref)
        except self.ray.exceptions.RayError:  # the process, its node, or what it wanted to say is lost
            self.lost(hand)
            return
        for number, event in events:
            self.note(hand, number, event)
        if hand.numbers:
            self.follow(hand)
        else:
            hand.node.failed_starts = 0
            self.hand_over(hand)

    def note(self, hand: Hand, number: int, event: Progress | Outcome) -> None:
        if isinstance(event, Progress):
            self.begun.add(number)
            self.watch(number, event)
            return
        hand.numbers.remove(number)
        if not isinstance(event, Interrupted):
            self.settle(number, event)
        elif self.stopping:
            self.interrupt(number, event)
        else:  # it had not heard of us for a while, and has saved
            self.waiting.append(number)

    def settle(self, number: int, outcome: Outcome) -> None:
        self.outcomes[number] = outcome
        self.watch(number, outcome)

    def interrupt(self, number: int, outcome: Interrupted) -> None:
        self.outcomes[number] = outcome
        if number in self.begun:
            self.watch(number, outcome)

    def lost(self, hand: Hand) -> None:
        """A worker has died. What it had not finished waits again, behind the others."""
        hand.node.failed_starts += not hand.numbers
        self.looked = 0.0  # perhaps its node is gone too
        for number in hand.numbers:
            self.deaths[number] += 1
            config = self.configs[number]
            if self.stopping:
                self.interrupt(number, Interrupted("its worker died"))
            elif self.deaths[number] <= RETRIES:
                self.waiting.append(number)
            else:
                message = (
                    f"{config.cell} seed {config.seed}: its worker died {RETRIES + 1} times, the last time on node "
                    f"{hand.node.host}. The same command goes on from its last checkpoint."
                )
                self.settle(number, OcilError(message))
        hand.numbers = []
        self.dismiss(hand)

    def dismiss(self, hand: Hand) -> None:
        self.hands.remove(hand)
        with suppress(self.ray.exceptions.RayError):
            self.ray.kill(hand.actor)
