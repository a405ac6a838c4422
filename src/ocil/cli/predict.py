"""``ocil predict`` and ``ocil export``: what to do with a model that has learned. The work is done in ocil.online."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from ocil.cli import console
from ocil.cli.options import FLAG, WORDS, Json, ModelDir, Threads, Trust, Whole, check_number
from ocil.errors import OcilError
from ocil.files import must_be_free


def predict(
    *inputs: Path,
    model: ModelDir,
    x: Annotated[tuple[str, ...], WORDS] = (),
    top: Whole = 3,
    device: str = "auto",
    threads: Threads = None,
    trust: Trust = False,
    as_json: Annotated[bool, Parameter(name="--json"), FLAG] = False,
) -> int:
    """Classify images or vectors with a model made by `ocil learn` or by `OnlineClassifier.save`.

    An image that cannot be read, or a row with NaN, is named, and the others are classified; the exit code is then 1.

    Example: `ocil predict new/*.jpg --model birds`

    Example: `ocil predict embeddings.npy --model texts --json`

    Parameters
    ----------
    inputs
        Image files, or folders of them; for a model of vectors .npy, .npz, .parquet or .csv files, whose rows are
        classified.
    x
        The array of an .npz, or the columns of a .parquet or .csv, as for `ocil learn`.
    top
        Classes shown for each input.
    device
        auto, cpu, cuda or mps.
    as_json
        Print one JSON object per line and input.
    """
    if not inputs:
        raise OcilError("name the images to classify, for example: ocil predict new/*.jpg --model birds")
    check_number("top", top, least=1)
    from ocil.online.arrays import Names
    from ocil.online.model import Model
    from ocil.online.predictions import predictions

    loaded = Model.load(model, device, trust)
    loaded.threads = threads
    if not loaded.labels:
        raise OcilError(f"the model in {model} has learned nothing yet.")
    failed = 0
    rows: list[tuple[str, ...]] = []
    for found in predictions(loaded, inputs, top, Names(x), console.info):
        failed += "error" in found
        if as_json:
            console.print_json(found)
        elif "error" in found:
            console.info(f"ocil: {found['error']}")
        else:
            rows.append(_row(found))
    if rows:
        console.print_table(("input", "class", "%", "then"), rows, lines="none")
    return 1 if failed else 0


def _row(found: dict[str, Any]) -> tuple[str, ...]:
    then = ", ".join(f"{one['label']} {100 * one['probability']:.1f}" for one in found["top"][1:])
    path = f"{found['path']}:{found['row']}" if "row" in found else found["path"]
    return path, str(found["label"]), f"{100 * found['probability']:.1f}", then


def export(
    *,
    model: ModelDir,
    out: Annotated[Path, Parameter(alias="-o")],
    threads: Threads = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Write a model as one file for serving elsewhere: ONNX, or a program of `torch.export`.

    Input `images`: uint8 [N, height, width, channels], any N; of a model of vectors `vectors`: float32 [N, D]. Output
    `probabilities`: float32 [N, classes]. The labels of the columns are in the file too, as JSON.

    Example: `ocil export --model birds --out birds.onnx`

    Parameters
    ----------
    out
        A name that ends in .onnx (needs the extra `onnx`) or .pt2.
    """
    if out.suffix.lower() not in (".onnx", ".pt2"):
        raise OcilError(f"{out}: the name must end in .onnx or .pt2.")
    must_be_free(out)
    from ocil.online.export import export as write
    from ocil.online.export import input_of
    from ocil.online.labels import encoded
    from ocil.online.model import Model

    loaded = Model.load(model, "cpu", trust)
    loaded.threads = threads
    with loaded.computing():
        write(loaded, out)
    shape, labels = loaded.input_format.shape, [encoded(label) for label in loaded.labels]
    name, kind = input_of(loaded)
    if as_json:
        key = "image_shape" if name == "images" else "vector_shape"
        console.print_json({"path": str(out), key: shape, "labels": labels})
    else:
        size, of = ", ".join(map(str, shape)), str(kind).removeprefix("torch.")
        console.print_line(f"{out}: {of} {name} [N, {size}] to the probabilities of {len(labels)} classes")
