"""Models of timm (PyTorch Image Models) as networks: ``timm:NAME``. Needs the extra ``timm``."""

from typing import Any

from torch import nn

from ocil.errors import OcilError, optional, suggest
from ocil.networks.inputs import InputShape
from ocil.networks.registry import Factory


def make(name: str) -> Factory:
    """The factory of a model by its name in timm."""
    with optional(f"network = timm:{name} needs timm", "timm", "timm", "torchvision"):
        import timm

    if not timm.is_model(name):
        close = suggest(name, timm.list_models())
        raise OcilError(f"timm has no model '{name}'.{close.split(' Known:')[0]} timm.list_models() lists them.")

    def factory(input_shape: InputShape, **options: Any) -> nn.Module:
        model: Any = timm.create_model(name, **{"pretrained": False, **options, "num_classes": 0})
        record = timm.data.resolve_model_data_config(model)
        channels, *sides = record["input_size"]
        model.input_size, model.in_channels = tuple(sides), channels
        model.mean, model.std = tuple(record["mean"]), tuple(record["std"])
        model.interpolation = record["interpolation"] if record["interpolation"] == "bicubic" else "bilinear"
        made: nn.Module = model
        return made

    return factory
