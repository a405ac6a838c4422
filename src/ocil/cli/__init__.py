"""The command line: it parses, calls and prints. Commands import what they need when they run, so help is quick.

A command, or a few that belong together, has a file of its name. Several of them share:

``options``   options, and groups of options
``names``     names that the shell completes
``console``   standard output and standard error
``execute``   carries out runs; ``progress``: shows how far they are
``features``  computes features before the first run
``dry_run``   what a sweep would do
"""

import errno
import os
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from cyclopts import (
    App,
    CycloptsError,
    Group,
    MissingArgumentError,
    Parameter,
    UnknownOptionError,
    UnusedCliTokensError,
)

import ocil
from ocil import plugins
from ocil.cli import (
    bench,
    completion,
    console,
    data,
    doctor,
    learn,
    longtail,
    methods,
    networks,
    predict,
    report,
    run,
    serve,
    start,
    stream,
    sweep,
    tune,
)
from ocil.cli.options import setting_names
from ocil.errors import OcilError

app = App(
    name="ocil",
    version=ocil.__version__,
    help="""Online class-incremental learning: methods, benchmark, command line.

Images arrive in a stream that is seen once, and new classes keep arriving. Try `ocil run afs --seeds 1`, which learns
ten kinds of clothing two at a time. `ocil` alone shows more first steps, and `ocil COMMAND --help` has examples.
""",
)
COMMANDS: tuple[tuple[Any, ...], ...] = (
    (
        "Compare methods",
        ("run", run.run),
        ("compare", run.compare),
        ("sweep", sweep.sweep),
        ("tune", tune.tune),
        ("show", report.show),
        ("report", report.report),
    ),
    (
        "Learn from your own stream",
        ("learn", learn.learn),
        ("predict", predict.predict),
        ("export", predict.export),
        ("serve", serve.serve),
        ("token", serve.token),
    ),
    (
        "Look up",
        ("methods", methods.methods),
        ("networks", networks.networks),
        ("datasets", data.list_datasets),
        ("data", data.app),
        ("stream", stream.app),
    ),
    (
        "This machine",
        ("doctor", doctor.doctor),
        ("bench", bench.bench),
        ("completion", completion.completion),
    ),
    ("Another study", ("longtail", longtail.app)),
)
"""The groups of the help page, with the commands in the order in which they are shown."""
for _number, (_title, *_commands) in enumerate(COMMANDS):
    _group = Group(_title, sort_key=_number)
    for _place, (_name, _call) in enumerate(_commands):
        app.command(_call, **({} if isinstance(_call, App) else {"name": _name}))
        app[_name].group, app[_name].sort_key = (_group,), _place
app["--help"].group = app["--version"].group = (Group("Options", sort_key=len(COMMANDS)),)
OUTPUT_IS_LOST = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EFBIG)
"""Standard output goes into a file that cannot grow. What could not be written to other files has been reported with
their names. A broken disk (EIO) is not among these: it may be that of a file that is read."""
app.meta.end_of_options_delimiter = ""  # a command sees `--` itself


@app.meta.default
def command(
    *words: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    plugin: Annotated[
        tuple[Path, ...],
        Parameter(negative=(), show_default=False, group=Group("Options of all commands", sort_key=99)),
    ] = (),
) -> Any:
    """Carry out a command with the options that all commands share.

    Parameters
    ----------
    plugin
        A Python file with methods, networks, datasets or measures of your own. May be repeated; $OCIL_PLUGINS names
        more.
    """
    for path in plugin:
        plugins.load_or_warn(path)
    if not words:
        return start.start()
    return app(words, exit_on_error=False, print_error=False, result_action="return_value")


def main(arguments: list[str] | None = None) -> None:
    """Run a command and exit: 0 done, 1 a run failed, 2 an error to correct, 130 stopped by Ctrl-C or SIGTERM."""
    arguments = sys.argv[1:] if arguments is None else arguments
    console.accept_all_text()
    try:
        if arguments[:1] != ["__complete"]:  # a shell asks for completions, also of an empty word
            _refuse_empty(arguments)
        code = app.meta(arguments, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except UnusedCliTokensError as error:
        _fail(_too_many(error.unused_tokens or [], tuple(error.command_chain or ())))
    except MissingArgumentError as error:
        _fail(_too_few(error))
    except UnknownOptionError as error:
        _fail(_unknown_option(error))
    except CycloptsError as error:
        _fail(f"{error} See: {_command(error.command_chain)} --help")
    except OcilError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output, for example `head`, has gone
        _discard_output()
        sys.exit(1)
    except OSError as error:
        if error.filename is None and error.errno in OUTPUT_IS_LOST:
            _discard_output()
            _fail(f"what the command prints cannot be written: {error.strerror}.")
        if error.filename is None:  # not about a file of the user: no memory for a process, for example
            raise
        # A place that cannot be read or written: a name too long, a loop of links, no permission.
        _fail(f"{error.filename}: {error.strerror or error}. Choose another place.")
    sys.exit(code if isinstance(code, int) else 0)


def _discard_output() -> None:
    """Python tries again at its end to write what is left."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _command(chain: Sequence[str] | None) -> str:
    return " ".join(("ocil", *(chain or ())))


def _too_many(words: list[str], chain: tuple[str, ...]) -> str:
    """The message for words that a command has no place for, with what they were probably meant to be."""
    command, first = _command(chain), words[0]
    message = f"'{first}' is one word too many for {command}."
    if "=" in first and _takes_settings(chain):
        return f"{message} A setting comes after --set: --set {' '.join(words)}"
    if chain[-1:] == ("run",):
        return f"{message} It takes one name; for several there is {command.removesuffix('run')}compare."
    return f"{message} See: {command} --help"


def _takes_settings(chain: Sequence[str]) -> bool:
    """Whether the command has the option --set."""
    called = app
    for name in chain:
        called = called[name]
    return any("--set" in argument.names for argument in called.assemble_argument_collection())


def _unknown_option(error: UnknownOptionError) -> str:
    """The message for an option that there is not. Other libraries have settings, such as --lr, as options."""
    chain = tuple(error.command_chain or ())
    option, _, _ = (error.token.keyword or error.token.value).partition("=")
    name = option.removeprefix("--").replace("-", "_")
    if _takes_settings(chain) and name in setting_names(long_tails=chain[0] == "longtail"):
        return f"{option} is no option but a setting: write --set {name}=VALUE"
    return f"{error} See: {_command(chain)} --help"


def _too_few(error: MissingArgumentError) -> str:
    """The message for a command that lacks something, or for an option that lacks its value."""
    command, argument = _command(error.command_chain), error.argument
    if error.keyword is not None:
        return f"{error.keyword} needs a value. See: {command} --help"
    name = "" if argument is None else argument.names[0]
    if argument is not None and argument.index is not None:  # it may come without its name
        name = name.removeprefix("--").upper()
    elif name:
        name = f"the option {name}"
    return f"{command} needs {name or 'one word more'}. See: {command} --help"


def _refuse_empty(arguments: list[str]) -> None:
    """Raise if a word is empty. It comes from a shell variable that is not set; as a path it would be this folder."""
    for before, word in pairwise(["", *arguments]):
        if not word.strip():
            raise OcilError(f"{before if before.startswith('-') else 'an argument'} is empty: give it a value.")
        option, equals, value = word.partition("=")
        if option.startswith("--") and equals and not value.strip():
            raise OcilError(f"{option} is empty: give it a value.")


def _fail(message: str) -> None:
    console.error(message)
    sys.exit(2)
