"""``ocil`` without arguments: what to do first."""

import ocil
from ocil.cli import console

STEPS = (
    ("ocil run afs --seeds 1", "one method on a small dataset that comes with ocil: about half a minute"),
    ("ocil compare fine-tune er afs", "three methods, a table and a picture: about 2 minutes"),
    ("ocil show runs", "who is ahead and by how much, of runs that are finished"),
    ("ocil learn photos --model birds", "learn from your own images, photos/CLASS/IMAGE.jpg, each one once"),
    ("ocil predict new.jpg --model birds", "what the model says to a new image"),
)
MORE = (
    ("ocil --help", "all commands"),
    ("ocil run --help", "one command, with examples"),
    ("ocil methods", "the methods; `ocil methods afs` explains the settings of one"),
    ("ocil doctor", "what is installed, which device is used, how fast it is"),
)


def start() -> int:
    """Print the first steps. The exit code is 0: nothing is wrong."""
    console.print_line(f"ocil {ocil.__version__}: learn to classify images from a stream that is seen once, while new")
    console.print_line("classes keep arriving.")
    for title, lines in (("First steps; nothing needs to be downloaded:", STEPS), ("To find out more:", MORE)):
        console.print_line("")
        console.print_line(title)
        console.print_pairs(lines)
    return 0
