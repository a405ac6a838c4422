"""``ocil completion``: the shell completes commands, options and names."""

from pathlib import Path
from typing import Annotated, Literal

from ocil.cli import console
from ocil.cli.options import FLAG

Shell = Literal["bash", "zsh", "fish"]
# What cyclopts writes for zsh defines a function, which zsh calls if the file in its path has the function's name.
# These lines register it where the script is evaluated, and call it in a file of the usual name.
ZSH_END = """\
if [[ ${funcstack[1]} == _ocil ]]; then
  _cyclopts_ocil "$@"
elif (( $+functions[compdef] )); then
  compdef _cyclopts_ocil ocil
fi"""


def completion(shell: Shell, /, *, install: Annotated[bool, FLAG] = False) -> None:
    """Print a script with which the shell completes commands, options, methods, datasets and experiments.

    Examples:

    * `eval "$(ocil completion bash)"` completes in this shell, until it is closed. zsh does it the same way.
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
        script = app.generate_completion(prog_name="ocil", shell=shell).rstrip()
        print(f"{script}\n{ZSH_END}" if shell == "zsh" else script)  # our own text: nothing to escape
        return
    path: Path = app.install_completion(shell=shell)
    unless = ", if your .zshrc calls compinit" if shell == "zsh" else ""
    console.print_line(f"Written: {path}. A new {shell} completes ocil{unless}.")
