"""The driver of a job on a Ray cluster: it examines nodes, gives runs to workers and replaces workers that die."""

import importlib
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypedDict

from ocil import plugins
from ocil.engines.job import Event, Job, Observer, Outcomes, RunQueue
from ocil.engines.nodes import examiner, pickled_questions, place_marker, unfit
from ocil.engines.ray_worker import Worker, WorkerSpec
from ocil.errors import OcilError
from ocil.runs.protocol import Interrupted, Progress, Run, RunKey

RETRIES = 3  # of a run whose worker died
NODE_TIMEOUT = 180.0  # seconds for a node to load PyTorch and the datasets for the first time
NODE_POLL_SECONDS = 5.0  # between two looks at which nodes there are
NO_NODE_TIMEOUT = 60.0  # seconds without any node after which the waiting runs fail

ObjectRef = Any
"""What Ray gives for a value that is still being computed: a ``ray.ObjectRef``."""

log = logging.getLogger(__name__)


class NodeDescription(TypedDict):
    """What ``ray.nodes`` has about a node, as far as it is used here."""

    NodeID: str
    NodeManagerHostname: str
    Alive: bool
    Resources: dict[str, float]


@dataclass(eq=False)
class Node:
    """A machine that was examined and can work."""

    id: str
    host: str
    room: int
    """How many workers it has room for."""
    alive: bool = True
    failed_starts: int = 0


@dataclass(eq=False)
class WorkerHandle:
    """A worker as the driver sees it, with the runs it has not yet finished."""

    actor: Any
    node: Node
    runs: dict[RunKey, Run] = field(default_factory=dict)


