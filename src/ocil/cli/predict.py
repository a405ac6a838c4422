"""``ocil predict`` and ``ocil export``: what to do with a model that has learned. The work is done in ocil.online."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from ocil.cli import console
from ocil.cli.options import FLAG, Json, ModelDir, Threads, Whole
from ocil.errors import OcilError
from ocil.files import must_be_free


def predict(
    *images: Path,
    model: ModelDir,
    top: Whole = 3,
    device: str = "auto",
    threads: Threads = None,
    as_json: Annotated[bool, Parameter(name="--json"), FLAG] = False,
) -> int:
    """Classify images with a model made by `ocil learn` or by `OnlineClassifier.save`.

    An image that cannot be read is named, the others are classified; the exit code is then 1.

    Example: `ocil predict new/*.jpg --model birds`

    Parameters
    ----------
    images
        Files, or folders of them.
    top
        Classes shown for each image.
    device
        auto, cpu, cuda or mps.
    as_json
        Print one JSON object per line and image.
    """
    if not images:
        raise OcilError("name the images to classify, for example: ocil predict new/*.jpg --model birds")
    if top < 1:
        raise OcilError(f"--top {top} must be at least 1.")
    from ocil.online.model import Model
    from ocil.online.predictions import image_files, predictions

    loaded = Model.load(model, device)
    loaded.threads = threads
    if not loaded.labels:
        raise OcilError(f"the model in {model} has learned nothing yet.")
    failed = 0
    rows: list[tuple[str, ...]] = []
    for found in predictions(loaded, image_files(images), top):
        failed += "error" in found
        if as_json:
            console.print_json(found)
        elif "error" in found:
            console.info(f"ocil: {found['error']}")
        else:
            rows.append(_row(found))
    if rows:
        console.print_table(("image", "class", "%", "then"), rows, lines="none")
    return 1 if failed else 0


def _row(found: dict[str, Any]) -> tuple[str, ...]:
    then = ", ".join(f"{one['label']} {100 * one['probability']:.1f}" for one in found["top"][1:])
    return found["path"], str(found["label"]), f"{100 * found['probability']:.1f}", then


def export(
    *, model: ModelDir, out: Annotated[Path, Parameter(alias="-o")], threads: Threads = None, as_json: Json = False
) -> None:
    """Write a model as one file for serving elsewhere: ONNX, or a program of `torch.export`.

    Input `images`: uint8 [N, height, width, channels], any N. Output `probabilities`: float32 [N, classes]. The labels
    of the columns are in the file too, as JSON.

    Example: `ocil export --model birds --out birds.onnx`

    Parameters
    ----------
    out
        A name that ends in .onnx (needs the extra `onnx`) or .pt2.
    """
    if out.suffix not in (".onnx", ".pt2"):
        raise OcilError(f"{out}: the name must end in .onnx or .pt2.")
    must_be_free(out)
    from ocil.online.export import export as write
    from ocil.online.labels import encoded
    from ocil.online.model import Model

    loaded = Model.load(model, "cpu")
    loaded.threads = threads
    with loaded.computing():
        write(loaded, out)
    shape, labels = loaded.images.shape, [encoded(label) for label in loaded.labels]
    if as_json:
        console.print_json({"path": str(out), "image_shape": shape, "labels": labels})
    else:
        size = ", ".join(map(str, shape))
        console.print_line(f"{out}: uint8 images [N, {size}] to the probabilities of {len(labels)} classes")
