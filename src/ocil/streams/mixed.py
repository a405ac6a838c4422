"""All classes mixed, once or many times: the upper bound, and the stream that an offline method sees."""

from ocil.streams.material import Material, batch_bounds
from ocil.streams.order import Order


def mixed(material: Material) -> Order:
    """The learner is evaluated once, at the end."""
    config, count = material.config, len(material.samples)
    epochs = [material.samples[material.rng.permutation(count)] for _ in range(config.epochs)]
    batches, _ = batch_bounds([count] * config.epochs, config.batch_size, config.drop_last)
    return material.order(epochs, material.groups(), [len(batches) - 1])
