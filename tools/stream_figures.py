"""Draw the pictures of docs/streams.md from the embedded data, in which the same settings give the same bytes.

python tools/stream_figures.py [--out docs/images]
"""

import argparse
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from ocil.data import load
from ocil.experiments.streams import stream_of
from ocil.report.stream_figure import arrivals
from ocil.report.style import new_figure, render
from ocil.streams import KINDS
from ocil.streams.timeline import timeline

ROOT = Path(__file__).resolve().parent.parent
MORE: dict[str, tuple[str, dict[str, str]]] = {
    "task-sizes": ("fashion-mini", {"task_sizes": "4,1,2,3"}),
    "long-tail": ("fashion-mini", {"imbalance_factor": "20"}),
    "label-noise": ("fashion-mini", {"label_noise": "0.4"}),
    "domains": ("fashion-mini:noise", {"scenario": "domain", "boundary": "blurry"}),
}
"""By the name of the picture: dataset and settings."""


def changes() -> Figure:
    """One image of each of ten domains, for each kind of change."""
    kinds = ("noise", "blur", "occlusion")
    figure, (axes,) = new_figure(6.4, 2.1)
    rows = []
    for kind in kinds:
        data = load(f"fashion-mini:{kind}")
        if data.train_domain is None:
            raise ValueError(kind)
        label = data.classes.index("ankle-boot")
        chosen = [np.flatnonzero((data.train_domain == d) & (data.train_y == label))[0] for d in range(10)]
        rows.append(np.concatenate([data.train_x[number, :, :, 0] for number in chosen], axis=1))
    side = rows[0].shape[0]
    axes.imshow(np.concatenate(rows), cmap="gray", vmin=0, vmax=255, interpolation="none")
    axes.set_yticks([side * (row + 0.5) for row in range(len(kinds))], kinds)
    axes.set_xticks([side * (domain + 0.5) for domain in range(10)], list(map(str, range(1, 11))))
    axes.set(xlabel="domain")
    axes.grid(visible=False)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs/images")
    out = parser.parse_args().out
    wanted = {kind: ("fashion-mini", {"boundary": kind}) for kind in KINDS} | MORE
    for name, (dataset, settings) in wanted.items():
        title = " ".join(f"{key}={value}" for key, value in settings.items())
        found = timeline(stream_of(dataset, settings))
        (out / f"stream-{name}.svg").write_text(render(arrivals, found, title))
    (out / "stream-changes.svg").write_text(render(changes))


if __name__ == "__main__":
    main()
