"""Results of finished runs: ``result.json``, read and checked, and means over the runs of a cell."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from ocil.data import Dataset
from ocil.errors import LaterVersionError, OcilError
from ocil.evaluation import measures
from ocil.evaluation.measures import MEASURES, Estimate, estimate
from ocil.evaluation.record_types import AnytimeRecord, CalibrationRecord, PrequentialRecord, ProbeRecord
from ocil.files import NOWHERE, read_regular, write_bytes
from ocil.runs.config import RunConfig
from ocil.runs.result_checks import check_result
from ocil.streams import StreamConfig
from ocil.tensorfile import DamagedFileError
from ocil.text import number_text

T = TypeVar("T")
SCHEMA = 2
"""The version of the format; since 2 a result has a checksum."""
CHECKSUM = "checksum"
MOST_BYTES = 1 << 26  # of a JSON file; results are far smaller
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
NUMBERS = re.compile(r"\[\n\s+(-?\d[-+.\deE]*(?:,\n\s+-?\d[-+.\deE]*)*)\n\s*\]")  # a list of them over many lines
CURVES = {  # the name of the curve of each field of an evaluation
    "mean_logit_old": "logits/old classes",
    "mean_logit_new": "logits/new classes",
    "mean_weight_old": "weights/old classes",
    "mean_weight_new": "weights/new classes",
    "hard": "samples/hard",
    "ambiguous": "samples/ambiguous",
    "easy": "samples/easy",
}
BY_GROUP = "accuracy by group/"
ANYTIME = "anytime accuracy"  # its steps count stream batches


@dataclass(frozen=True)
class Result:
    """The result of one finished run. Accuracies are shares, 0 to 1. ``ocil.run`` returns it.

    Examples:
        >>> result = ocil.run(ocil.resolve("er", memory=50, settings={"width": 1}), "runs", device="cpu")
        >>> len(result.matrix), result.config.seed
        (5, 0)
    """

    config: RunConfig
    matrix: list[list[float]]
    """Accuracy by class group, one row after each group of the stream."""
    evaluations: list[dict[str, Any]]
    """After each group: mean weights and logits of old and new classes, counts of hard, ambiguous and easy samples, and
    ``correct``, the test images of each class that were classified correctly."""
    wall_seconds: float
    peak_memory: dict[str, int]
    """Bytes: ``host`` and, on a GPU, ``device``."""
    digest: str
    """SHA-256 of the final learner: weights, memory and generators."""
    environment: dict[str, Any]
    anytime: AnytimeRecord = field(default_factory=AnytimeRecord)
    """With ``evaluate_every``: correct test images per class at each point, see ``ocil.evaluation.anytime``."""
    tested: list[int] = field(default_factory=list)
    """Test images per class."""
    tested_by_domain: list[list[int]] = field(default_factory=list)
    """Test images by domain and class, if the dataset has domains."""
    groups: list[list[int]] = field(default_factory=list)
    """The classes of each group: what the columns of the accuracy matrix are."""
    confusion: list[list[int]] = field(default_factory=list)
    """At the end: test images by true class (rows) and predicted class (columns)."""
    calibration: CalibrationRecord = field(default_factory=CalibrationRecord)
    """At the end: images, correct images and sum of confidences in 15 bins of confidence, if scores are logits."""
    prequential: PrequentialRecord = field(default_factory=PrequentialRecord)
    """With ``prequential``: stream samples, and how many of them were predicted correctly, by window."""
    probe: ProbeRecord = field(default_factory=ProbeRecord)
    """With ``probe``: accuracy of a linear probe of the final features, and correct test images per class."""
    cost: dict[str, int] = field(default_factory=dict)
    """Images passed through the network, and bytes kept: see ``ocil.runs.cost``."""

    def to_json(self) -> dict[str, Any]:
        """The content of result.json: the result, means that follow from it, and a checksum."""
        derived = {
            "average_accuracy": measures.average_accuracy(self.matrix),
            "average_forgetting": measures.average_forgetting(self.matrix),
            "average_forgetting_common": measures.average_forgetting_common(self.matrix),
            "accuracy_curve": measures.accuracy_curve(self.matrix),
        }
        if self.anytime:
            derived["average_anytime_accuracy"] = measures.average_anytime_accuracy(self.anytime, self.groups)
        found = {
            name: getattr(self, name) for name, optional in _IN_FILE.items() if getattr(self, name) or not optional
        }
        return sealed({"schema": SCHEMA, "config": self.config.to_json(), **derived, **found})

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Result":
        """The result in a result.json. Raises if the content is none: a file may come from anywhere."""
        check_sealed(content, SCHEMA)
        found = {name: content[name] for name, optional in _IN_FILE.items() if name in content or not optional}
        result = cls(RunConfig.from_json(content["config"]), **found)
        check_result(result)
        return result

    @property
    def images(self) -> str:
        """Fingerprint of the dataset; empty in results from before it was kept."""
        return str(self.environment.get("images", self.config.fingerprint))

    @property
    def order(self) -> str:
        """Digest of the order of arrival; empty in results from before it was kept."""
        return str(self.environment.get("order", ""))

    def same_images(self, dataset: Dataset) -> bool:
        """Whether it was measured on that dataset, as far as is known."""
        return not self.images or self.images == dataset.fingerprint

    def __repr__(self) -> str:
        """One line: all that was recorded would fill pages of a notebook."""
        return f"<Result of {self.config.cell}, seed {self.config.seed}: {self.headline}>"

    @property
    def headline(self) -> str:
        """The average accuracy at the end, in words."""
        return f"accuracy {number_text(measures.average_accuracy(self.matrix), 'percent')} %"

    @property
    def curves(self) -> Iterator[tuple[str, int, float]]:
        """Name, step and value of everything that a tracker plots."""
        yield from evaluation_curves(self.evaluations)
        for point in self.anytime.get("points", ()):
            yield ANYTIME, point["batch"], point["accuracy"]

    def require_same_images(self, dataset: Dataset, path: Path, own_batches: bool = False) -> "Result":
        """Returns the result itself. Raises if it was measured on other images of that name; ``own_batches``: see
        ``other_images``."""
        if not self.same_images(dataset):
            raise OcilError(other_images(path, own_batches))
        return self


_IN_FILE = {f.name: f.default_factory is not MISSING for f in fields(Result) if f.name != "config"}
"""Fields that a file has under the same name, and whether it lacks them where nothing was recorded."""


def evaluation_curves(evaluations: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, int, float]]:
    """Name, step and value of each number in evaluations. Steps count the groups shown."""
    for shown, evaluation in enumerate(evaluations, 1):
        for group, accuracy in enumerate(evaluation["accuracy"], 1):
            yield f"{BY_GROUP}{group:02}", shown, accuracy
        for name, curve in CURVES.items():
            if evaluation[name] is not None:
                yield curve, shown, evaluation[name]


@dataclass(frozen=True)
class Summary:
    """Means and intervals over runs that differ only by their seed."""

    config: RunConfig
    average_accuracy: Estimate
    average_forgetting: Estimate | None
    average_forgetting_common: Estimate | None
    average_intransigence: Estimate | None
    wall_seconds: Estimate
    accuracy_curve: list[Estimate]
    measures: dict[str, Estimate | None] = field(default_factory=dict)
    """All of ``ocil.evaluation.measures.MEASURES`` by name; None where a run has no value."""


def summarise(results: Sequence[Result], references: Sequence[Result | None] | None = None) -> Summary:
    """Means and intervals over seeds; ``references`` are the fine-tuned runs of the same seeds.

    Intransigence is that of the seeds that have one.
    """
    matrices = [result.matrix for result in results]
    fine_tuned = [
        (m, r.matrix) for m, r in zip(matrices, references or [None] * len(results), strict=True) if r is not None
    ]
    curves = zip(*map(measures.accuracy_curve, matrices), strict=True)
    return Summary(
        results[0].config,
        estimate([measures.average_accuracy(m) for m in matrices]),
        _estimate([measures.average_forgetting(m) for m in matrices]),
        _estimate([measures.average_forgetting_common(m) for m in matrices]),
        _estimate([measures.average_intransigence(matrix, reference) for matrix, reference in fine_tuned]),
        estimate([result.wall_seconds for result in results]),
        [estimate(values) for values in curves],
        {name: _estimate([measure.of(result) for result in results]) for name, measure in MEASURES.items()},
    )


class References:
    """The fine-tuned runs among some results, for ``summarise``. One with more evaluations is as good as any other."""

    def __init__(self, results: Iterable[Result]) -> None:
        self.found: dict[tuple[str, int], Result] = {}
        for result in results:
            config = result.config
            if config.method == "fine-tune":
                cell = config.unmeasured.cell
                if config.cell == cell or (cell, config.seed) not in self.found:
                    self.found[cell, config.seed] = result

    def of(self, result: Result) -> Result | None:
        """The run that its intransigence is measured against, if it is among them."""
        return self.found.get((result.config.reference().cell, result.config.seed))


def measures_json(summary: Summary) -> dict[str, Any]:
    """Measures as commands print them with ``--json``: those that have a value, and those of plugins. If those over
    time are of a part of the test images, ``evaluate_on`` says how many."""
    known = {name: value for name, value in summary.measures.items() if value or not MEASURES[name].is_ours}
    on = summary.config.stream.evaluate_on
    part = {"evaluate_on": on} if on else {}
    return {"measures": {name: measures.estimate_json(value) for name, value in known.items()}, **part}


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content with a checksum of everything else in it, in place of any it had."""
    return {**content, CHECKSUM: _checksum(content)}


