"""The command line. Thin: it parses, calls and prints; a command imports what it needs when it runs."""

import os
import sys
from itertools import pairwise

from cyclopts import App, CycloptsError

import ocil
from ocil.cli import bench, common, data, learn, longtail, report, runs, serve, sweep, tune
from ocil.errors import OcilError

app = App(
    name="ocil",
    version=ocil.__version__,
    help="""Online class-incremental learning: methods, benchmark, command line.

Try `ocil run afs`, which learns ten kinds of clothing two at a time, then `ocil methods`, `ocil datasets`.
""",
)
app.command(runs.run)
app.command(runs.compare)
app.command(sweep.sweep)
app.command(tune.tune)
app.command(report.report)
app.command(report.show)
app.command(runs.methods)
app.command(bench.bench)
app.command(data.list_datasets, name="datasets")
app.command(data.app)
app.command(longtail.app)
app.command(learn.learn)
app.command(learn.predict)
app.command(learn.export)
app.command(serve.serve)


def main(arguments: list[str] | None = None) -> None:
    """Exit codes: 0 done, 1 some run failed, 2 a mistake to mend, 130 stopped by Ctrl-C or SIGTERM."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        _refuse_empty(arguments)
        code = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        _fail(f"{error} See --help.")
    except OcilError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output, `head` say, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        if error.filename is None:  # no place of the user's: no memory for a process, say
            raise
        # A place that cannot be read or written: a name too long, a loop of links, no permission.
        _fail(f"{error.filename}: {error.strerror or error}. Choose another place.")
    sys.exit(code if isinstance(code, int) else 0)


def _refuse_empty(arguments: list[str]) -> None:
    """An empty word is a variable that was not set: as a path it would stand for the folder we are in."""
    for before, word in pairwise(["", *arguments]):
        if not word.strip():
            raise OcilError(f"{before if before.startswith('-') else 'an argument'} is empty: give it a value.")
        option, equals, value = word.partition("=")
        if option.startswith("--") and equals and not value.strip():
            raise OcilError(f"{option} is empty: give it a value.")


def _fail(message: str) -> None:
    common.say_error(message)
    sys.exit(2)
