"""The cells of Table I that need more seeds: what they cost on an H200, and an experiment that runs them.

python benchmarks/wide_rows.py [RESULTS] [--only 'FIELD=VALUE ...'] [--points 3] [--seeds 10] [--out FILE]

A cell is listed if it has fewer than ``--seeds`` of the first seeds, and a 95 % interval of more than ``--points`` to
each side or none. The cheapest come first, so that a short time on a GPU settles most. FILE has them in this order:

    python benchmarks/cell.py FILE --root RESULTS --limit 600
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import table1_cost

from ocil.evaluation.estimates import estimate
from ocil.evaluation.measures import average_accuracy
from ocil.experiments import files as experiments
from ocil.experiments.files import Cell
from ocil.files import write_bytes
from ocil.runs.naming import seed_folder
from ocil.runs.results import read_result

PRECISION = "bf16"  # of a GPU: names of cells depend on it


@dataclass(frozen=True)
class WideCell:
    cell: Cell
    interval: float | None
    """To each side, in points. None for fewer than two runs."""
    lacking: tuple[int, ...]
    """Seeds that have no run."""

    @property
    def seconds(self) -> float:
        """Of the GPU, for the seeds that it lacks."""
        one = table1_cost.seconds(self.cell.label, self.cell.config.dataset, self.cell.value("memory"))
        return len(self.lacking) * one

    @property
    def written(self) -> str:
        """As an entry of an experiment."""
        config = self.cell.config
        values = {name: self.cell.value(name) for name in ("memory", "review")}
        settings = [f"{name} = {str(value).lower()}" for name, value in values.items() if value is not None]
        return "\n".join(["[[cells]]", f'method = "{config.method}"', f'dataset = "{config.dataset}"', *settings])


def wide_cells(results: Path, only: str, points: float, seeds: int) -> Iterator[WideCell]:
    experiment = experiments.read(Path("table1"), seeds=seeds, settings={"precision": PRECISION}, only=only)
    for cell in experiment.cells:
        by_seed = {
            config.seed: read_result(results / config.cell / seed_folder(config.seed) / "result.json")
            for config in cell.configs
        }
        found = [result for result in by_seed.values() if result is not None]
        lacking = tuple(seed for seed, result in by_seed.items() if result is None)
        interval = estimate([100 * average_accuracy(result.matrix) for result in found]).interval if found else None
        if lacking and (interval is None or interval > points):
            yield WideCell(cell, interval, lacking)


def experiment_file(cells: Sequence[WideCell], seeds: int) -> str:
    """The seeds from the first that any cell lacks: on another machine the runs that there are need not be at hand."""
    first = min((seed for cell in cells for seed in cell.lacking), default=0)
    head = f'title = "Cells of Table I that need more seeds"\nseeds = {seeds - first}\nfirst_seed = {first}'
    head += f'\n\n[settings]\nprecision = "{PRECISION}"'
    return "\n\n".join([head, *(each.written for each in cells)]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=Path, nargs="?", default=Path("results"))
    parser.add_argument("--only", default="dataset=cifar100,cifar10")
    parser.add_argument("--points", type=float, default=3.0)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    cells = sorted(wide_cells(options.results, options.only, options.points, options.seeds), key=lambda c: c.seconds)
    print("| dataset | row | memory | interval, points | runs to do | GPU-seconds, those above included |")
    print("|---|---|---|---|---|---|")
    total = 0.0
    for each in cells:
        total += each.seconds
        interval = "-" if each.interval is None else f"{each.interval:.1f}"
        name = f"{each.cell.config.dataset} | {each.cell.label} | {each.cell.value('memory') or '-'}"
        print(f"| {name} | {interval} | {len(each.lacking)} | {total:.0f} |")
    if options.out:
        write_bytes(options.out, experiment_file(cells, options.seeds).encode())


if __name__ == "__main__":
    main()
