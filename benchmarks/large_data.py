"""Datasets larger than memory: how much memory and time an import and a stream take.

Run it: python benchmarks/large_data.py million --folder /tmp/large      1,000,000 images of 64x64 (26 GB of disk)
        python benchmarks/large_data.py photos --folder /tmp/large       4,000 JPEG files, imported as 224x224
        python benchmarks/large_data.py prefetch --folder /tmp/large     time per batch with and without reading ahead
        python benchmarks/large_data.py workers --folder /tmp/large      start of two processes on a 184 MB file

Each measurement runs in a process of its own; the figures are its peak memory and its time. The folder is removed.
"""

import argparse
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

CLASSES = 10


def million(folder: Path, count: int) -> None:
    """Write arrays, import them by the command line, then learn 300 batches with ER."""
    source = folder / "arrays"
    source.mkdir(parents=True)
    noise = np.random.default_rng(0).integers(0, 100, (4096, 64, 64, 3), dtype=np.uint8)  # of every 4096 images
    for split, size in (("train", count), ("test", CLASSES * 50)):
        y = np.arange(size) % CLASSES
        with (source / f"{split}_x.npy").open("wb") as file:
            header = {"descr": "|u1", "fortran_order": False, "shape": (size, 64, 64, 3)}
            np.lib.format.write_array_header_1_0(file, header)
            for first in range(0, size, len(noise)):
                labels = y[first : first + len(noise), None, None, None]
                file.write((noise[: len(labels)] + (15 * labels).astype(np.uint8)).data)
        np.save(source / f"{split}_y.npy", y)
    measured("import of a million images", "-m", "ocil", "data", "import", "million", source, *data_dir(folder))
    shutil.rmtree(source)
    measured("300 batches of er", __file__, "learn", "--folder", folder, "--count", 300)


def photos(folder: Path, count: int) -> None:
    """Write JPEG files of different sizes, import them as 224x224, then learn 100 batches with ER."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for number in range(count):
        place = folder / "photos" / f"class-{number % CLASSES}"
        place.mkdir(parents=True, exist_ok=True)
        small = rng.integers(0, 256, (20, 24, 3), dtype=np.uint8)
        size = (320 + number % 7 * 20, 240 + number % 5 * 20)
        Image.fromarray(small).resize(size).save(place / f"{number}.jpg", quality=85)
    words = ("-m", "ocil", "data", "import", "photos", folder / "photos", "--size", 224, "--form", "folder")
    measured(f"import of {count} JPEG files", *words, *data_dir(folder))
    measured("100 batches of er", __file__, "learn", "--folder", folder, "--count", 100)


def learn(folder: Path, count: int) -> None:
    """The loop that ``million`` and ``photos`` measure."""
    import torch

    import ocil

    torch.backends.mkldnn.enabled = False  # torch 2.13 on x86 aborts in oneDNN with 4 or 8 channels of 64x64
    (name,) = (path.name for path in (folder / "data").iterdir())
    data = ocil.load_dataset(name, folder / "data")
    stream = ocil.Stream(data, ocil.StreamConfig(tasks=5))
    learner = ocil.make_learner("er", data, memory=200, width=4)
    began = time.perf_counter()
    for batch in stream:
        learner.learn(batch.x, batch.y)
        if batch.number + 1 == count:
            break
    print(f"{1000 * (time.perf_counter() - began) / (batch.number + 1):.1f} ms per step, {batch.number + 1} steps")


def prefetch(folder: Path, count: int) -> None:
    """Batches of 10 images of 64x64 from a folder of raw arrays, with a step of 5 ms between them."""
    import torch

    from ocil import Dataset, Stream
    from ocil.data.raw import read_manifest
    from ocil.streams import DeviceData
    from ocil.streams.prefetch import HostBatches

    x = np.random.default_rng(0).integers(0, 256, (count, 64, 64, 3), dtype=np.uint8)
    y = np.arange(count) % CLASSES
    data = Dataset.from_arrays(x, y, x[:100], y[:100], store=folder / "images")
    stream = Stream(data, resident=DeviceData(data, "cpu", resident=False))
    batches = HostBatches(data.train_x, data.train_y, stream.arrivals.samples, stream.bounds)
    weights = torch.randn(300, 300)

    def step() -> None:
        for _ in range(3):
            weights @ weights

    def timed(fetch: Callable[[int], object]) -> float:
        spent, count = 0.0, min(1000, len(stream))
        for number in range(count):
            began = time.perf_counter()
            fetch(number)
            spent += time.perf_counter() - began
            step()
        return 1e6 * spent / count

    for cold in (True, False):
        for name, fetch in (("in the loop", batches.read), ("read ahead", stream.fetch)):
            if cold:
                forget(read_manifest(folder / "images").file(folder / "images", "train_x"))
            print(f"{name}, {'from disk' if cold else 'from the page cache'}: {timed(fetch):.0f} us waited per batch")
            stream.close()


def workers(folder: Path, count: int) -> None:
    """Two processes open the same .npz at the same time: the first time, and later."""
    import ocil

    rng = np.random.default_rng(0)
    y = np.arange(60_000) % 100
    x = rng.integers(0, 256, (60_000, 32, 32, 3), dtype=np.uint8)
    ocil.Dataset("large", x[:50_000], y[:50_000], x[50_000:], y[50_000:], tuple(map(str, range(100)))).save(
        folder / "large.npz"
    )
    os.utime(folder / "large.npz", (time.time() - 60,) * 2)
    environment = os.environ | {"OCIL_CACHE": str(folder / "cache")}
    code = f"""
import time, torch, ocil
began = time.perf_counter()
data = ocil.load_dataset({str(folder / "large.npz")!r})
data.fingerprint
private = sum(int(line.split()[1]) for line in open('/proc/self/status') if line.startswith('RssAnon')) // 1024
print(f'{{time.perf_counter() - began:.2f}} s, {{private}} MB of its own', flush=True)
"""
    for when in ("for the first time", "again"):
        pair = [subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE) for _ in "ab"]
        print(when, [each.communicate()[0].decode().strip() for each in pair])


def forget(path: Path) -> None:
    """Drop a file from the system's page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def data_dir(folder: Path) -> tuple[object, ...]:
    return "--data-dir", folder / "data"


def measured(name: str, *words: object) -> None:
    """Run Python with these words and print the time and the peak memory of its process."""
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, *map(str, words)])
    _, code, usage = os.wait4(process.pid, 0)
    if code:
        raise SystemExit(f"{name} failed")
    print(f"{name}: {time.perf_counter() - began:.0f} s, peak memory {usage.ru_maxrss / 1024:.0f} MB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = {"million": 1_000_000, "photos": 4000, "learn": 300, "prefetch": 20_000, "workers": 0}
    parser.add_argument("what", choices=sizes)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--count", type=int)
    given = parser.parse_args()
    work = {"million": million, "photos": photos, "learn": learn, "prefetch": prefetch, "workers": workers}[given.what]
    place = given.folder if given.what == "learn" else given.folder / given.what
    place.mkdir(parents=True, exist_ok=True)
    try:
        work(place, given.count or sizes[given.what])
    finally:
        if given.what != "learn":
            shutil.rmtree(place)
    print(f"this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    main()
