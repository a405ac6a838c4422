"""``ocil serve``: a model behind HTTP. The work is done in ocil.serve."""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from ocil.cli import console
from ocil.cli.options import FLAG, FOLDER, WORDS, MaybeWhole, ModelOptions, Threads, Whole, check_number, check_seconds
from ocil.errors import OcilError, optional

if TYPE_CHECKING:
    from ocil.serve.label_studio_images import TaskImages
    from ocil.serve.limits import Limits
    from ocil.serve.run import Settings
    from ocil.serve.service import Service


@Parameter(name="*")
@dataclass(frozen=True)
class LimitOptions:
    """Limits on the requests of clients."""

    max_body: Whole = 16
    """Largest request in MiB."""
    max_bodies: MaybeWhole = None
    """Most MiB of all requests, and answers to `/predict`, at the same time. Default: 256, or --max-body if that is
    more."""
    max_pixels: Whole = 16
    """Largest image in million pixels."""
    max_batch: Whole = 64
    """Most images in one request."""
    max_classes: Whole = 1000
    """Most classes."""
    max_queue: Whole = 1000
    """Most samples that wait to be learned; then requests are answered with 429."""
    max_predictions: MaybeWhole = None
    """Most images that wait for a prediction; then requests are answered with 429. Default: 256, or --max-batch if that
    is more."""
    max_label: Whole = 100
    """Most characters of a label."""
    max_keys: Whole = 10_000
    """Idempotency keys that are remembered."""
    max_versions: Whole = 16
    """Most versions of the model."""
    max_versions_disk: Whole = 8
    """Most GiB that they take."""
    max_held_out: Whole = 2000
    """Most images of the held-out set."""
    max_label_images: Whole = 10_000
    """Most images that are kept for labelling."""
    max_label_disk: Whole = 2
    """Most GiB that they take."""
    max_memory_images: Whole = 600
    """Most images in an answer to `/memory`."""
    max_memory_pixels: Whole = 8
    """Most MiB of pixels in such an answer."""
    max_memory_answers: Whole = 128
    """Most MiB of all such answers at the same time."""
    request_seconds: Whole = 30
    """Seconds that a client may take to send the body of a request."""
    wait_seconds: Whole = 30
    """Seconds after which a request that waits, as with `wait=true`, is answered anyway."""

    @property
    def limits(self) -> "Limits":
        from ocil.serve.limits import MOST, Limits

        given: dict[str, int] = asdict(self)
        given["max_bodies"] = max(256, self.max_body) if self.max_bodies is None else self.max_bodies
        given["max_predictions"] = max(256, self.max_batch) if self.max_predictions is None else self.max_predictions
        for name, (_, unit) in LIMITS.items():
            if not 0 < given[name] <= MOST // unit:
                raise OcilError(f"{_option(name)} {given[name]} must be more than 0 and at most {MOST // unit}.")
        for high, low in (("max_queue", "max_batch"), ("max_predictions", "max_batch"), ("max_bodies", "max_body")):
            if given[high] < given[low]:
                raise OcilError(f"{_option(high)} {given[high]} must not be below {_option(low)} {given[low]}.")
        return Limits(**{limit: given[name] * unit for name, (limit, unit) in LIMITS.items()})


LIMITS = {
    "max_body": ("body_bytes", 2**20),
    "max_bodies": ("bodies_bytes", 2**20),
    "max_pixels": ("pixels", 1_000_000),
    "max_batch": ("batch", 1),
    "max_classes": ("classes", 1),
    "max_queue": ("queue", 1),
    "max_predictions": ("predictions", 1),
    "max_label": ("label", 1),
    "max_keys": ("keys", 1),
    "max_versions": ("versions", 1),
    "max_versions_disk": ("versions_bytes", 2**30),
    "max_held_out": ("held_out", 1),
    "max_label_images": ("label_images", 1),
    "max_label_disk": ("label_bytes", 2**30),
    "max_memory_images": ("memory_images", 1),
    "max_memory_pixels": ("memory_bytes", 2**20),
    "max_memory_answers": ("memories_bytes", 2**20),
    "request_seconds": ("body_seconds", 1),
    "wait_seconds": ("wait_seconds", 1),
}
"""The limit that each option sets, and the unit of the option."""


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


