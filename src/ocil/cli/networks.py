"""``ocil networks``: what the setting ``network`` takes."""

from typing import Annotated

from ocil.cli import console
from ocil.cli.names import NETWORK
from ocil.cli.options import Json

MORE = {
    "timm:MODEL": ("images", "any model of timm, with its own input size and normalisation; needs the extra timm"),
    "module:PACKAGE.MODULE:FACTORY": ("any", "a function or class of your own that makes a torch module"),
}


def networks(name: Annotated[str | None, NETWORK] = None, /, *, as_json: Json = False) -> None:
    """List the networks, or every option of one with its default and meaning.

    A network is a setting: `--set network=resnet18`, with options `--set "network=mlp(hidden=512)"`. The settings
    `pretrained`, `freeze` and `optimizer` go with it, see docs/networks.md.

    Examples: `ocil networks`, `ocil networks resnet18`, `ocil networks timm:resnet50`

    Parameters
    ----------
    name
        A network whose options to show.
    """
    if name is not None:
        _print_options(name, as_json)
        return
    from ocil.networks import NETWORKS

    rows: list[tuple[str, str, str]] = [(info.name, info.inputs, info.summary) for info in NETWORKS.values()]
    rows += [(pattern, *facts) for pattern, facts in MORE.items()]
    if as_json:
        console.print_json({"networks": [dict(zip(("name", "inputs", "summary"), row, strict=True)) for row in rows]})
    else:
        console.print_table(("name", "takes", "what it is"), rows)


def _print_options(name: str, as_json: bool) -> None:
    from ocil.networks.registry import network, options_of
    from ocil.networks.spec import Spec

    options = [each._asdict() for each in options_of(network(Spec.parse(name, "network").name))]
    if as_json:
        console.print_json({"options": options})
        return
    rows = [(each["name"], repr(each["default"]), each["meaning"].replace("``", "")) for each in options]
    console.print_table(("option", "default", "meaning"), rows)
