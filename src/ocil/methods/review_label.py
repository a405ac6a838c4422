"""How tables, result folders and the command line name a method with or without the review trick."""

from typing import NamedTuple

WITH_REVIEW, WITHOUT_REVIEW = "-rv", "-no-rv"


class Label(NamedTuple):
    """``er-rv`` is ER with the review trick, ``afs-no-rv`` AFS without it, ``er`` ER as it is defined.

    >>> Label.parse("er-rv")
    Label(method='er', review=True)
    >>> str(Label("afs", review=False))
    'afs-no-rv'
    """

    method: str
    review: bool | None = None
    """None: as the method is defined."""

    @classmethod
    def parse(cls, text: str) -> "Label":
        """Read a label. This does not check whether there is such a method."""
        for ending, review in ((WITHOUT_REVIEW, False), (WITH_REVIEW, True)):
            if text.endswith(ending):
                return cls(text.removesuffix(ending), review)
        return cls(text)

    def __str__(self) -> str:
        return self.method + {None: "", True: WITH_REVIEW, False: WITHOUT_REVIEW}[self.review]