@Parameter(name="*")
@dataclass(frozen=True)
class AccessOptions:
    """Who may reach the service."""

    host: str = "127.0.0.1"
    """Address to listen on. Any but a loopback address needs a token."""
    port: Whole = 8000
    """0 takes a free one."""
    token_file: Path | None = None
    """File with the token that clients must send; else the variable OCIL_TOKEN is read."""
    tokens: Path | None = None
    """File of several tokens with scopes, as `ocil token` makes it."""
    allow_host: Annotated[tuple[str, ...], WORDS] = ()
    """Further names that the service is reached by, as behind a proxy."""
    max_rate: MaybeWhole = None
    """Most requests per minute and token; then requests are answered with 429."""
    max_connections: Whole = 512
    """Most connections at the same time; then requests are answered with 503."""
    drain_seconds: float = 0.0
    """Seconds for which requests are still answered after SIGTERM, while `/health/ready` says 503."""
    log_format: Literal["text", "json"] = "text"
    """How the log on standard error is written."""
    log_requests: Annotated[bool, FLAG] = False
    """Log every request."""

    @property
    def settings(self) -> "Settings":
        from ocil.serve.limits import MOST
        from ocil.serve.run import Settings, read_token
        from ocil.serve.tokens import Access

        check_seconds("drain-seconds", self.drain_seconds, zero=True)
        check_number("max-rate", self.max_rate, 1, MOST)
        check_number("max-connections", self.max_connections, 1, MOST)
        token = read_token(self.host, self.token_file, others=self.tokens is not None)
        access = Access(token, self.tokens, self.max_rate)
        logs = (self.log_format, self.log_requests)
        return Settings(self.host, self.allow_host, access, self.drain_seconds, *logs, self.max_connections)


@Parameter(name="*")
@dataclass(frozen=True)
class KeepingOptions:
    """What is kept on the disk."""

    save_seconds: float = 30.0
    """Seconds between two saves of the model. After a crash, what came after the last one is learned again from the
    log."""
    keep_log: Annotated[bool, FLAG] = False
    """Never delete the log: every sample that was learned, in order, as an audit trail."""
    set_aside_damage: Annotated[bool, FLAG] = False
    """Go on without what cannot be read of a damaged log, which is kept under another name, and without a version
    that cannot be read."""


@Parameter(name="*")
@dataclass(frozen=True)
class LabelStudioOptions:
    """Labels from Label Studio."""

    label_studio: str | None = None
    """Address of a Label Studio, such as http://localhost:8080. Its backend is then this service, with
    `/label-studio`."""
    label_studio_host: Annotated[tuple[str, ...], WORDS] = ()
    """Further hosts that images of its tasks may be read from."""

    def task_images(self, limits: "Limits") -> "TaskImages | None":
        """Where the images of this Label Studio are read, if there is one."""
        if self.label_studio is None:
            if self.label_studio_host:
                raise OcilError("--label-studio-host needs --label-studio ADDRESS.")
            return None
        from ocil.serve.label_studio_images import TaskImages

        return TaskImages(self.label_studio, self.label_studio_host, limits)


def serve(
    *,
    model: Annotated[Path | None, FOLDER] = None,
    models: Annotated[Path | None, FOLDER] = None,
    access: AccessOptions | None = None,
    options: ModelOptions | None = None,
    device: str = "auto",
    threads: Threads = None,
    keeping: KeepingOptions | None = None,
    limits: LimitOptions | None = None,
    studio: LabelStudioOptions | None = None,
    as_json: Annotated[bool, Parameter(name="--json"), FLAG] = False,
) -> None:
    """Learn and predict over HTTP, with a page to try it on: drop an image, see the prediction, correct it.

    `POST /learn` acknowledges a sample once it is on the disk; it is then learned, whatever happens to the process.
    `POST /predict` answers while learning goes on. `GET /status`, `/memory`, `/metrics` (Prometheus), `/health` and
    `/docs`.

    A model made by `ocil learn` goes on learning. In a folder without one, name a method and a new model begins.
    Without a token the service can be reached from this machine only.

    Example: `ocil serve --model birds --method afs --size 32` and then
    `curl -F image=@robin.jpg -F label=robin http://127.0.0.1:8000/learn`

    Parameters
    ----------
    model
        Folder of the model.
    models
        Folder with several models, one folder each. They are served as `/models/NAME/...`; a file `serve.toml` may
        give each limits of its own.
    device
        auto, cpu, cuda or mps.
    as_json
        Print the addresses as one JSON object, when the service is ready.
    """
    keeping, limits, access = keeping or KeepingOptions(), limits or LimitOptions(), access or AccessOptions()
    check_seconds("save-seconds", keeping.save_seconds)
    if (model is None) == (models is None):
        raise OcilError("give --model FOLDER for one model, or --models FOLDER for several.")
    from ocil.online.folder import check_folder

    if model is not None:
        check_folder(model, new=options not in (None, ModelOptions()))
    elif studio not in (None, LabelStudioOptions()):
        raise OcilError("--label-studio is for one model: serve it with --model.")
    elif options not in (None, ModelOptions()):
        raise OcilError("--models serves models that exist: make a new one with `ocil serve --model` or `ocil learn`.")
    with optional("ocil serve needs packages", "serve", "fastapi", "uvicorn", "python_multipart", "prometheus_client"):
        from ocil.serve.label_studio import LabelStudio
        from ocil.serve.run import address_of, listen
        from ocil.serve.run import serve as answer
    request, settings = (options or ModelOptions()).request, access.settings
    allowed = limits.limits
    task_images = (studio or LabelStudioOptions()).task_images(allowed)
    if model is not None:
        request.check(model)
    with listen(access.host, access.port) as bound, ExitStack() as held:
        address = address_of(bound, access.host)
        if model is not None:
            opened = _opened(model, options or ModelOptions(), device, threads, keeping, allowed)
            service = held.enter_context(opened)
            if task_images is not None:
                LabelStudio(service, task_images)
            answer(service, bound, settings, lambda: _print_ready({"": service}, address, str(model), as_json))
            services = {"": service}
        else:
            assert models is not None  # noqa: S101
            services = _open_all(models, held, device, threads or 1, keeping, limits)
            answer(services, bound, settings, lambda: _print_ready(services, address, str(models), as_json))
    _report(services)


