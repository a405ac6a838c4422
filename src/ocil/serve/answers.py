"""Models of requests and answers. The OpenAPI description is made from them."""

from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictInt, StrictStr

from ocil.serve.labels import BIGGEST_NUMBER
from ocil.serve.limits import Limits

JsonLabel = str | int | float | bool | list[Any] | None
LARGEST = float(np.finfo(np.float32).max)
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


class Models(BaseModel):  # type: ignore[misc]
    models: list[ModelSummary]


class StoredClass(BaseModel):  # type: ignore[misc]
    label: JsonLabel
    stored: Count
    images: list[str] = Field(description="PNG images as data addresses; fewer than asked for where they are large.")


class MemoryState(BaseModel):  # type: ignore[misc]
    model_samples: Count
    classes: list[StoredClass]


class _Request(BaseModel):  # type: ignore[misc]
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


class LabelledImage(_Request):
    image: Base64Image
    label: Text | Number


class LearnRequest(_Request):
    samples: list[LabelledImage] = Field(min_length=1)


class PredictRequest(_Request):
    images: list[Base64Image] = Field(min_length=1)


Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Vector = Annotated[list[Finite], Field(min_length=1)]


class LabelledVector(_Request):
    vector: Vector
    label: Text | Number


class LearnVectorsRequest(_Request):
    samples: list[LabelledVector] = Field(min_length=1)


class PredictVectorsRequest(_Request):
    vectors: list[Vector] = Field(min_length=1)


LEARN: dict[bool, Any] = {False: LearnRequest, True: LearnVectorsRequest}
"""What a learning request is made of, by whether the model takes vectors."""
PREDICT: dict[bool, Any] = {False: PredictRequest, True: PredictVectorsRequest}
OTHERS = {False: ("vector", "vectors"), True: ("image", "images")}
"""Fields of requests for the other kind of model."""


def learn_body(limits: Limits, vectors: int | None) -> dict[str, Any]:
    """The description of a learning request: a form or JSON, JSON alone for ``vectors`` of so many numbers."""
    if vectors is not None:
        return _body(LEARN[True].__name__)
    fields = {
        "image": _form_images(limits),
        "label": {
            "type": "array",
            "minItems": 1,
            "maxItems": limits.batch,
            "items": {"type": "string", "minLength": 1, "maxLength": limits.label},
            "description": "The class of each image, in the same order.",
        },
    }
    return _body("LearnRequest", fields)


def predict_body(limits: Limits, vectors: int | None) -> dict[str, Any]:
    if vectors is not None:
        return _body(PREDICT[True].__name__)
    return _body("PredictRequest", {"image": _form_images(limits)})


def files_body(limits: Limits) -> dict[str, Any]:
    """The description of a form of images, without labels."""
    described = _body("", {"image": _form_images(limits)})
    del described["requestBody"]["content"]["application/json"]
    return described


def model_body(model: Any, prefix: str, schemas: dict[str, Any]) -> dict[str, Any]:
    """The description of JSON that is read as a model. ``schemas`` gets its parts, named after ``prefix``."""
    schema = model.model_json_schema(ref_template=f"#/components/schemas/{prefix}{{model}}")
    schemas |= {f"{prefix}{name}": part for name, part in schema.pop("$defs", {}).items()}
    schemas[f"{prefix}{model.__name__}"] = schema
    return _body(f"{prefix}{model.__name__}")


def _form_images(limits: Limits) -> dict[str, Any]:
    image = {"type": "string", "format": "binary", "contentMediaType": "image/*"}
    return {"type": "array", "minItems": 1, "maxItems": limits.batch, "items": image, "description": "Image files."}


def _body(name: str, fields: dict[str, Any] | None = None) -> dict[str, Any]:
    """JSON of this name, or a form of these fields."""
    content: dict[str, Any] = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
    if fields is not None:
        form = {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
        encoding = {"image": {"contentType": "image/png, image/jpeg, image/webp, image/bmp, image/gif, image/tiff"}}
        content["multipart/form-data"] = {"schema": form, "encoding": encoding}
    return {"requestBody": {"required": True, "content": content}}


def request_schemas(limits: Limits, vectors: int | None) -> dict[str, Any]:
    """The JSON requests with the limits of this service, for images or for ``vectors`` of so many numbers."""
    found: dict[str, Any] = {}
    learn, predict = LEARN[vectors is not None], PREDICT[vectors is not None]
    for model in (learn, predict):
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        found |= schema.pop("$defs", {})
        found[model.__name__] = schema
    inputs, sample = ("images", "LabelledImage") if vectors is None else ("vectors", "LabelledVector")
    asked = found[predict.__name__]["properties"][inputs]
    found[learn.__name__]["properties"]["samples"]["maxItems"] = asked["maxItems"] = limits.batch
    if vectors is not None:
        for vector in (asked["items"], found[sample]["properties"]["vector"]):
            vector |= {"minItems": vectors, "maxItems": vectors}
            vector["items"] |= {"minimum": -LARGEST, "maximum": LARGEST}
    found[sample]["properties"]["label"]["anyOf"][0] |= {
        "maxLength": limits.label,
        "pattern": r"^[^\s\x00-\x1f\x7f-\x9f]([^\x00-\x1f\x7f-\x9f]*[^\s\x00-\x1f\x7f-\x9f])?$",
        "description": (
            "Blanks around it are left out. Control characters, those that set the direction of text, and text "
            "without a visible character are refused. "
            "A label that reads like that of a known class means that class."
        ),
    }
    return found
