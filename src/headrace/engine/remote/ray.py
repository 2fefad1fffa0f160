"""Workers that Ray places and supervises: one actor each, in which an agent connects back to the trainer.

Ray finds a node with the resources that a worker needs, starts an actor there and tells when it ends; tickets and
results never go through it. The agent runs in the actor's process, so that both end together. An actor is never
restarted by Ray: what becomes of the death of a worker is decided in one place, for all executors. An agent whose node
is drained by Ray leaves, as one elsewhere does on SIGTERM, and is replaced by one on another node.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import sys
import threading
import time
from collections.abc import Collection, Mapping
from typing import Any

from headrace.errors import ConfigError, check_count, did_you_mean

from ..options import Restarting
from ..user.job import Job
from .agent import serve_seat
from .executor import RemoteExecutor
from .launcher import Invitation, Launched, Launcher
from .notice import LeaveNotice

_logger = logging.getLogger("headrace.engine")

# How often Ray is asked about an actor whose agent is not connected; a question takes some 0.2 ms.
_ASK_SECONDS = 0.25
# Multiples of the golden ratio are spread evenly over 0..1, however many there are: workers are placed one by one.
_GOLDEN = (5**0.5 - 1) / 2
# A log line says what is waited for when a worker has not begun after this time, and again after so many seconds.
_REMARK_SECONDS = 10.0
_REMARK_AGAIN_SECONDS = 60.0
# Who was not found waiting for so long was placed meanwhile.
_NOTED_SECONDS = 10.0
# How often an agent asks Ray whether its node is drained, of which clouds give notice 30 s before, or more.
_DRAIN_SECONDS = 2.0
# An agent that leaves may finish what its worker has begun for so long, like `agent.serve`.
_GRACE_SECONDS = 20.0
# What Ray says when it finds out that it has placed an actor on a node that had just been lost.
_NODE_DIED = "its node has died"
_REMOTE_OPTIONS = inspect.signature(RemoteExecutor).parameters.keys() - {"launcher"}
_disowned: list[Any] = []  # handles of the parent process: dropping them would tell Ray that the actor is not needed


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ConfigError("workers on a Ray cluster need the package ray", fix="pip install 'headrace[ray]'") from error
    return ray


class RayExecutor(RemoteExecutor):
    """Carries tickets to workers on the nodes of a Ray cluster.

    The cluster is the one that this process is connected to, or else the one that `ray.init()` finds or starts. The
    options without a description are those of Ray's actors.

    Args:
        num_cpus: CPUs that Ray reserves for each worker, may be a fraction; 0 reserves none.
        resources: Custom resources for each worker, by name.
        memory: Bytes that Ray reserves for each worker on its node.
        label_selector: Labels that a node must have.
        scheduling_strategy: `"DEFAULT"`, `"SPREAD"`, or an object of `ray.util.scheduling_strategies`.
        runtime_env: Environment of each worker: packages, variables, folders.
        near: Which nodes workers are preferred on, and how many of them in proportion: name, address or Ray's ID of a
            node -> weight. A node without room is no obstacle. `None`: where the data lie, if the source knows that,
            see `Source.data_hosts`; `{}`: no nodes are preferred. A `label_selector` or `scheduling_strategy` has the
            place decided already.
        max_restarts: How many deaths of workers one epoch may have, over all workers; -1: any number. The same as
            `on_death=Restarting(budget)` of `EngineOptions`, which decides where this is `None`.
        options: Those of `RemoteExecutor`, but for `launcher`.

    Raises:
        ConfigError: Ray is not installed, or an option is wrong.

    Examples:
        >>> import headrace as hr
        >>> def open_loader(corpus):  # where Ray is installed: 8 workers on the nodes of its cluster
        ...     executor = hr.RayExecutor(num_cpus=1, scheduling_strategy="SPREAD")
        ...     return hr.DataLoader(corpus, batching=hr.FrameBudget(8_000), num_workers=8, executor=executor)
    """

    name = "ray"

    def __init__(
        self,
        *,
        num_cpus: float = 1.0,
        resources: Mapping[str, float] | None = None,
        memory: int | None = None,
        label_selector: Mapping[str, str] | None = None,
        scheduling_strategy: Any = None,
        runtime_env: Mapping[str, Any] | None = None,
        near: Mapping[str, float] | None = None,
        max_restarts: int | None = None,
        **options: Any,
    ) -> None:
        for name in options.keys() - _REMOTE_OPTIONS:
            own = inspect.signature(RayExecutor).parameters.keys() - {"options"}
            raise ConfigError(f"RayExecutor has no option {name!r}", fix=did_you_mean(name, own | _REMOTE_OPTIONS))
        if not num_cpus >= 0:
            raise ConfigError(f"num_cpus is {num_cpus}", fix="give 0 or more")
        asked = {
            "num_cpus": num_cpus,
            "resources": None if resources is None else dict(resources),
            "memory": None if memory is None else check_count("memory", memory, minimum=1),
            "label_selector": None if label_selector is None else dict(label_selector),
            "scheduling_strategy": scheduling_strategy,
            "runtime_env": None if runtime_env is None else dict(runtime_env),
        }
        launcher = RayLauncher({name: value for name, value in asked.items() if value is not None})
        if near is not None:
            launcher.near = check_hosts(near, "RayExecutor(near=...)")
            if near and not launcher.may_choose:
                raise ConfigError(
                    "RayExecutor has near=, and a label_selector or scheduling_strategy: all say where workers run",
                    fix="give one of them",
                )
            launcher.may_choose = False
        super().__init__(launcher, **options)
        if max_restarts is not None:
            check_count("max_restarts", max_restarts, minimum=-1)
            budget = sys.maxsize if max_restarts == -1 else max_restarts
            self.on_death = Restarting(budget, said_by=f"RayExecutor(max_restarts={max_restarts})")

    def start_some(self, job: Job, worker_idxs: range, num_workers: int) -> None:
        """Have some of the workers of a job started, see `RemoteExecutor.start_some`: near the data, where possible."""
        launcher = self._launcher
        if isinstance(launcher, RayLauncher) and launcher.may_choose:
            launcher.near = check_hosts({} if self.data_hosts is None else self.data_hosts(), "data_hosts()")
        super().start_some(job, worker_idxs, num_workers)


class RayLauncher(Launcher):
    """Starts each agent in an actor.

    Args:
        actor_options: Of Ray's, for each actor.

    Attributes:
        near: Which nodes to prefer, see `RayExecutor`.
        may_choose: Whether it is left open which nodes these are, so that the data decide it.

    Examples:
        >>> from headrace.engine.remote import RayLauncher
        >>> def open_launcher():  # where Ray is installed
        ...     return RayLauncher({"num_cpus": 2})
    """

    def __init__(self, actor_options: Mapping[str, Any]) -> None:
        self._ray = _import_ray()
        self._options = dict(actor_options)
        self.near: dict[str, float] = {}
        self.may_choose = not {"label_selector", "scheduling_strategy"} & self._options.keys()
        self._waiting: dict[int, float] = {}  # workers that were not placed when it was looked last, and when that was
        self._remarked_at: float | None = None

    def public_host(self) -> str:
        """Return the address by which other nodes know this one."""
        self._connect()
        return str(self._ray.util.get_node_ip_address())

    def launch(self, invitation: Invitation) -> Launched:
        """Ask Ray for an actor."""
        self._connect()
        return _Actor(self, invitation)

    def start(self, invitation: Invitation) -> tuple[Any, Any, Any]:
        """Return a new actor, its call that returns when it runs, and the one that returns when it has ended."""
        actor_class = self._ray.remote(_Agent)
        try:
            options = {**self._options, **self._place_near(invitation.worker_idx)}
            actor = actor_class.options(**options, max_restarts=0).remote()
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"Ray refuses these options of its actors: {error}", where=f"RayExecutor, {self._options}"
            ) from error
        runs = actor.runs.remote()
        return actor, runs, actor.serve.remote(invitation)

    def _place_near(self, worker_idx: int) -> dict[str, Any]:
        """Return the option of an actor that has it placed near the data, if there is room."""
        if not self.near:
            return {}
        nodes = {
            str(node["NodeID"]): (str(node["NodeManagerAddress"]), str(node["NodeManagerHostname"]))
            for node in self._ray.nodes()
            if node["Alive"]
        }
        node_id = choose_node(self.near, nodes, worker_idx)
        affinity = importlib.import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
        # Without this option, which is not among those that Ray documents, an actor waits for a node that is full.
        if node_id is None or "_spill_on_unavailable" not in inspect.signature(affinity).parameters:
            return {}
        return {"scheduling_strategy": affinity(node_id, soft=True, _spill_on_unavailable=True)}

    def _connect(self) -> None:
        if self.is_shut_down:
            self._ray.init()

    # --- what an actor of it asks ---

    @property
    def is_shut_down(self) -> bool:
        """Whether this process has left the cluster: asking Ray anything would begin another one."""
        return not self._ray.is_initialized()

    def is_done(self, ref: Any) -> bool:
        """Tell whether a call of an actor is over, one way or the other; does not wait."""
        return self.is_shut_down or bool(self._ray.wait([ref], timeout=0)[0])

    def was_lost_before_it_ran(self, runs: Any) -> bool:
        """Tell whether Ray had placed an actor, whose calls are over, on a node that was not there any more."""
        errors = self._ray.exceptions
        try:
            self._ray.get(runs)
        except errors.ActorUnavailableError:
            return True
        except errors.ActorDiedError as error:
            return _NODE_DIED in str(error)
        except errors.RayError:
            pass
        return False

    def ending_of(self, served: Any) -> str:
        """Return how an actor ended whose call is over."""
        try:
            self._ray.get(served)
        except self._ray.exceptions.RayTaskError as error:  # raised in the agent
            return f"has ended: {error.cause}"
        except self._ray.exceptions.RayError as error:
            return f"was ended: {error}"
        return "has ended"

    def needs(self) -> str:
        """Return what an actor needs and what the cluster has free, as words."""
        ray = self._ray
        needed = {"CPU": self._options["num_cpus"], **self._options.get("resources", {})}
        if "memory" in self._options:
            needed["memory"] = self._options["memory"]
        try:
            free = ray.available_resources()
            there = ray.cluster_resources()
            nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        except ray.exceptions.RayError:
            return f"it needs {needed}"
        shares = ", ".join(f"{name} {free.get(name, 0):g} of {there.get(name, 0):g}" for name in needed)
        is_possible = any(all(node.get(name, 0) >= num for name, num in needed.items()) for node in nodes)
        hint = "" if is_possible else "; no node has as much, so it begins when one joins that has"
        return f"it needs {needed}; free in the cluster: {shares}{hint}"

    def note_waiting(self, worker_idx: int, seconds: float) -> None:
        """Take note that a worker is not placed yet; log from time to time what is waited for, for all workers."""
        now = self._waiting[worker_idx] = time.monotonic()
        if self._remarked_at is None or now - self._remarked_at > _REMARK_AGAIN_SECONDS:
            self._remarked_at = now
            self._waiting = {idx: at for idx, at in self._waiting.items() if now - at < _NOTED_SECONDS}
            num = len(self._waiting)
            who = f"worker {worker_idx} waits" if num == 1 else f"{num} workers wait"
            _logger.warning("%s for Ray, since %.0f s: an actor is not placed yet: %s", who, seconds, self.needs())

    def kill(self, actor: Any) -> None:
        """End an actor at once; harmless if it has ended, or if Ray has been shut down."""
        if not self.is_shut_down:
            self._ray.kill(actor, no_restart=True)


class _Actor(Launched):
    """One actor, as the trainer sees it."""

    def __init__(self, launcher: RayLauncher, invitation: Invitation) -> None:
        self._launcher, self._invitation = launcher, invitation
        self._actor, self._runs, self._served = launcher.start(invitation)
        self._launched_at = time.monotonic()
        self._asked_at = 0.0
        self._ending: str | None = None
        self.waits_for_place = True

    @property
    def where(self) -> str:  # type: ignore[override]
        """Where it is, or what Ray looks for."""
        return "a Ray actor that runs" if self._is_placed() else f"a Ray actor not placed yet: {self._launcher.needs()}"

    def _is_placed(self) -> bool:
        return self._launcher.is_done(self._runs)

    def ending(self) -> str | None:
        now = time.monotonic()
        if self._ending is not None or now - self._asked_at < _ASK_SECONDS:
            return self._ending
        self._asked_at = now
        if self._launcher.is_shut_down:
            self._ending = "was ended by ray.shutdown()"
        elif self._launcher.is_done(self._served):
            if self._launcher.was_lost_before_it_ran(self._runs):
                self._actor, self._runs, self._served = self._launcher.start(self._invitation)
            else:
                self._ending = self._launcher.ending_of(self._served)
        elif self.waits_for_place:
            seconds = now - self._launched_at
            if self._is_placed():
                self.waits_for_place = False
            elif seconds > _REMARK_SECONDS:
                self._launcher.note_waiting(self._invitation.worker_idx, seconds)
        return self._ending

    def end(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._is_placed() and not self._launcher.is_done(self._served) and time.monotonic() < deadline:
            time.sleep(0.01)
        self._launcher.kill(self._actor)

    def disown(self) -> None:
        _disowned.append((self._actor, self._runs, self._served))


class _Agent:
    """What runs in the actor."""

    def runs(self) -> None:
        """Return, which shows that the actor runs."""

    def serve(self, invitation: Invitation) -> None:
        """Be the agent of a worker, until its connection ends."""
        notice = LeaveNotice(_GRACE_SECONDS)  # SIGTERM is not listened for: it is Ray's way to end an actor
        has_ended = threading.Event()
        watcher = threading.Thread(target=_watch_for_drain, args=(notice, has_ended), daemon=True)
        watcher.start()
        try:
            serve_seat(invitation.addresses, invitation.seat, invitation.secret, invitation.tls, notice)
        finally:
            has_ended.set()


def _watch_for_drain(notice: LeaveNotice, has_ended: threading.Event) -> None:
    """Give notice to leave when the node of this process is drained: Ray places nothing there, and it will be gone.

    Ray's public interface does not tell it. Where what its own libraries use is missing, or is another thing, there is
    no notice, and the end of the node is the death of its workers.
    """
    ray = _import_ray()
    node_id = ray.get_runtime_context().get_node_id()
    try:
        state = importlib.import_module("ray._private.state").state
    except (ImportError, AttributeError):
        return
    while not has_ended.wait(_DRAIN_SECONDS):
        try:
            is_drained = node_id in state.get_draining_nodes()
        except (AttributeError, TypeError):
            return
        except (RuntimeError, ray.exceptions.RayError):
            continue  # the head does not answer
        if is_drained and notice.on_notice is not None:  # else it has no job yet
            notice.on_notice()
            notice.deadline = time.monotonic() + _GRACE_SECONDS
            return


def check_hosts(hosts: Any, where: str) -> dict[str, float]:
    """Return hosts with their weights, those without weight left out.

    Args:
        hosts: Name, address or ID of a host -> how many bytes lie there, or any other weight.
        where: Who said so, for messages.

    Raises:
        ConfigError: It is not a mapping of names to numbers of at least 0.
    """
    if isinstance(hosts, Mapping) and all(isinstance(host, str) for host in hosts):
        try:
            weights = {host: float(weight) for host, weight in hosts.items()}
        except (TypeError, ValueError):
            weights = {"": -1.0}
        if all(0 <= weight < float("inf") for weight in weights.values()):
            return {host: weight for host, weight in weights.items() if weight > 0}
    raise ConfigError(
        f"where data lie is a mapping of hosts to bytes, not {hosts!r}", where=where, fix="give {'node-1': 1, ...}"
    )


def choose_node(hosts: Mapping[str, float], nodes: Mapping[str, Collection[str]], worker_idx: int) -> str | None:
    """Return the node for a worker, `None` if none of the hosts is known.

    Workers 0, 1, ... are distributed over nodes in proportion to the weights, as well as their number allows.

    Args:
        hosts: Host -> weight, above 0. That of a host with several nodes is divided among them.
        nodes: ID of a node -> all names of its host; its ID is one as well.
        worker_idx: Which worker.
    """
    known: dict[str, list[str]] = {}
    for node, names in nodes.items():
        for name in {node, *names}:
            known.setdefault(name, []).append(node)
    weights: dict[str, float] = {}
    for host, weight in hosts.items():
        for node in known.get(host, ()):
            weights[node] = weights.get(node, 0.0) + weight / len(known[host])
    left = (worker_idx + 1) * _GOLDEN % 1 * sum(weights.values())
    chosen = None
    for chosen in sorted(weights, key=lambda node: (-weights[node], node)):
        left -= weights[chosen]
        if left < 0:
            break
    return chosen
