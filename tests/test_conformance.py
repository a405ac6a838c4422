"""Every method and network of the registry keeps what ``ocil.testing`` expects of it."""

from typing import Any

import pytest

import ocil
import ocil.kernels.convolution
from ocil.methods import METHODS
from ocil.networks import NETWORKS
from ocil.testing import Check, method_checks, network_checks
from tests.networks_to_try import TINY
from tests.test_methods import DISTINCT

pytestmark = pytest.mark.usefixtures("quick_convolution")

SETTINGS: dict[str, dict[str, Any]] = {
    # Views of tiny images leave some processors' rounding to decide whether classes are learned.
    "dvc": {"crop": 1.0, "flip": 0.0, "jitter": 0.0, "gray": 0.0},
    "ocm": {"crop": 1.0, "gray": 0.0, "lr": 0.05, "width": 2},
    "er-ace": {"pad": 0},  # of 8 pixels, a shift by 4 leaves too little
    "derpp": {"pad": 0},
    "ccl-dc": {
        "crop": 1.0,
        "flip": 0.0,
        "jitter": 0.0,
        "gray": 0.0,
        "chain_crop": 1.0,
        "operations": 1,
        "magnitude": 2.0,
    },
    "mkd": {"crop": 1.0, "flip": 0.0, "jitter": 0.0, "gray": 0.0, "alpha": 0.2},  # a teacher for few steps
    "mose": {"crop": 1.0, "gray": 0.0, "current_batch": 3},
    "gsa": {"crop": 1.0, "gray": 0.0, "current_batch": 3},
    "rar": {"repeats": 2, "magnitude": 2.0},  # on 8 pixels the published strength leaves little
    "ranpac": {"projection": 60},
    "gdumb": {"rehearsal_epochs": 10},
}


def cases(name: str, checks: "list[Check[Any]]") -> list[Any]:
    marks = {True: [pytest.mark.slow], False: []}
    return [pytest.param(check, id=f"{name}-{check}", marks=marks[check.slow]) for check in checks]


# Where the network's layers matter. A network's own steady passes are a check of that network.
ON_A_RESNET = ("every-weight-learns", "failed-scores", "passes-of-a-step")
STEADY_ON_A_RESNET = ("gss", "mose", "er")  # the two that look into layers, and one of those that call the network


def checks_of(name: str) -> "list[Check[Any]]":
    """With a network of two layers, where that is enough."""
    settings = SETTINGS.get(name, {})
    quick = method_checks(name, **{"network": TINY} | settings)
    usual = {str(check): check for check in method_checks(name, **settings)}
    resnet = ON_A_RESNET + (("steady-steps",) if name in STEADY_ON_A_RESNET else ())
    assert [str(check) for check in quick] == [*usual]
    return [usual[str(check)] if str(check) in resnet else check for check in quick]


METHOD_CASES = [case for name in DISTINCT for case in cases(name, checks_of(name))]
NETWORK_CASES = [
    case
    for name, info in NETWORKS.items()
    for case in cases(name, network_checks(name, (8, 8, 3) if info.inputs == "images" else None))
]


@pytest.mark.parametrize("check", METHOD_CASES)
def test_method(check: "Check[Any]") -> None:
    check()


@pytest.mark.parametrize("check", NETWORK_CASES)
def test_network(check: "Check[Any]") -> None:
    check()


@pytest.mark.slow
def test_steps_with_our_own_convolution_are_steady(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ocil.kernels.convolution, "SLOW_BACKWARD", True)
    (check,) = [check for check in method_checks("er") if str(check) == "steady-steps"]
    check()


def test_no_method_is_missed() -> None:
    assert {METHODS[name].target for name in DISTINCT} == {info.target for info in METHODS.values()}
    assert len(method_checks("er")) > 20
    assert len(network_checks("mlp")) > 10