@contextmanager
def _opened(
    folder: Path, options: ModelOptions, device: str, threads: int | None, keeping: KeepingOptions, limits: "Limits"
) -> "Iterator[Service]":
    """The service of one model, whose folder is locked inside the block."""
    from ocil.devices import pick_device
    from ocil.online.model import locked
    from ocil.serve.service import Service

    chosen_device = pick_device(device)
    with locked(folder):
        kept = (keeping.save_seconds, keeping.keep_log, threads, keeping.set_aside_damage)
        yield Service(options.request.open(folder, chosen_device), folder, limits, *kept)


def _open_all(
    folder: Path, held: ExitStack, device: str, threads: int, keeping: KeepingOptions, limits: LimitOptions
) -> "dict[str, Service]":
    """All models of a folder by name. What the folder's file of options says of a model comes before the options."""
    from ocil.serve.models import model_folders, refuse_mixed

    kept: Mapping[str, Any] = asdict(keeping)
    known: dict[str, Any] = dict.fromkeys(asdict(limits), int) | {"save_seconds": (int, float), "keep_log": bool}
    services = {}
    for one in model_folders(folder, known):
        own = replace(limits, **{name: value for name, value in one.options.items() if name not in kept})
        how = replace(keeping, **{name: value for name, value in one.options.items() if name in kept})
        check_seconds(f"save_seconds of {one.name}", how.save_seconds)
        opened = _opened(one.folder, ModelOptions(), device, threads, how, own.limits)
        services[one.name] = held.enter_context(opened)
    refuse_mixed(services)
    return services


def _report(services: "Mapping[str, Service]") -> None:
    """Say what is left to do, when the service has stopped."""
    for name, service in services.items():
        if service.backlog and not service.stopped:
            of = f" of {name}" if name else ""
            waiting = (
                f"{service.backlog} sample{of} is" if service.backlog == 1 else f"{service.backlog} samples{of} are"
            )
            console.info(f"{waiting} in the log and will be learned after the next start.")
    for name, service in services.items():
        if service.stopped:
            raise OcilError(f"learning {f'of {name} ' if name else ''}had stopped: {service.stopped}")


def _print_ready(services: "Mapping[str, Service]", address: str, model: str, as_json: bool) -> None:
    backlog = sum(service.backlog for service in services.values())
    one = "" in services
    if as_json:
        ready = {"address": address, "docs": f"{address}/docs", "model": model, "pid": os.getpid()}
        if not one:
            ready = {"address": address, "models": list(services), "pid": os.getpid()}
        console.print_json(ready | {"replay": backlog})
        return
    if one:
        print(f"{address}  (docs: {address}/docs, metrics: {address}/metrics)", flush=True)
    else:
        print(f"{address}  (all models; metrics: {address}/metrics)", flush=True)
    for name in () if one else services:
        print(f"{address}/models/{name}/", flush=True)
    if backlog:
        print(f"{'1 sample' if backlog == 1 else f'{backlog} samples'} of the log will be learned first.", flush=True)
    print("Stop it with Ctrl-C: what was learned is saved.", flush=True)


def token(
    name: str,
    *,
    file: Path,
    scope: Literal["read", "write"] = "read",
    models: Annotated[tuple[str, ...], WORDS] = (),
    per_minute: MaybeWhole = None,
) -> None:
    """Add a token for `ocil serve --tokens FILE` and print it once. The file keeps only its hash: note it down now.

    Delete its table in the file to withdraw it; a running service notices within a second.

    Example: `ocil token camera-3 --scope write --models birds --file tokens.toml`

    Parameters
    ----------
    name
        Who uses it, as the audit names it.
    file
        The file of tokens. It is made if it is not there.
    scope
        read: status and predictions. write: also learning, corrections and versions.
    models
        The models that it is for. Default: all.
    per_minute
        Most requests per minute. Default: what --max-rate says.
    """
    from ocil.serve.tokens import add_token

    print(add_token(file, name, scope, models, per_minute))
