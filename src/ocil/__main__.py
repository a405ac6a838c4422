"""The command ``ocil``, and ``python -m ocil``."""

import atexit
import gc
import os
import sys


def main() -> None:
    """Run the command line. Its modules are imported here, so that Ctrl-C during the import ends the command quietly,
    and so that worker processes, which import this module again, do without them."""
    _open_what_is_closed()
    atexit.register(gc.freeze)  # leaves out Python's last search for garbage: half a second once PyTorch is loaded
    try:
        from ocil.cli import main as run_command
    except KeyboardInterrupt:
        sys.exit(130)
    run_command()


def _open_what_is_closed() -> None:
    """Let nothing be read from, and what is printed be lost in, a standard stream that whoever started us has closed
    (``>&-``). The next file that is opened would take its number, and be written to with messages."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)  # worker processes have the same streams
    os.close(number)
    sys.stdin = sys.stdin or os.fdopen(0, encoding="utf-8")
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8")
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8")


if __name__ == "__main__":
    main()
