"""Models of timm (PyTorch Image Models) as networks: ``timm:NAME``. Needs the extra ``timm``."""

from typing import Any

from torch import nn

from ocil.errors import OcilError, optional, suggest
from ocil.networks.base import Factory
from ocil.networks.inputs import InputShape

TAKEN = {
    "own_weights": "use the setting pretrained = own",
    "pretrained": "use the setting pretrained = own",
    "checkpoint_path": "use the setting pretrained = FILE",
    "pretrained_cfg": "use the setting pretrained = FILE",
    "pretrained_cfg_overlay": "use the setting pretrained = FILE",
    "num_classes": "ocil puts its own head behind the features",
    "in_chans": "gray images become three equal channels",
}
"""Options of ``timm.create_model`` that ocil gives, and what to use in their place."""


def make(name: str) -> Factory:
    """The factory of a model by its name in timm."""
    timm = _imported(name)
    if not timm.is_model(name):
        close = suggest(name, timm.list_models())
        raise OcilError(f"timm has no model '{name}'.{close.split(' Known:')[0]} timm.list_models() lists them.")

    def factory(input_shape: InputShape, /, own_weights: bool = False, **options: Any) -> nn.Module:
        """``own_weights``: whether timm loads the weights that it offers, from its cache or by a download."""
        for option in (option for option in options if option in TAKEN):
            raise OcilError(f"network = timm:{name} cannot have the option {option}: {TAKEN[option]}.")
        model: Any = timm.create_model(name, pretrained=own_weights, num_classes=0, **options)
        record = timm.data.resolve_model_data_config(model)
        channels, *sides = record["input_size"]
        model.input_size, model.in_channels = options.get("img_size", tuple(sides)), channels
        model.mean, model.std = tuple(record["mean"]), tuple(record["std"])
        model.interpolation = record["interpolation"] if record["interpolation"] == "bicubic" else "bilinear"
        made: nn.Module = model
        return made

    return factory


def _imported(name: str) -> Any:
    with optional(f"network = timm:{name} needs timm", "timm", "timm", "torchvision"):
        try:
            import timm
        except RuntimeError as error:
            if "torchvision::" not in str(error):
                raise
            raise OcilError(
                f"network = timm:{name} needs a torchvision that fits PyTorch, and this one does not ({error}): "
                "install both from the same place, as pytorch.org says."
            ) from None
    return timm
