"""The OpenAPI description: refusals, and the bodies of requests, which FastAPI does not parse here."""

from collections.abc import Callable
from typing import Any

import numpy as np
from fastapi import FastAPI
from pydantic import BaseModel

from ocil.serve.answers import LEARN, PREDICT, Refusal
from ocil.serve.limits import Limits

REFUSALS = {
    400: "The request cannot be read.",
    401: "The token is missing or wrong.",
    403: "From another site, or beyond the scope of the token.",
    404: "There is no such sample or version.",
    408: "The request came too slowly.",
    409: "The Idempotency-Key came before with another request, or the change does not fit what is there.",
    413: "Too large.",
    415: "Neither a form nor JSON.",
    422: "Something in the request is wrong.",
    429: "Too much at once: try again after Retry-After seconds.",
    503: "Learning has stopped, the disk is full, a file is damaged, or the service is stopping.",
}
GUARD = (401, 403, 429)
"""What the guard may answer to any request."""
BODY = (400, 408, 413, 415, 422)
"""What may be answered to a request with a body."""
LARGEST = float(np.finfo(np.float32).max)
LABEL_PATTERN = r"^[^\s\x00-\x1f\x7f-\x9f]([^\x00-\x1f\x7f-\x9f]*[^\s\x00-\x1f\x7f-\x9f])?$"

Schema = dict[str, Any]
Responses = dict[int | str, dict[str, Any]]
TEXT: Responses = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}


def refusals(*codes: int) -> Responses:
    """By reference, not by the model: FastAPI would make a field of it for each, most of the time of a start."""
    content = _json(_reference(Refusal))
    return {code: {"description": REFUSALS[code], "content": content} for code in sorted(codes)}


def add_route(
    app: FastAPI,
    method: str,
    path: str,
    answer: Callable[..., Any],
    summary: str,
    *codes: int,
    name: str = "",
    body: Schema | None = None,
    responses: Responses | None = None,
    **options: Any,
) -> None:
    """Add a path. ``codes``: how it may be refused, besides by the guard. ``name``: by default that of ``answer``.

    ``body``: the description of a body. ``responses``: that of answers that are not JSON. ``options``: of FastAPI.
    """
    described = {"summary": summary, "operation_id": name or answer.__name__, "openapi_extra": body}
    all_responses = (responses or {}) | refusals(*GUARD, *codes)
    app.add_api_route(path, answer, methods=[method], responses=all_responses, **described, **options)


def described(app: FastAPI, schemas: Schema, tokens: bool) -> Schema:
    """The description of an app. ``schemas``: of the bodies of requests. ``tokens``: whether it asks for one."""
    if app.openapi_schema is None:
        schema: Schema = FastAPI.openapi(app)
        schema["components"]["schemas"] |= schemas_of(Refusal) | schemas
        if tokens:
            schema["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            schema["security"] = [{"token": []}]
        app.openapi_schema = schema
    return dict(app.openapi_schema)


def learn_body(limits: Limits, vectors: int | None) -> Schema:
    """A learning request: a form or JSON, JSON alone for ``vectors`` of so many numbers."""
    if vectors is not None:
        return named_body(LEARN[True])
    label = {"type": "string", "minLength": 1, "maxLength": limits.label}
    labels = _list(label, limits.batch, "The class of each image, in the same order.")
    return _body(_json(_reference(LEARN[False])) | _form({"image": _images(limits), "label": labels}))


def predict_body(limits: Limits, vectors: int | None) -> Schema:
    if vectors is not None:
        return named_body(PREDICT[True])
    return _body(_json(_reference(PREDICT[False])) | _form({"image": _images(limits)}))


def files_body(limits: Limits) -> Schema:
    """A form of images, without labels."""
    return _body(_form({"image": _images(limits)}))


def json_body(model: type[BaseModel]) -> Schema:
    """JSON that is read as a model."""
    return _body(_json(model.model_json_schema()))


def named_body(model: type[BaseModel]) -> Schema:
    """JSON that is read as a model which ``described`` has among its schemas."""
    return _body(_json(_reference(model)))


def label_body(model: type[BaseModel], limits: Limits) -> Schema:
    """JSON that is read as a model with a label."""
    schema: Schema = model.model_json_schema()
    schema["properties"]["label"]["anyOf"][0] |= {"maxLength": limits.label, "pattern": LABEL_PATTERN}
    return _body(_json(schema))


def schemas_of(*models: type[BaseModel]) -> Schema:
    """The schemas of these models and of their parts, by name."""
    found: Schema = {}
    for model in models:
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        found |= schema.pop("$defs", {})
        found[model.__name__] = schema
    return found


def request_schemas(limits: Limits, vectors: int | None) -> Schema:
    """The JSON requests with the limits of this service, for images or for ``vectors`` of so many numbers."""
    learn, predict = LEARN[vectors is not None], PREDICT[vectors is not None]
    found = schemas_of(learn, predict)
    inputs, sample = ("images", "LabelledImage") if vectors is None else ("vectors", "LabelledVector")
    asked = found[predict.__name__]["properties"][inputs]
    found[learn.__name__]["properties"]["samples"]["maxItems"] = asked["maxItems"] = limits.batch
    if vectors is not None:
        for vector in (asked["items"], found[sample]["properties"]["vector"]):
            vector |= {"minItems": vectors, "maxItems": vectors}
            vector["items"] |= {"minimum": -LARGEST, "maximum": LARGEST}
    found[sample]["properties"]["label"]["anyOf"][0] |= {
        "maxLength": limits.label,
        "pattern": LABEL_PATTERN,
        "description": (
            "Blanks around it are left out. Control characters, those that set the direction of text, and text "
            "without a visible character are refused. "
            "A label that reads like that of a known class means that class."
        ),
    }
    return found


def _body(content: Schema) -> Schema:
    return {"requestBody": {"required": True, "content": content}}


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


def _form(fields: Schema) -> Schema:
    form = {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
    encoding = {"image": {"contentType": "image/png, image/jpeg, image/webp, image/bmp, image/gif, image/tiff"}}
    return {"multipart/form-data": {"schema": form, "encoding": encoding}}


def _reference(model: type[BaseModel]) -> Schema:
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def _images(limits: Limits) -> Schema:
    image = {"type": "string", "format": "binary", "contentMediaType": "image/*"}
    return _list(image, limits.batch, "Image files.")


def _list(item: Schema, most: int, description: str) -> Schema:
    return {"type": "array", "minItems": 1, "maxItems": most, "items": item, "description": description}
