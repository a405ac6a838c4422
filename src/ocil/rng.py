"""Many independent random generators from one seed, each with a name."""

import torch
from torch import Tensor

from ocil.seeds import MAX_SEED, check_seed, derive

__all__ = ["MAX_SEED", "Rng", "check_seed", "derive"]


class Rng:
    """The generators of one learner, on its device, so that a step never needs random numbers from the host."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self.seed = seed
        self.device = device
        self.generators: dict[str, torch.Generator] = {}

    def __getitem__(self, name: str) -> torch.Generator:
        if name not in self.generators:
            self.generators[name] = torch.Generator(self.device).manual_seed(derive(self.seed, name))
        return self.generators[name]

    def state(self) -> dict[str, Tensor]:
        return {name: generator.get_state() for name, generator in self.generators.items()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        for name in self.generators.keys() - state.keys():  # not drawn from yet when the state was taken
            self.generators[name].manual_seed(derive(self.seed, name))
        for name, value in state.items():
            self[name].set_state(value)
