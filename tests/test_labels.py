import pytest

from ocil.methods import METHODS
from ocil.methods.review_label import Label


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("er", Label("er")),
        ("er-rv", Label("er", True)),
        ("er-ace-rv", Label("er-ace", True)),
        ("afs-no-rv", Label("afs", False)),
        ("mine-rvx", Label("mine-rvx")),
    ],
)
def test_a_label_is_read_and_written(text: str, label: Label) -> None:
    assert Label.parse(text) == label
    assert str(label) == text


@pytest.mark.parametrize("review", [None, True, False])
def test_every_method_can_be_named_with_and_without_review(review: bool | None) -> None:
    for name in METHODS:
        assert Label.parse(str(Label(name, review))) == Label(name, review)
