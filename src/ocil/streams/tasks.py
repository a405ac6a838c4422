"""Clear tasks: the classes of one task, mixed, and then those of the next (the usual class-incremental stream)."""

from ocil.streams.material import Material
from ocil.streams.order import Order


def clear(material: Material) -> Order:
    groups = material.groups()
    return material.order([material.of_group(group) for group in groups], groups)
