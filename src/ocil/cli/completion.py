"""``ocil completion``: the shell completes commands, options and names."""

from pathlib import Path
from typing import Annotated, Literal

from ocil.cli import console
from ocil.cli.options import FLAG

Shell = Literal["bash", "zsh", "fish"]


def completion(shell: Shell, /, *, install: Annotated[bool, FLAG] = False) -> None:
    """Print a script with which the shell completes commands, options, methods, datasets and experiments.

    Examples:

    * `eval "$(ocil completion bash)"` completes in this shell, until it is closed.
    * `ocil completion zsh --install` completes in every new shell.
    * `ocil completion fish > ~/.config/fish/completions/ocil.fish` writes the file yourself.

    Parameters
    ----------
    shell
        The shell that you type in.
    install
        Write the script to the shell's folder for completions, and for bash and zsh a line into .bashrc or .zshrc.
    """
    from ocil.cli import app

    if not install:
        print(app.generate_completion(prog_name="ocil", shell=shell))  # our own text: nothing to escape
        return
    path: Path = app.install_completion(shell=shell)
    console.print_line(f"Written: {path}. A new {shell} completes ocil.")
