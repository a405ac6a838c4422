"""``ocil bench``: how fast a training step is on this machine."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from ocil.cli import console
from ocil.cli.names import DEVICE, METHOD
from ocil.cli.options import WHOLE, Json, Seeds, Settings, check_seconds, read_settings, refuse_settings
from ocil.limits import check_threads

if TYPE_CHECKING:
    from ocil.engines.bench import Timing

VECTOR = (512,)


def bench(
    *methods: Annotated[str, METHOD],
    device: Annotated[str, DEVICE] = "auto",
    seeds: Seeds = None,
    set: Settings = (),  # noqa: A002
    seconds: float = 4.0,
    threads: Annotated[int, WHOLE] = 1,
    as_json: Json = False,
) -> int:
    """Time the training step of methods in their steady state, on random images.

    On a GPU the shapes are CIFAR-100's with a memory of 5000, and seeds run side by side; on a CPU they are those of
    the embedded dataset and one seed runs alone. A network for vectors gets vectors of 512 numbers. `floor` is what the
    passes through the network must take, see docs/performance.md.

    Examples: `ocil bench afs er --set precision=fp32`, `ocil bench er --set network=resnet18`

    Parameters
    ----------
    methods
        Names from `ocil methods`. Default: all of them.
    device
        auto, cpu, cuda or mps.
    seeds
        Seeds that run side by side on a GPU. Default: 10.
    set
        Settings as FIELD=VALUE. A method that lacks one of them is timed without it.
    seconds
        Seconds to spend on each method.
    threads
        CPU threads of a step.
    """
    refuse_settings(methods)
    check_threads(threads)
    check_seconds("seconds", seconds)
    from ocil.data import CATALOG, DEFAULT
    from ocil.devices import pick_device
    from ocil.engines.bench import made_up, measure
    from ocil.experiments.configure import settings_by_method
    from ocil.experiments.files import seed_count
    from ocil.methods import METHODS
    from ocil.runs.config import resolve
    from ocil.runs.stream_run import StreamRun
    from ocil.threads import using

    seeds = None if seeds is None else seed_count(seeds)
    chosen_device = pick_device(device)
    gpu = chosen_device.type == "cuda"
    info, count = (CATALOG["cifar100"], seeds or 10) if gpu else (CATALOG[DEFAULT], 1)
    settings = settings_by_method(methods or tuple(METHODS), read_settings(set))
    shape = _input_shape(read_settings(set).get("network"), info.image_shape)
    cells = [
        [resolve(name, info.name, seed=seed, settings=own, vectors=shape == VECTOR) for seed in range(count)]
        for name, own in settings.items()
    ]
    data = made_up(info.classes, shape, per_class=100)
    timings: list[Timing] = []
    failed: list[str] = []
    try:
        with using(threads):
            for configs in cells:
                try:
                    timings.append(measure(configs, data, chosen_device, seconds=seconds))
                except Exception as error:  # the timings of the others are kept
                    failed.append(f"{configs[0].label}: {StreamRun(configs[0]).failed(error)}")
    finally:
        if as_json:
            console.print_json({"timings": [timing.to_json() for timing in timings], "failed": failed})
        elif timings:
            _print(timings)
    for message in failed:
        console.error(message)
    return 0 if not failed else 1 if timings else 2


def _input_shape(network: str | None, image: tuple[int, int, int]) -> tuple[int, ...]:
    """The shape of inputs that a network takes: images, unless it is for vectors."""
    if network is None:
        return image
    from ocil.networks import network as entry
    from ocil.networks.spec import Spec

    return VECTOR if entry(Spec.parse(network, "network").name).inputs == "vectors" else image


def _print(timings: "Sequence[Timing]") -> None:
    from ocil.networks.registry import REDUCED

    others = any(timing.network != REDUCED for timing in timings)
    rows: list[tuple[str, ...]] = []
    for timing in timings:
        review = "-" if timing.ms_per_review_step is None else f"{timing.ms_per_review_step:.2f}"
        step, spread = f"{timing.ms_per_step:.2f}", f"{timing.spread:.0%}"
        speed = (f"{timing.images_per_second:,.0f}", f"{timing.floor_ms:.2f}", f"{timing.share_of_floor:.0%}")
        rows.append((timing.method, str(timing.seeds), timing.precision, step, spread, review, *speed))
        if others:
            rows[-1] += (timing.network, f"{timing.parameters:,}", f"{timing.multiply_adds / 1e6:,.1f}")
    more = ("network", "trained weights", "M multiply-adds / image") if others else ()
    times = ("ms / step", "spread", "ms / review step", "images / s", "floor ms", "of floor")
    console.print_table(("method", "seeds", "precision", *times, *more), rows, lines="head")
