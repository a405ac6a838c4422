"""Run the notebooks of docs/notebooks/ from top to bottom, and keep what their cells print and draw.

python tools/site/notebooks.py [NAME ...]

A few lines in place of Jupyter: a cell is Python, its last expression is shown, and so are open figures. Magic
commands do not work.
"""

import ast
import base64
import contextlib
import io
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "notebooks"


def run_cell(source: str, names: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """Execute a cell and return its outputs in the notebook format."""
    import matplotlib.pyplot as plt

    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, outputs = io.StringIO(), []
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"cell {number}", "exec"), names)
        value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names) if last else None
    if printed.getvalue():
        outputs.append(
            {"output_type": "stream", "name": "stdout", "text": printed.getvalue().splitlines(keepends=True)}
        )
    if value is not None and not plt.get_fignums():
        outputs.append(
            {"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": forms(value)}
        )
    figures = [plt.figure(number) for number in plt.get_fignums()]
    outputs += [{"output_type": "display_data", "metadata": {}, "data": forms(figure)} for figure in figures]
    plt.close("all")
    return outputs


def forms(value: Any) -> dict[str, Any]:
    """A value as text, and as a picture or a table where it can be shown so."""
    data: dict[str, Any] = {"text/plain": [type(value).__name__ if hasattr(value, "savefig") else repr(value)]}
    if hasattr(value, "savefig"):
        buffer = io.BytesIO()
        value.savefig(buffer, format="png", dpi=80, metadata={"Software": None})
        data["image/png"] = base64.b64encode(buffer.getvalue()).decode()
    elif hasattr(value, "_repr_html_"):
        data["text/plain"] = str(value).splitlines(keepends=True)
        data["text/html"] = value._repr_html_().splitlines(keepends=True)
    return data


def run(notebook: dict[str, Any]) -> dict[str, Any]:
    """Run all code cells, in a new folder, and return the notebook with their outputs."""
    import matplotlib as mpl

    mpl.use("agg")
    names: dict[str, Any] = {"__name__": "notebook"}
    home, number = Path.cwd(), 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for cell in notebook["cells"]:
                if cell["cell_type"] == "code":
                    number += 1
                    cell["execution_count"] = number
                    cell["outputs"] = run_cell("".join(cell["source"]), names, number)
        finally:
            os.chdir(home)
    return notebook


def main() -> None:
    for path in sorted(FOLDER.glob("*.ipynb")):
        if len(sys.argv) == 1 or path.stem in sys.argv[1:]:
            start = time.process_time()
            notebook = run(json.loads(path.read_text()))
            path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
            print(f"{path.stem}: {time.process_time() - start:.1f} s")


if __name__ == "__main__":
    main()
