"""The engines by name, as options and jobs have them. PyTorch is not loaded for them."""

from typing import Literal

Engine = Literal["local", "ray"]
