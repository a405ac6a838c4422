"""Draw the curves of docs/performance.md from what benchmarks/gpu_scaling.py wrote.

python tools/performance_figures.py results/performance/h200-scaling.json [--out docs/images/gpu-scaling.png]
"""

import argparse
import json
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt

from ocil.report.style import COLOURS, MARKERS, STYLE, save

ROOT = Path(__file__).resolve().parent.parent
LABELS = {"seeds": "seeds side by side", "memory": "images in the memory", "classes": "classes"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("measured", type=Path, help="a JSON file that benchmarks/gpu_scaling.py wrote")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/images/gpu-scaling.png")
    options = parser.parse_args()
    content = json.loads(options.measured.read_text())
    with mpl.rc_context(STYLE):
        measured = {row["kind"] for row in content["rows"]}
        shown = {kind: label for kind, label in LABELS.items() if kind in measured}
        size = (0.5 + 3.6 * len(shown), 3.2)
        figure, ((*axes,),) = plt.subplots(
            1, len(shown), figsize=size, layout="constrained", sharey=True, squeeze=False
        )
        for axis, (kind, label) in zip(axes, shown.items(), strict=True):
            rows = [row for row in content["rows"] if row["kind"] == kind]
            for number, method in enumerate(dict.fromkeys(row["method"] for row in rows)):
                mine = [row for row in rows if row["method"] == method]
                axis.plot(
                    [row["at"] for row in mine],
                    [row["ms_per_step"] for row in mine],
                    label=method,
                    color=COLOURS[number],
                    marker=MARKERS[number],
                    markersize=5,
                )
            axis.set(xscale="log", xlabel=label, ylim=(0, None))
        axes[0].set_ylabel("ms per step and seed")
        max(axes, key=lambda axis: len(axis.lines)).legend(frameon=False)
        figure.suptitle(f"{content['device']}, CIFAR-100 shapes, bf16, ten seeds unless noted otherwise")
    save(figure, options.out)


if __name__ == "__main__":
    main()
