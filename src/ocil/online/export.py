"""A model for serving elsewhere: images in, probabilities out, nothing else needed."""

import io
import json
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from ocil.errors import OcilError, optional
from ocil.files import write_bytes
from ocil.online.model import Model, encoded

OPSET = 17
INPUT, OUTPUT = "images", "probabilities"


class Served(nn.Module):
    """uint8 images ``[N, H, W, C]`` to probabilities ``[N, classes]``, as the model is now.

    Class means, where a method classifies by them, are computed once, here.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.factor, self.classes = model.images.factor, len(model.labels)
        self.scorer: Callable[[Tensor], Tensor] = model.learner.scorer()

    def forward(self, images: Tensor) -> Tensor:
        if self.factor > 1:
            images = images.repeat_interleave(self.factor, 1).repeat_interleave(self.factor, 2)
        return self.scorer(images)[:, : self.classes].softmax(1)


def export(model: Model, path: Path) -> None:
    """Write ``path``: ONNX, or what ``torch.export.load`` reads if it ends in .pt2. Any batch size."""
    writers = {".onnx": to_onnx, ".pt2": to_program}
    if path.suffix not in writers:
        raise OcilError(f"{path}: the name must end in .onnx or .pt2.")
    if not model.labels:
        raise OcilError("the model has learned nothing yet: there is nothing to export.")
    write_bytes(path, writers[path.suffix](model))


def to_onnx(model: Model) -> bytes:
    """By PyTorch's older exporter: the newer one needs a further package and gives no more here.

    The labels are in the file's metadata, as a JSON list under ``labels``, in the order of the output's columns.
    """
    with optional("the export to ONNX needs a package", "onnx", "onnx"):
        import onnx

    file = io.BytesIO()
    batch = {INPUT: {0: "batch"}, OUTPUT: {0: "batch"}}
    copy = _still(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is the older one, and that shapes are traced
        torch.onnx.export(
            Served(copy),
            (_example(copy),),
            file,  # type: ignore[arg-type]  # the older exporter writes to any file
            dynamo=False,
            opset_version=OPSET,
            dynamic_axes=batch,
            input_names=[INPUT],
            output_names=[OUTPUT],
        )
    graph = onnx.load_from_string(file.getvalue())
    entry = graph.metadata_props.add()
    entry.key, entry.value = "labels", _labels(model)
    onnx.checker.check_model(graph)
    content: bytes = graph.SerializeToString()
    return content


def to_program(model: Model) -> bytes:
    """The labels are in the extra file ``labels.json``."""
    file = io.BytesIO()
    copy = _still(model)
    with warnings.catch_warnings(), torch.no_grad():  # without gradients all along: blocks of that kind cannot be saved
        warnings.simplefilter("ignore")
        batch = {"images": {0: torch.export.Dim("batch", min=1)}}
        program = torch.export.export(Served(copy), (_example(copy),), dynamic_shapes=batch)
        torch.export.save(program, file, extra_files={"labels.json": _labels(model)})
    return file.getvalue()


def _labels(model: Model) -> str:
    return json.dumps([encoded(label) for label in model.labels])


def _example(model: Model) -> Tensor:
    return torch.zeros((2, *model.images.shape), dtype=torch.uint8)


def _still(model: Model) -> Model:
    """A copy on the CPU in float32: exporting must not touch the model, and what is exported must run anywhere."""
    copy = model.copy("cpu")
    copy.learner.requires_grad_(False)  # constants of the graph: only what it uses gets into the file, no memory
    copy.learner.network.precision = "fp32"
    return copy
