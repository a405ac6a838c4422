"""``ocil serve``: a model behind HTTP. The work is done in ocil.serve."""

import json
import os
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ocil.cli.common import WORDS, Whole, refuse_seconds, say
from ocil.cli.learn import Asked, ModelDir, ThreadCount
from ocil.errors import OcilError, optional

OWN = {".lock", "log"}  # what a folder may hold that has no model yet


def serve(
    *,
    model: ModelDir,
    host: str = "127.0.0.1",
    port: Whole = 8000,
    token_file: Path | None = None,
    allow_host: Annotated[tuple[str, ...], WORDS] = (),
    asked: Asked | None = None,
    device: str = "auto",
    threads: ThreadCount = None,
    save_seconds: float = 30.0,
    keep_log: Annotated[bool, Parameter(negative=())] = False,
    set_aside_damage: Annotated[bool, Parameter(negative=())] = False,
    max_body: Whole = 16,
    max_pixels: Whole = 16,
    max_batch: Whole = 64,
    max_classes: Whole = 1000,
    max_queue: Whole = 1000,
    max_label: Whole = 100,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
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
        auto, cpu or cuda.
    save_seconds
        Time between two saves of the model. What came after the last one is learned again from the log after a crash.
    keep_log
        Never delete the log: every sample that was learned, in order, as an audit trail.
    set_aside_damage
        Go on without what cannot be read of a damaged log. The damaged file is kept beside it.
    max_body
        Largest request in MiB.
    max_pixels
        Largest image in million pixels.
    max_batch
        Most images in one request.
    max_classes
        Most classes.
    max_queue
        Most samples that wait to be learned; then requests are answered with 429.
    max_label
        Most characters of a label.
    as_json
        Print the addresses as one JSON object, when the service is ready.
    """
    asked = asked or Asked()
    refuse_seconds("save-seconds", save_seconds)
    _refuse_folder(model, begins=asked != Asked())
    with optional("ocil serve needs packages", "serve", "fastapi", "uvicorn", "python_multipart"):
        from ocil.serve.run import address_of, listen, read_token
        from ocil.serve.run import serve as answer
    from ocil.online.model import locked
    from ocil.runner import pick_device
    from ocil.serve.limits import Limits
    from ocil.serve.service import Service
    from ocil.threads import check_threads

    check_threads(threads)
    limits = Limits(
        body_bytes=max_body * 2**20, pixels=max_pixels * 1_000_000, batch=max_batch, classes=max_classes,
        queue=max_queue, label=max_label, predictions=max(256, max_batch), bodies_bytes=max(256, max_body) * 2**20,
    )  # fmt: skip
    token = read_token(host, token_file)
    asked.check(model)
    place = pick_device(device)
    with listen(host, port) as bound, locked(model):
        service = Service(asked.model(model, place), model, limits, save_seconds, keep_log, threads, set_aside_damage)
        address = address_of(bound, host)

        def ready() -> None:
            if as_json:
                told = {"address": address, "docs": f"{address}/docs", "model": str(model), "pid": os.getpid()}
                print(json.dumps(told | {"replay": service.backlog}), flush=True)
                return
            print(f"{address}  (docs: {address}/docs, metrics: {address}/metrics)", flush=True)
            if service.backlog:
                print(f"{service.backlog} samples of the log are learned first.", flush=True)
            print("Stop it with Ctrl-C: what was learned is saved.", flush=True)

        answer(service, bound, host, token, allow_host, ready)
    if service.backlog and not service.failed:
        say(f"{service.backlog} samples are in the log and will be learned after the next start.")
    if service.failed:
        raise OcilError(f"learning had stopped: {service.failed}")


def _refuse_folder(folder: Path, begins: bool) -> None:
    from ocil.online.feed import has_model
    from ocil.online.model import FILE

    if has_model(folder):
        return
    if folder.exists() and not folder.is_dir():
        raise OcilError(f"{folder} is a file, not the folder of a model.")
    found = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    if any(name not in OWN and not fnmatch(name, f".{FILE}.*.tmp") for name in found):  # it was killed while it saved
        raise OcilError(f"{folder} is not the folder of a model, and it is not empty. Choose another one.")
    if not begins:
        raise OcilError(f"there is no model in {folder}: to begin one, name a method, for example --method afs.")
