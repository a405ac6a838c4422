"""What the whole of Table I costs on H200 GPUs: the arithmetic behind docs/scale.md, as the table it shows.

python benchmarks/table1_cost.py
"""

import json
from pathlib import Path

from ocil.data import CATALOG
from ocil.experiments.estimate import MILLISECONDS, Size, cost_of_step
from ocil.methods import method
from ocil.methods.review_label import Label
from ocil.report.papers import load
from ocil.runs.config import RunConfig, resolve

TABLE = load().tables[0]
MEMORY = TABLE.memory
METHODS = [str(row.label) for row in TABLE.rows if not row.bound]
SEEDS = 10
CELL = 15.0  # seconds for ten seeds besides their steps: start, loading, first steps, evaluations
# Milliseconds per step of one seed among ten, in bf16, by method. What was not timed is computed from its passes.
STEPS = Path(__file__).parents[1] / "results/performance/h200-steps.json"
TIMED = {Label.parse(row["method"]).method: row for row in json.loads(STEPS.read_text())["rows"]}


def step_ms(config: RunConfig) -> float:
    if timed := TIMED.get(config.method):
        then = resolve(config.method, "cifar100", settings=timed.get("settings"))
        return float(timed["ms_per_step"]) * passes_per_step(config) / passes_per_step(then)
    a_pass, an_image = MILLISECONDS["cuda bf16"]
    passes, images = cost_of_step(config, Size.of(CATALOG["cifar100"]))
    return passes * a_pass + images * an_image


def passes_per_step(config: RunConfig) -> int:
    """At least 1: GDumb only stores."""
    classes = CATALOG[config.dataset].classes
    return max(1, len(config.learner_class.passes(config.learner, config.stream.batch_size, classes)))


def seconds(row: str, dataset: str, memory: int | None = None) -> float:
    """GPU-seconds of one seed, as one of ten side by side."""
    label, info = Label.parse(row), CATALOG[dataset]
    config = resolve(label.method, dataset, memory=memory, review=label.review)
    learner, stream = config.learner, config.stream
    spent = stream.epochs * info.train // stream.batch_size * step_ms(config)
    kind = method(label.method).learner_class
    at_task_end = learner.memory if learner.review else 0  # images, of which each costs as much as in a review
    at_task_end += sum(
        each.images for each in kind.task_end_passes(learner, info.classes, learner.memory) if each.trains
    )
    spent += stream.tasks * at_task_end / learner.review_batch * review_ms(label.method)
    pixels = info.image_shape[0] * info.image_shape[1] / 32**2  # the cost of a step goes with them, at most
    return spent / 1000 * pixels + CELL / SEEDS


def review_ms(name: str) -> float:
    return float(TIMED.get(name, {}).get("ms_per_review_step") or TIMED["er"]["ms_per_review_step"])


def main() -> None:
    total, runs = dict.fromkeys(MEMORY, 0.0), 0
    print("| row | " + " | ".join(MEMORY) + " |\n|---|" + "---|" * len(MEMORY))
    for row in (*METHODS, "fine-tune", "iid-offline"):
        sizes = MEMORY if row in METHODS else dict.fromkeys(MEMORY, (None,))
        hours = {data: SEEDS * sum(seconds(row, data, size) for size in sizes[data]) / 3600 for data in MEMORY}
        runs += SEEDS * sum(map(len, sizes.values()))
        total = {data: total[data] + hours[data] for data in MEMORY}
        print(f"| {row} | " + " | ".join(f"{value:.2f}" for value in hours.values()) + " |")
    print("| **all** | " + " | ".join(f"**{value:.1f}**" for value in total.values()) + " |")
    print(f"\n{runs} runs, {sum(total.values()):.1f} GPU-hours")


if __name__ == "__main__":
    main()
