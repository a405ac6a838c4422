"""The processes of tests that are forked: see ``tests/forking.py``."""

import signal
from collections.abc import Callable

import pytest

from tests.forking import Forked

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="they are forked, as POSIX does")


def test_a_process_that_hangs_is_killed(fork_python: Callable[..., Forked]) -> None:
    """It and what it has started, which would keep its output open."""
    code = "import os, time; print('begun', flush=True); os.fork(); time.sleep(1000)"
    process = fork_python("-c", code)
    assert process.communicate(timeout=0.5) == ("begun\n", "")
    assert process.returncode == -signal.SIGKILL


def test_the_next_process_is_a_fresh_one(fork_python: Callable[..., Forked]) -> None:
    with fork_python("-c", "import sys; sys.marked = 1; print('first'); sys.exit(3)") as process:
        assert process.stdout.read() == "first\n"
    assert process.returncode == 3
    out, err = fork_python("-c", "import sys; print(hasattr(sys, 'marked')); sys.nothing").communicate()
    assert out == "False\n"
    assert "AttributeError" in err
