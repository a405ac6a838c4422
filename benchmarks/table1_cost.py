"""What the whole of Table I costs on H200 GPUs: the arithmetic behind docs/scale.md, as the table it shows.

python benchmarks/table1_cost.py
"""

from ocil.report.published import MEMORY

SEEDS, STEPS = 10, 5000  # every dataset has 50,000 training images, in batches of 10
TASKS = {"cifar10": 5, "cifar100": 10, "mini_imagenet": 10}
PIXELS = {"cifar10": 1.0, "cifar100": 1.0, "mini_imagenet": 84**2 / 32**2}  # a step's cost goes with them, at most
CELL = 15.0  # seconds for ten seeds besides their steps: start, loading, first steps, evaluations
OFFLINE = 50 * 50_000 // 128 * 0.6e-3  # seconds for a seed: steps of 128 images, 0.6 ms each, not measured
# ms a seed-step with ten seeds side by side, bf16 (docs/performance.md); OCM's is a guess from its number of images.
STEP = {
    "agem": 0.43, "er": 0.32, "gss": 3.12, "mir": 0.55, "gdumb": 0.10, "aser": 1.28, "er-ace": 0.35, "dvc": 0.85,
    "aaer": 1.19, "ocm": 10.0, "scr": 1.15, "afs": 1.04,
}  # fmt: skip
REVIEW = {"er-ace": 0.18, "agem": 0.15, "dvc": 0.24, "scr": 0.112} | {"aaer": 0.27, "ocm": 0.18}  # ms for ten images
ROWS = (
    "agem agem-rv er er-rv gss gss-rv mir mir-rv gdumb aser aser-rv er-ace er-ace-rv dvc dvc-rv aaer ocm scr-rv afs-rv"
)


def seconds(row: str, dataset: str, memory: int) -> float:
    """GPU-seconds of one seed, as one of ten side by side."""
    method = row.removesuffix("-rv")
    spent = STEPS * STEP[method] / 1000
    passes = 30 if method == "gdumb" else int(row.endswith("-rv"))  # over the memory, at each task's end
    spent += passes * TASKS[dataset] * memory / 10 * REVIEW.get(method, 0.16) / 1000
    return spent * PIXELS[dataset] + CELL / SEEDS


def main() -> None:
    total, runs = dict.fromkeys(MEMORY, 0.0), 0
    print("| row | " + " | ".join(MEMORY) + " |\n|---|" + "---|" * len(MEMORY))
    for row in ROWS.split():
        hours = {data: SEEDS * sum(seconds(row, data, size) for size in sizes) / 3600 for data, sizes in MEMORY.items()}
        runs += SEEDS * sum(map(len, MEMORY.values()))
        total = {data: total[data] + hours[data] for data in MEMORY}
        print(f"| {row} | " + " | ".join(f"{value:.2f}" for value in hours.values()) + " |")
    for row, once in (("fine-tune", STEPS * 0.15e-3), ("iid-offline", OFFLINE)):
        hours = {data: SEEDS * (once * PIXELS[data] + CELL / SEEDS) / 3600 for data in MEMORY}
        runs += SEEDS * len(MEMORY)
        total = {data: total[data] + hours[data] for data in MEMORY}
        print(f"| {row} | " + " | ".join(f"{value:.2f}" for value in hours.values()) + " |")
    print("| **all** | " + " | ".join(f"**{value:.1f}**" for value in total.values()) + " |")
    print(f"\n{runs} runs, {sum(total.values()):.1f} GPU-hours")


if __name__ == "__main__":
    main()
