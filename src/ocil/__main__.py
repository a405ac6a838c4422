"""The command ``ocil``, and ``python -m ocil``."""

import atexit
import gc
import sys


def main() -> None:
    """Run the command line. Its modules are imported here, so that Ctrl-C during the import ends the command quietly,
    and so that worker processes, which import this module again, do without them."""
    atexit.register(gc.freeze)  # leaves out Python's last search for garbage: half a second once PyTorch is loaded
    try:
        from ocil.cli import main as run_command
    except KeyboardInterrupt:
        sys.exit(130)
    run_command()


if __name__ == "__main__":
    main()
