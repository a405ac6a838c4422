"""``ocil bench``: how fast a step is here."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ocil.cli.common import Settings, read_settings, refuse_seconds, refuse_seeds, say_error, whole_number
from ocil.cli.data import Json

if TYPE_CHECKING:
    from ocil.bench import Timing


def bench(
    *methods: str,
    device: str = "auto",
    seeds: Annotated[int | None, Parameter(converter=whole_number, alias="-n")] = None,
    set: Settings = (),  # noqa: A002
    seconds: float = 4.0,
    threads: Annotated[int, Parameter(converter=whole_number)] = 1,
    as_json: Json = False,
) -> int:
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
        Settings as FIELD=VALUE. A method that lacks one of them is timed without it.
    seconds
        Time to spend on each method.
    threads
        CPU threads of a step.
    """
    from ocil.bench import made_up, measure
    from ocil.config import resolve
    from ocil.engine.local import explained
    from ocil.methods import METHODS
    from ocil.runner import pick_device
    from ocil.threads import check_threads, using

    check_threads(threads)
    refuse_seconds("seconds", seconds)
    if seeds is not None:
        refuse_seeds(seeds)
    place = pick_device(device)
    gpu = place.type == "cuda"
    dataset, classes, shape = ("cifar100", 100, (32, 32, 3)) if gpu else ("fashion-mini", 10, (14, 14, 1))
    count = (seeds or 10) if gpu else 1
    plans = [
        [resolve(name, dataset, seed=seed, settings=concerned) for seed in range(count)]
        for name, concerned in _settings_by_method(methods or tuple(METHODS), read_settings(set)).items()
    ]
    data = made_up(classes, shape, per_class=100)
    rows: list[Timing] = []
    failed: list[str] = []
    try:
        with using(threads):
            for configs in plans:
                try:
                    rows.append(measure(configs, data, place, seconds=seconds))
                except Exception as error:  # the timings of the others are kept
                    failed.append(f"{configs[0].label}: {explained(error, configs[0])}")
    finally:
        if as_json:
            print(json.dumps({"timings": [row.to_json() for row in rows], "failed": failed}))
        elif rows:
            _print(rows)
    for message in failed:
        say_error(message)
    return 0 if not failed else 1 if rows else 2


def _settings_by_method(names: Sequence[str], given: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """What of the settings each method has, before anything is timed. One that no method has is refused."""
    from ocil.config import refuse_unknown
    from ocil.methods import method
    from ocil.streams import StreamConfig

    stream = {field.name for field in fields(StreamConfig)}
    known = {method(name).name: stream | {field.name for field in fields(method(name).load().Config)} for name in names}
    refuse_unknown(" or ".join(known), given, {*stream}.union(*known.values()))
    kept = {name: {key: value for key, value in given.items() if key in has} for name, has in known.items()}
    for name, settings in kept.items():
        if not method(name).memory:
            kept[name] = {key: value for key, value in settings.items() if key not in ("memory", "review")}
    return kept


def _print(rows: "Sequence[Timing]") -> None:
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
