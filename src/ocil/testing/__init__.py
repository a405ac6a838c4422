"""Checks of what ocil expects from a method or a network. Run them on your own.

In one call, which raises if something is wrong and names every promise that is not kept:

    ocil.testing.check_method(Mine)
    ocil.testing.check_network("module:my_package.networks:tiny")

Or one by one, for example as parameters of a test, so that a report has a line for each:

    @pytest.mark.parametrize("check", ocil.testing.method_checks(Mine), ids=str)
    def test_mine(check):
        check()

Nothing here imports pytest.

``methods``   all checks of a method: ``method_steps``, ``method_state``
``networks``  all checks of a network
``contract``  what a check is; ``subject``: a method to try it on, ``watch``: what a step does that a GPU would wait for

Examples:
    >>> checks = ocil.testing.method_checks("er")
    >>> checks[0]()
"""

from ocil.testing.contract import Check, ContractError
from ocil.testing.methods import check_method, method_checks
from ocil.testing.networks import check_network, network_checks

__all__ = ["Check", "ContractError", "check_method", "check_network", "method_checks", "network_checks"]
