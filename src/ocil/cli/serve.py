"""``ocil serve``: a model behind HTTP. The work is done in ocil.serve."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ocil.cli import console
from ocil.cli.options import FLAG, WORDS, ModelDir, ModelOptions, Threads, Whole, check_seconds
from ocil.errors import OcilError, optional

if TYPE_CHECKING:
    from ocil.serve.limits import Limits
    from ocil.serve.service import Service


@Parameter(name="*")
@dataclass(frozen=True)
class LimitOptions:
    """Limits on the requests of clients."""

    max_body: Whole = 16
    """Largest request in MiB."""
    max_pixels: Whole = 16
    """Largest image in million pixels."""
    max_batch: Whole = 64
    """Most images in one request."""
    max_classes: Whole = 1000
    """Most classes."""
    max_queue: Whole = 1000
    """Most samples that wait to be learned; then requests are answered with 429."""
    max_label: Whole = 100
    """Most characters of a label."""

    @property
    def limits(self) -> "Limits":
        from ocil.serve.limits import Limits

        return Limits(
            body_bytes=self.max_body * 2**20,
            pixels=self.max_pixels * 1_000_000,
            batch=self.max_batch,
            classes=self.max_classes,
            queue=self.max_queue,
            label=self.max_label,
            predictions=max(256, self.max_batch),
            bodies_bytes=max(256, self.max_body) * 2**20,
        )


@Parameter(name="*")
@dataclass(frozen=True)
class LabelStudioOptions:
    """Labels from Label Studio."""

    label_studio: str | None = None
    """Address of a Label Studio, such as http://localhost:8080. Its backend is then this service, with
    `/label-studio`."""
    label_studio_host: Annotated[tuple[str, ...], WORDS] = ()
    """Further hosts that images of its tasks may be read from."""

    def attach(self, service: "Service") -> None:
        """Give a service this Label Studio, if there is one."""
        if self.label_studio is None:
            if self.label_studio_host:
                raise OcilError("--label-studio-host needs --label-studio ADDRESS.")
            return
        from ocil.serve.label_studio import LabelStudio
        from ocil.serve.label_studio_images import Source

        LabelStudio(service, Source(self.label_studio, self.label_studio_host, service.limits))


def serve(
    *,
    model: ModelDir,
    host: str = "127.0.0.1",
    port: Whole = 8000,
    token_file: Path | None = None,
    allow_host: Annotated[tuple[str, ...], WORDS] = (),
    options: ModelOptions | None = None,
    device: str = "auto",
    threads: Threads = None,
    save_seconds: float = 30.0,
    keep_log: Annotated[bool, FLAG] = False,
    set_aside_damage: Annotated[bool, FLAG] = False,
    limits: LimitOptions | None = None,
    studio: LabelStudioOptions | None = None,
    as_json: Annotated[bool, Parameter(name="--json"), FLAG] = False,
) -> None:
    """Learn and predict over HTTP, with a page to try it on: drop an image, see the prediction, correct it.

    `POST /learn` acknowledges a sample once it is on the disk; it is then learned, whatever happens to the process.
    `POST /predict` answers while learning goes on. `GET /status`, `/memory`, `/metrics` (Prometheus), `/docs`.

    A model made by `ocil learn` goes on learning. In a folder without one, name a method and a new model begins.
    Without a token the service can be reached from this machine only.

    Example: `ocil serve --model birds --method afs --size 32` and then
    `curl -F image=@robin.jpg -F label=robin http://127.0.0.1:8000/learn`

    Parameters
    ----------
    host
        Address to listen on. Any but a loopback address needs a token.
    port
        0 takes a free one.
    token_file
        File with the token that clients must send; else the variable OCIL_TOKEN is read.
    allow_host
        Further names that the service is reached by, as behind a proxy.
    device
        auto, cpu, cuda or mps.
    save_seconds
        Seconds between two saves of the model. After a crash, what came after the last one is learned again from the
        log.
    keep_log
        Never delete the log: every sample that was learned, in order, as an audit trail.
    set_aside_damage
        Go on without what cannot be read of a damaged log. The damaged file is kept under another name.
    as_json
        Print the addresses as one JSON object, when the service is ready.
    """
    check_seconds("save-seconds", save_seconds)
    from ocil.online.folder import check_folder

    check_folder(model, new=options not in (None, ModelOptions()))
    with optional("ocil serve needs packages", "serve", "fastapi", "uvicorn", "python_multipart", "prometheus_client"):
        from ocil.serve.run import address_of, listen, read_token
        from ocil.serve.run import serve as answer
    from ocil.online.model import locked
    from ocil.runs.environment import pick_device
    from ocil.serve.service import Service

    allowed, request = (limits or LimitOptions()).limits, (options or ModelOptions()).request
    token = read_token(host, token_file)
    request.check(model)
    place = pick_device(device)
    with listen(host, port) as bound, locked(model):
        service = Service(request.open(model, place), model, allowed, save_seconds, keep_log, threads, set_aside_damage)
        (studio or LabelStudioOptions()).attach(service)
        address = address_of(bound, host)
        answer(service, bound, host, token, allow_host, lambda: _print_ready(service, address, model, as_json))
    if service.backlog and not service.failed:
        console.info(f"{service.backlog} samples are in the log and will be learned after the next start.")
    if service.failed:
        raise OcilError(f"learning had stopped: {service.failed}")


def _print_ready(service: "Service", address: str, model: Path, as_json: bool) -> None:
    if as_json:
        ready = {"address": address, "docs": f"{address}/docs", "model": str(model), "pid": os.getpid()}
        console.print_json(ready | {"replay": service.backlog})
        return
    print(f"{address}  (docs: {address}/docs, metrics: {address}/metrics)", flush=True)
    if service.backlog:
        print(f"{service.backlog} samples of the log are learned first.", flush=True)
    print("Stop it with Ctrl-C: what was learned is saved.", flush=True)
