"""``ocil bench``: how fast a step is here."""

import json
import sys
from typing import Annotated

from cyclopts import Parameter

from ocil.cli.common import whole_number
from ocil.cli.data import Json
from ocil.errors import OcilError


def bench(
    *methods: str,
    device: str = "auto",
    seeds: Annotated[int, Parameter(alias="-n")] = 0,
    set: Annotated[tuple[str, ...], Parameter(name="--set", alias="-s", consume_multiple=True, negative=())] = (),  # noqa: A002
    seconds: float = 4.0,
    threads: Annotated[int, Parameter(converter=whole_number)] = 1,
    as_json: Json = False,
) -> None:
    """Time the training step of methods in their steady state, on random images.

    On a GPU the shapes are CIFAR-100's with a memory of 5000, and seeds run side by side; on a CPU they are those of
    the embedded dataset and one seed runs alone. `floor` is what the passes through the network must take, see
    docs/performance.md.

    Example: `ocil bench afs er --set precision=bf16`

    Parameters
    ----------
    methods
        Names from `ocil methods`. Default: all of them.
    device
        auto, cpu or cuda.
    seeds
        Seeds side by side on a GPU. Default: 10.
    set
        Settings as FIELD=VALUE.
    seconds
        Time to spend on each method.
    threads
        CPU threads of a step.
    """
    from ocil.bench import made_up, measure
    from ocil.cli.common import read_settings
    from ocil.config import resolve
    from ocil.methods import METHODS
    from ocil.runner import pick_device
    from ocil.threads import refuse_too_few, using

    if seeds < 0 or seconds <= 0:
        raise OcilError("--seeds must not be negative and --seconds must be positive.")
    refuse_too_few(threads)
    place = pick_device(device)
    gpu = place.type == "cuda"
    dataset, classes, shape = ("cifar100", 100, (32, 32, 3)) if gpu else ("fashion-mini", 10, (14, 14, 1))
    data = made_up(classes, shape, per_class=100)
    rows = []
    with using(threads):
        for name in methods or METHODS:
            count = (seeds or 10) if gpu else 1
            configs = [resolve(name, dataset, seed=seed, settings=read_settings(set)) for seed in range(count)]
            rows.append(measure(configs, data, place, seconds=seconds))
    if as_json:
        print(json.dumps({"timings": [row.to_json() for row in rows]}))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(
        "method", "seeds", "precision", "ms / step", "spread", "ms / review step", "images / s", "floor ms", "of floor"
    )
    for row in rows:
        review = "-" if row.ms_per_review_step is None else f"{row.ms_per_review_step:.2f}"
        table.add_row(
            row.method, str(row.seeds), row.precision, f"{row.ms_per_step:.2f}", f"{row.spread:.0%}", review,
            f"{row.images_per_second:,.0f}", f"{row.floor_ms:.2f}", f"{row.share_of_floor:.0%}",
        )  # fmt: skip
    Console(width=None if sys.stdout.isatty() else 110).print(table)
