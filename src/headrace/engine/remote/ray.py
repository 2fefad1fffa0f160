"""Workers that Ray places and supervises: one actor each, in which an agent connects back to the trainer.

Ray finds a node with the resources that a worker needs, starts an actor there and tells when it ends; tickets and
results never go through it. The agent runs in the actor's process, so that both end together. An actor is never
restarted by Ray: what becomes of the death of a worker is decided in one place, for all executors. An agent whose node
is drained by Ray leaves, as one elsewhere does on SIGTERM, and is replaced by one on another node.
"""

from __future__ import annotations

import importlib
import logging
import threading
import time
from collections.abc import Mapping
from typing import Any

from headrace.errors import ConfigError, check_count

from .agent import serve_seat
from .executor import RemoteExecutor
from .launcher import Invitation, Launched, Launcher
from .notice import LeaveNotice

_logger = logging.getLogger("headrace.engine")

# How often Ray is asked about an actor whose agent is not connected; a question takes some 0.2 ms.
_ASK_SECONDS = 0.25
# A log line says what is waited for when a worker has not begun after this time.
_REMARK_SECONDS = 10.0
# How often an agent asks Ray whether its node is drained, of which clouds give notice 30 s before, or more.
_DRAIN_SECONDS = 2.0
# An agent that leaves may finish what its worker has begun for so long, like `agent.serve`.
_GRACE_SECONDS = 20.0
# What Ray says when it finds out that it has placed an actor on a node that had just been lost.
_NODE_DIED = "its node has died"
_disowned: list[Any] = []  # handles of the parent process: dropping them would tell Ray that nobody needs the actor


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
        options: Those of `RemoteExecutor`, but for `launcher`.

    Raises:
        ConfigError: Ray is not installed, or an option is wrong.
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
        **options: Any,
    ) -> None:
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
        super().__init__(RayLauncher({name: value for name, value in asked.items() if value is not None}), **options)


class RayLauncher(Launcher):
    """Starts each agent in an actor.

    Args:
        actor_options: Of Ray's, for each actor.
    """

    def __init__(self, actor_options: Mapping[str, Any]) -> None:
        self._ray = _import_ray()
        self._options = dict(actor_options)
        self._has_remarked = False

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
            actor = actor_class.options(**self._options, max_restarts=0).remote()
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"Ray refuses these options of its actors: {error}", where=f"RayExecutor, {self._options}"
            ) from error
        runs = actor.runs.remote()
        return actor, runs, actor.serve.remote(invitation)

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
        except ray.exceptions.RayError:
            return f"it needs {needed}"
        shares = ", ".join(f"{name} {free.get(name, 0):g} of {there.get(name, 0):g}" for name in needed)
        return f"it needs {needed}; free in the cluster: {shares}"

    def remark(self, what: str) -> None:
        """Log what is waited for, once for all workers."""
        if not self._has_remarked:
            self._has_remarked = True
            _logger.warning("%s", what)

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
        elif now - self._launched_at > _REMARK_SECONDS and not self._is_placed():
            self._launcher.remark(f"worker {self._invitation.worker_idx} waits for Ray: {self.where}")
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