def check_sealed(content: Mapping[str, Any], schema: int) -> None:
    """Raise if the content has changed since it was written, or has a later schema, which may give the same names
    another meaning. The first schema had no checksum.
    """
    if content["schema"] not in range(1, schema + 1):
        kind = LaterVersionError if type(content["schema"]) is int and content["schema"] > schema else ValueError
        raise kind(f"its schema is {content['schema']}, this version of ocil reads up to {schema}")
    if content["schema"] == 1 and CHECKSUM not in content:
        return
    found = content.get(CHECKSUM)
    if found != _digest(content) and found != _checksum(content):
        raise DamagedFileError("it is damaged: its content does not match its checksum")


def _checksum(content: Mapping[str, Any]) -> str:
    """SHA-256 of what a file with this content holds, however it is spaced and ordered."""
    return _digest(json.loads(json.dumps(content)))


def _digest(content: Mapping[str, Any]) -> str:
    """``_checksum`` of content that was read from a file."""
    rest = {name: value for name, value in content.items() if name != CHECKSUM}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def order_has_changed(stream: StreamConfig) -> bool:
    """Whether the order that such a stream draws has changed while checkpoints and results did not keep it."""
    return not stream.order and (stream.boundary in ("i-blurry", "si-blurry") or stream.task_ends == "hidden")


