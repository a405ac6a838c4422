"""Models of requests and answers. The OpenAPI description (``ocil.serve.openapi``) is made from them."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictInt, StrictStr

from ocil.serve.labels import BIGGEST_NUMBER

JsonLabel = str | int | float | bool | list[Any] | None
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]


class Refusal(BaseModel):  # type: ignore[misc]
    """Why a request was refused."""

    detail: str
    request_id: str = Field(description="The request's name in the service's log: its X-Request-Id, or a new one.")


class Health(BaseModel):  # type: ignore[misc]
    status: Literal["UP", "DOWN"]
    reason: str | None = Field(None, description="Why the service is not ready.")


class Learned(BaseModel):  # type: ignore[misc]
    """The samples are on the disk: they will be learned, whatever happens to the process."""

    first: Count = Field(description="Number of the first sample of this request.")
    last: Count = Field(description="Number of the last one. Samples are learned in the order of their numbers.")
    count: Count
    repeated: bool = Field(description="The Idempotency-Key came before: these are the first answer's numbers.")
    applied: bool = Field(description="Whether the model has learned all of them by now.")
    learned: Count = Field(description="Number of the last sample that the model has learned.")
    model_samples: Count = Field(description="Samples the model has learned in its life.")


class ClassProbability(BaseModel):  # type: ignore[misc]
    label: JsonLabel
    probability: Share


class InputPrediction(BaseModel):  # type: ignore[misc]
    label: JsonLabel = Field(description="The likeliest class; null if the model knows none.")
    probability: Share | None
    classes: list[ClassProbability] = Field(description="The likeliest classes, the first one first.")


class Predicted(BaseModel):  # type: ignore[misc]
    predictions: list[InputPrediction] = Field(description="One for each image or vector, in their order.")
    model_samples: Count = Field(description="Samples the model had learned when it predicted.")


class ClassState(BaseModel):  # type: ignore[misc]
    label: JsonLabel
    learned: Count = Field(description="Samples learned by this service.")
    correct: Count = Field(description="How many of them were predicted correctly before they were learned.")
    stored: Count = Field(description="Images or vectors in the memory.")


class BiasState(BaseModel):  # type: ignore[misc]
    """New classes are the half that was met last. Without a bias, `occur` and `predicted` are about the same."""

    scored: Count = Field(description="Recent samples whose class was known: the shares are over these.")
    new_classes: Count
    occur: Share = Field(description="Share of these samples that belong to a new class.")
    predicted: Share = Field(description="Share of these samples that were taken for a new class.")
    accuracy_old: Share | None
    accuracy_new: Share | None


class Status(BaseModel):  # type: ignore[misc]
    version: str
    method: str
    image: list[Count] | None = Field(description="Height, width, channels that images are brought to; null: vectors.")
    vector: Count | None = Field(description="Numbers of a vector; null: the model takes images.")
    model_samples: Count = Field(description="Samples the model has learned in its life.")
    model_batches: Count
    acknowledged: Count = Field(description="Number of the last sample on the disk.")
    learned: Count = Field(description="Number of the last sample that the model has learned.")
    saved: Count = Field(description="Number of the last sample in the saved model.")
    queue: Count = Field(description="Samples accepted and not learned yet.")
    queue_limit: Count
    accuracy: Share | None = Field(description="Share of samples predicted correctly before they were learned.")
    recent_accuracy: Share | None = Field(description="The accuracy over the last samples.")
    recent: Count = Field(description="How many samples recent_accuracy is over.")
    classes: list[ClassState] = Field(description="In the order in which they were met.")
    memory_size: Count
    memory_stored: Count
    bias: BiasState | None
    problem: str | None = Field(description="What keeps the service from learning or saving.")
    uptime_seconds: Annotated[float, Field(ge=0)]


class ModelSummary(BaseModel):  # type: ignore[misc]
    name: str
    path: str = Field(description="Where its requests go: /models/NAME/predict, and so on.")
    method: str
    model_samples: Count = Field(description="Samples the model has learned in its life.")
    classes: Count
    queue: Count = Field(description="Samples that are accepted and not learned yet.")
    vectors: bool = Field(description="Whether it takes vectors; else it takes images.")
    reason: str | None = Field(description="Why it is not ready, as /models/NAME/health/ready says it.")
    problem: str | None = Field(description="What keeps it from learning or saving.")


class ModelList(BaseModel):  # type: ignore[misc]
    models: list[ModelSummary]


class StoredClass(BaseModel):  # type: ignore[misc]
    label: JsonLabel
    stored: Count
    images: list[str] = Field(description="PNG images as data addresses; fewer than asked for where they are large.")


class MemoryState(BaseModel):  # type: ignore[misc]
    model_samples: Count
    classes: list[StoredClass]


class StrictRequest(BaseModel):  # type: ignore[misc]
    """JSON that has no other fields than these."""

    model_config = ConfigDict(extra="forbid")


Base64Image = Annotated[
    StrictStr,
    Field(
        min_length=1,
        description="An image file (PNG, JPEG, WebP, BMP, GIF, TIFF, PPM) in base64.",
        json_schema_extra={"format": "base64-image"},
    ),
]


def _whole(value: Any) -> Any:
    """In JSON, 3.0 is a whole number too."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Text = Annotated[StrictStr, Field(min_length=1)]
Number = Annotated[StrictInt, Field(ge=-BIGGEST_NUMBER, le=BIGGEST_NUMBER), BeforeValidator(_whole)]


class LabelledImage(StrictRequest):
    image: Base64Image
    label: Text | Number


class LearnRequest(StrictRequest):
    samples: list[LabelledImage] = Field(min_length=1)


class PredictRequest(StrictRequest):
    images: list[Base64Image] = Field(min_length=1)


Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Vector = Annotated[list[Finite], Field(min_length=1)]


class LabelledVector(StrictRequest):
    vector: Vector
    label: Text | Number


class LearnVectorsRequest(StrictRequest):
    samples: list[LabelledVector] = Field(min_length=1)


class PredictVectorsRequest(StrictRequest):
    vectors: list[Vector] = Field(min_length=1)


LEARN: dict[bool, Any] = {False: LearnRequest, True: LearnVectorsRequest}
"""What a learning request is made of, by whether the model takes vectors."""
PREDICT: dict[bool, Any] = {False: PredictRequest, True: PredictVectorsRequest}
OTHERS = {False: ("vector", "vectors"), True: ("image", "images")}
"""Fields of requests for the other kind of model."""
