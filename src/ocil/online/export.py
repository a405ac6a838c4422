"""Exports a model to run elsewhere, without ocil: images or vectors in, probabilities out."""

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ocil.errors import OcilError, optional
from ocil.files import write_bytes
from ocil.online.images import ImageFormat
from ocil.online.labels import encoded
from ocil.online.model import Model

OPSET = 18  # the oldest that the exporter writes without a conversion
OUTPUT = "probabilities"


class Served(nn.Module):
    """Turns uint8 images ``[N, H, W, C]`` or float32 vectors ``[N, D]`` into probabilities ``[N, classes]``.

    It is the model as it is now, with the network's resizing and normalisation. Class means, where a method classifies
    by them, are computed once, here.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.classes = len(model.labels)
        self.factor = model.input_format.factor if isinstance(model.input_format, ImageFormat) else 1
        self.dtype = model.learner.problem.dtype
        self.scorer: Callable[[Tensor], Tensor] = model.learner.scorer()

    def forward(self, inputs: Tensor) -> Tensor:
        inputs = inputs.to(self.dtype)
        if self.factor > 1:
            inputs = inputs.repeat_interleave(self.factor, 1).repeat_interleave(self.factor, 2)
        return self.scorer(inputs)[:, : self.classes].softmax(1)


def input_of(model: Model) -> tuple[str, torch.dtype]:
    """The name and type of the exported program's input. Vectors are float32 there, whatever the model keeps."""
    return ("images", torch.uint8) if isinstance(model.input_format, ImageFormat) else ("vectors", torch.float32)


def export(model: Model, path: Path) -> None:
    """Write ``path``: ONNX, or what ``torch.export.load`` reads if it ends in .pt2. Any batch size."""
    writers = {".onnx": to_onnx, ".pt2": to_program}
    if (ending := path.suffix.lower()) not in writers:
        raise OcilError(f"{path}: the name must end in .onnx or .pt2.")
    if not model.labels:
        raise OcilError("the model has learned nothing yet: there is nothing to export.")
    write_bytes(path, writers[ending](model))


def to_onnx(model: Model) -> bytes:
    """An ONNX file with all weights in it, whose first dimension is open.

    The labels are in the file's metadata, as a JSON list under ``labels``, in the order of the output's columns.
    """
    with optional("the export to ONNX needs packages", "onnx", "onnx", "onnxscript"):
        import onnx
        from onnxscript import opset18 as op

    def distances(x1: Any, x2: Any, p: float, compute_mode: int | None) -> Any:
        """``torch.cdist`` of all rows [N, D] to all rows [M, D]: Euclidean, as methods with class means use it."""
        if p != 2:
            raise NotImplementedError(f"the export of torch.cdist with p = {p}")
        return op.Sqrt(op.ReduceSumSquare(op.Sub(op.Unsqueeze(x1, [-2]), op.Unsqueeze(x2, [-3])), [-1], keepdims=0))

    copy = _frozen_copy(model)
    with _exporting("ONNX", "Change its network, try a newer PyTorch, or export to .pt2."):
        program: Any = torch.onnx.export(
            Served(copy).eval(),
            (_example(copy),),
            dynamo=True,
            verbose=False,
            opset_version=OPSET,
            dynamic_shapes=_any_batch(),
            input_names=[input_of(model)[0]],
            output_names=[OUTPUT],
            external_data=False,
            custom_translation_table={torch.ops.aten._cdist_forward.default: distances},  # PyTorch has none
        )
    graph: onnx.ModelProto = program.model_proto
    _remove_traces(graph.graph)
    entry = graph.metadata_props.add()
    entry.key, entry.value = "labels", _labels(model)
    onnx.checker.check_model(graph)
    content: bytes = graph.SerializeToString()
    return content


def to_program(model: Model) -> bytes:
    """A file for ``torch.export.load``. The labels are in the extra file ``labels.json``."""
    file = io.BytesIO()
    copy = _frozen_copy(model)
    with _exporting("a program of torch.export", "Change its network, or try a newer PyTorch."):
        program = torch.export.export(Served(copy), (_example(copy),), dynamic_shapes=_any_batch(), strict=False)
        torch.export.save(program, file, extra_files={"labels.json": _labels(model)})
    return file.getvalue()


@contextmanager
def _exporting(what: str, advice: str) -> Iterator[None]:
    """Export without gradients, since a block without them inside the model could not be saved, and without warnings.

    The exporters' warnings concern their own development and operators of torchvision. Of what they cannot do they
    print whole graphs: the ``OcilError`` has the cause.
    """
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.fx.experimental.symbolic_shapes")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), torch.no_grad(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    except OcilError:
        raise
    except Exception as error:  # of any kind: the exporters run the network's code on values that are not there
        reason = _first_line(error)
        raise OcilError(f"PyTorch {torch.__version__} cannot make {what} of this model: {reason}. {advice}") from error
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _first_line(error: BaseException) -> str:
    """What the first cause of an error says, in one line."""
    seen: set[int] = set()
    while error.__cause__ is not None and id(error) not in seen:  # an error may be its own cause
        seen.add(id(error))
        error = error.__cause__
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].strip().rstrip(".:")


def _remove_traces(graph: Any) -> None:
    """Remove what the exporter notes about each part: lines of code with their files, which are most of the bytes."""
    for part in (graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        part.ClearField("metadata_props")


def _any_batch() -> tuple[dict[int, Any]]:
    """The first dimension of the input is open. PyTorch 2.6 wants a bound."""
    return ({0: torch.export.Dim("batch", min=1, max=2**31)},)


def _labels(model: Model) -> str:
    return json.dumps([encoded(label) for label in model.labels])


def _example(model: Model) -> Tensor:
    return torch.zeros((2, *model.input_format.shape), dtype=input_of(model)[1])


def _frozen_copy(model: Model) -> Model:
    """A copy on the CPU in float32: exporting must not change the model, and the result must run on any machine."""
    copy = model.copy("cpu")
    copy.learner.requires_grad_(False)  # constants of the graph: only what it uses gets into the file, no memory
    return copy