class Scheduler(RunQueue):
    """Gives runs to workers, polls their events, and gives out again what a dead worker left."""

    def __init__(
        self, ray: Any, runs: Sequence[Run], job: Job, spec: WorkerSpec, observer: Observer | None = None
    ) -> None:
        super().__init__(runs, observer or Observer())
        self.ray, self.job, self.spec = ray, job, spec
        self.begun: set[RunKey] = set()
        self.deaths: Counter[RunKey] = Counter()  # of workers, by the run they were working on
        self.nodes: dict[str, Node] = {}
        self.examined: set[str] = set()  # nodes, fit or not
        self.calls: dict[ObjectRef, Callable[[ObjectRef], None]] = {}  # pending remote calls, each with its callback
        self.workers: list[WorkerHandle] = []
        self.stopping = False
        self.last_look = self.last_usable = time.monotonic()
        self.last_problem = ""
        self.actor_class = ray.remote(Worker)
        self.examine = examiner()
        self.questions = (pickled_questions(runs), None if job.data_dir is None else str(job.data_dir))
        self.own_facts = self.examine(None, *self.questions)
        self.torch: str | None = None  # the nodes' version
        # Limits the threads of libraries that ignore torch.set_num_threads.
        self.environment = {"env_vars": {"OMP_NUM_THREADS": str(job.threads)}}

    def execute(self) -> Outcomes:
        try:
            self.examine_all()
            while self.waiting or any(worker.runs for worker in self.workers):
                if self.observer.should_stop():
                    self.stopping = True
                    self.waiting.clear()
                    for worker in [worker for worker in self.workers if not worker.runs]:
                        self.end(worker)
                self.look_for_nodes()
                self.start_workers()
                self.take_answers()
        finally:
            for worker in list(self.workers):
                self.end(worker)
        return self.outcomes

    # Nodes

    def examine_all(self) -> None:
        """Examine every node before anything runs. Raises if one of them cannot work, so that it can be repaired."""
        found = self.nodes_with_room()
        if not found:
            needs = f"{self.spec.cpus:g} CPUs" + (f" and {self.spec.gpus:g} GPU" if self.spec.gpus else "")
            raise OcilError(f"no node of the Ray cluster has {needs} for a worker: start one, or use fewer threads.")
        asked = [self.start_examination(node) for node in found]
        self.ray.wait([ref for ref, _ in asked], num_returns=len(asked), timeout=NODE_TIMEOUT)
        problems = [self.admit(node, marker, ref) for (ref, marker), node in zip(asked, found, strict=True)]
        for problem in filter(None, problems):
            raise OcilError(problem)

    def nodes_with_room(self) -> list[NodeDescription]:
        """The nodes with room for a worker. Also updates which known nodes are alive."""
        self.last_look = time.monotonic()
        described: list[NodeDescription] = self.ray.nodes()
        alive = {node["NodeID"]: node for node in described if node["Alive"]}
        for node in self.nodes.values():
            node.alive = node.id in alive
        return [node for node in alive.values() if self.spec.room(node["Resources"])]

    def look_for_nodes(self) -> None:
        """Examine the nodes that have joined since. One that cannot work is left out with a warning."""
        if time.monotonic() - self.last_look < NODE_POLL_SECONDS:
            return
        for node in self.nodes_with_room():
            if node["NodeID"] not in self.examined:
                ref, marker = self.start_examination(node)
                self.calls[ref] = partial(self.node_examined, node, marker)

    def start_examination(self, node: NodeDescription) -> tuple[ObjectRef, Path]:
        """Let a node report about itself, and find a file that was put into the folder of the runs for it."""
        self.examined.add(node["NodeID"])
        marker = place_marker(self.job.root)
        task = self.ray.remote(self.examine).options(**self.placement(node["NodeID"]), num_cpus=0, max_retries=0)
        return task.remote(str(marker), *self.questions), marker

    def admit(self, node: NodeDescription, marker: Path, ref: ObjectRef) -> str | None:
        """Accept a node that has answered, or return why it cannot work."""
        host = node["NodeManagerHostname"]
        try:
            theirs = self.ray.get(ref, timeout=0)
        except self.ray.exceptions.GetTimeoutError:
            problem: str | None = "does not answer: look at it with `ray status`."
        except self.ray.exceptions.RayError as error:
            if not any(other["Alive"] for other in self.ray.nodes() if other["NodeID"] == node["NodeID"]):
                marker.unlink(missing_ok=True)
                return None  # it has left the cluster meanwhile
            problem = f"cannot be asked: {str(error).splitlines()[0]}"
        else:
            problem = unfit(theirs, self.own_facts, self.job.root, self.torch)
        marker.unlink(missing_ok=True)
        if problem is not None:
            return f"node {host} of the Ray cluster {problem}"
        self.torch = theirs["torch"]
        self.nodes[node["NodeID"]] = Node(node["NodeID"], host, self.spec.room(node["Resources"]))
        return None

    def node_examined(self, node: NodeDescription, marker: Path, ref: ObjectRef) -> None:
        """Called when a node that has joined later has reported."""
        if (problem := self.admit(node, marker, ref)) is not None:
            log.warning("%s It is left out.", problem)

    def placement(self, node_id: str) -> dict[str, Any]:
        """Options that place a task or an actor on a node."""
        strategies: Any = importlib.import_module("ray.util.scheduling_strategies")
        there = strategies.NodeAffinitySchedulingStrategy(node_id, soft=False)
        return {"scheduling_strategy": there, "runtime_env": self.environment}

    def free_node(self) -> Node | None:
        """The node with the most room for workers; None if no node has any."""
        taken = Counter(worker.node.id for worker in self.workers)
        usable = [node for node in self.nodes.values() if node.alive and node.failed_starts < RETRIES]
        if usable:
            self.last_usable = time.monotonic()
        free = [node for node in usable if taken[node.id] < node.room]
        return max(free, key=lambda node: node.room - taken[node.id], default=None)

    # Workers

    def start_workers(self) -> None:
        """Start workers while there are runs for them and nodes with room."""
        if self.workers:
            self.last_usable = time.monotonic()
        starting = sum(not worker.runs for worker in self.workers)
        while starting < len(self.waiting) and len(self.workers) < (self.spec.most_workers or math.inf):
            if (node := self.free_node()) is None:
                break
            takes = {"num_cpus": self.spec.cpus, "num_gpus": self.spec.gpus}
            there = self.actor_class.options(**self.placement(node.id), **takes, max_restarts=0)
            worker = WorkerHandle(there.remote(self.job, self.spec, plugins.loaded()), node)
            self.workers.append(worker)
            self.calls[worker.actor.problem.remote()] = partial(self.worker_started, worker)
            starting += 1
        if self.waiting and not self.workers and time.monotonic() - self.last_usable > NO_NODE_TIMEOUT:
            reason = f" ({self.last_problem})" if self.last_problem else ""
            message = f"no node of the Ray cluster is left to work{reason}: start one, and give the runs again."
            while self.waiting:
                self.settle(self.waiting.popleft(), OcilError(message))

    def take_answers(self) -> None:
        """Wait a moment for the pending calls, and pass what has been answered to its callback."""
        if not self.calls:
            time.sleep(0.2)
            return
        ready, _ = self.ray.wait(list(self.calls), num_returns=1, timeout=0.2)
        for ref in ready:
            self.calls.pop(ref)(ref)

    def worker_started(self, worker: WorkerHandle, ref: ObjectRef) -> None:
        """Called when a worker is up, has reported why it cannot work, or has died."""
        if worker not in self.workers:
            return
        try:
            problem = self.ray.get(ref)
        except self.ray.exceptions.RayError as error:
            *_, reason = str(error).strip().split("\n")  # the last line of a traceback from there says why
            self.last_problem = f"node {worker.node.host}: {reason.strip()[:200]}"
            self.worker_died(worker)
            return
        if problem is None:
            self.assign(worker)
            return
        self.last_problem = f"node {worker.node.host}: {problem}"
        log.warning("%s It is left out.", self.last_problem)
        worker.node.failed_starts = RETRIES
        self.end(worker)

    def assign(self, worker: WorkerHandle) -> None:
        if not self.waiting:
            self.end(worker)
            return
        worker.runs = {run.key: run for run in self.next_runs()}
        worker.actor.start.remote(list(worker.runs.values()))
        self.poll(worker)

    def next_runs(self) -> list[Run]:
        """Runs for one worker: they share dataset and precision, and leave enough for the other workers."""
        first = self.waiting.popleft()
        if self.deaths[first.key] > 1:
            return [first]  # two workers died with it: alone it harms no other run
        slots = sum(node.room for node in self.nodes.values() if node.alive)
        size = min(self.spec.side_by_side, math.ceil((1 + len(self.waiting)) / max(1, slots)))
        kind = (first.dataset, first.precision)
        alike = (run for run in self.waiting if (run.dataset, run.precision) == kind and self.deaths[run.key] <= 1)
        others = list(islice(alike, size - 1))  # thousands may wait, and a worker takes a few
        for run in others:
            self.waiting.remove(run)
        return [first, *others]

    def poll(self, worker: WorkerHandle) -> None:
        self.calls[worker.actor.events.remote(self.stopping)] = partial(self.receive, worker)

    def receive(self, worker: WorkerHandle, ref: ObjectRef) -> None:
        try:
            events = self.ray.get(ref)
        except self.ray.exceptions.RayError:  # the process, its node, or its answer is lost
            self.worker_died(worker)
            return
        for key, event in events:
            self.on_event(worker, worker.runs[key], event)
        if worker.runs:
            self.poll(worker)
        else:
            worker.node.failed_starts = 0
            self.assign(worker)

    def on_event(self, worker: WorkerHandle, run: Run, event: Event) -> None:
        if isinstance(event, Progress):
            self.begun.add(run.key)
            self.observer.on_event(run, event)
            return
        del worker.runs[run.key]
        if not isinstance(event, Interrupted):
            self.settle(run, event)
        elif self.stopping:
            self.interrupt(run, event)
        else:  # the worker had no call from the driver for a while, so it saved the run and stopped
            self.waiting.append(run)

    def interrupt(self, run: Run, outcome: Interrupted) -> None:
        self.outcomes[run.key] = outcome
        if run.key in self.begun:
            self.observer.on_event(run, outcome)

    def worker_died(self, worker: WorkerHandle) -> None:
        """Put the unfinished runs of a dead worker back into the queue, behind the others."""
        worker.node.failed_starts += not worker.runs
        self.last_look = 0.0  # perhaps its node is gone too
        for key, run in worker.runs.items():
            self.deaths[key] += 1
            if self.stopping:
                self.interrupt(run, Interrupted("its worker died"))
            elif self.deaths[key] <= RETRIES:
                self.waiting.append(run)
            else:
                message = (
                    f"{run.cell} seed {run.seed}: its worker died {RETRIES + 1} times, the last time on node "
                    f"{worker.node.host}. Given again, it goes on from its last checkpoint."
                )
                self.settle(run, OcilError(message))
        worker.runs = {}
        self.end(worker)

    def end(self, worker: WorkerHandle) -> None:
        self.workers.remove(worker)
        with suppress(self.ray.exceptions.RayError):
            self.ray.kill(worker.actor)