def unreadable(path: Path, error: Exception) -> str:
    advice = "Update ocil" if isinstance(error, LaterVersionError) else "Delete it to start that run again"
    return f"cannot read {path}: {reason_of(error)}. {advice}."


def if_there(path: Path, read: Callable[[], T], says: Callable[[Path, Exception], str] = unreadable) -> T | None:
    """What ``read`` finds in a file; None if there is no file. Raises ``OcilError`` if it cannot be read.

    ``says``: what the error says.
    """
    try:
        return read()
    except (*UNREADABLE, OcilError) as error:
        if isinstance(error, OSError) and error.errno in NOWHERE:
            return None
        raise OcilError(says(path, error)) from error


def read_result(path: Path) -> Result | None:
    """The result in a file; None if there is no file. Raises ``OcilError`` if it cannot be read."""
    return if_there(path, lambda: Result.from_json(read_json(path)))


def reason_of(error: Exception) -> str:
    """Why a file could not be read, in one line of at most 200 characters."""
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    meant = isinstance(error, OcilError | DamagedFileError)
    text = str(error) if meant else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:200].rstrip(".")


def other_images(path: Path, own_batches: bool = False) -> str:
    """What is wrong with a run that was begun with other images. ``own_batches``: the user gives a stream, and the
    batches of a generator may never come again."""
    if own_batches:
        return (
            f"{path} was begun with other batches, so it cannot go on with these: "
            "give the same batches in the same order, use another folder, or delete that one."
        )
    found = f"{path} was begun with other images of that name"
    return f"{found}: import those again, use another folder of runs (--out), or delete that one."


def read_json(path: Path) -> Any:
    raw = read_regular(path, MOST_BYTES)
    content = json.loads(raw)
    if not raw.isascii() or b"\\u" in raw or b"\0" in raw:  # else every character is a plain one
        json.dumps(content, ensure_ascii=False).encode()  # raises for a lone surrogate, which cannot be written again
    return content


def write_json(path: Path, content: Any) -> None:
    """Write JSON with a line per item, but lists of numbers in one line."""
    text = NUMBERS.sub(lambda found: f"[{''.join(found[1].split())}]", json.dumps(content, indent=1))
    write_bytes(path, f"{text}\n".encode())


def _estimate(values: list[float | None]) -> Estimate | None:
    """None where the quantity is not defined for every run."""
    known = [value for value in values if value is not None]
    return estimate(known) if known and len(known) == len(values) else None
