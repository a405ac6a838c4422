"""A part of a sweep, for machines that share a folder and nothing else: the jobs of a SLURM array, for example."""

import re
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from ocil.errors import OcilError

T = TypeVar("T")
MOST_PARTS = 100_000


class SweepPart(NamedTuple):
    """The ``number``-th of ``parts`` parts, from 1."""

    number: int
    parts: int

    @classmethod
    def parse(cls, text: str) -> "SweepPart":
        """Reads ``3/8``."""
        found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text.strip())
        if found is None:
            raise OcilError(f"--part {text}: write K/N, for example --part 3/8.")
        number, count = int(found[1]), int(found[2])
        if not 1 <= number <= count <= MOST_PARTS:
            raise OcilError(f"--part {text}: K must lie between 1 and N, and N must be at most {MOST_PARTS:,}.")
        return cls(number, count)

    def of(self, runs: Sequence[T]) -> list[T]:
        """Every ``parts``-th run. The seeds of a cell follow one another, so all parts take about the same time.

        It depends on the order of the runs alone, not on what is finished: all jobs divide them in the same way.
        """
        return list(runs[self.number - 1 :: self.parts])

    def __str__(self) -> str:
        return f"{self.number}/{self.parts}"
