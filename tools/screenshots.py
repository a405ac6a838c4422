"""Take the pictures of the report and of the documentation that the docs show: a wide window, and a phone in the dark.

python tools/screenshots.py            # needs playwright, chromium, and site/ as `make docs` builds it
"""

import io
import shutil
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from ocil.report.collect import collect
from ocil.report.write import write

ROOT = Path(__file__).resolve().parent.parent
WIDE, PHONE = 1120, 390
TABS = 1300  # from this width on the site has its tabs
HEIGHT = 844
GAP, PAPER = 16, "#8a8f94"
COLOURS = 128  # of a picture's palette: enough for text and lines, and a third of the bytes


def shot(browser: Any, page: Path, width: int, scheme: str) -> Image.Image:
    context = browser.new_context(viewport={"width": width, "height": HEIGHT}, color_scheme=scheme)
    opened = context.new_page()
    opened.goto(page.resolve().as_uri())
    opened.evaluate("document.fonts.ready")
    picture = Image.open(io.BytesIO(opened.screenshot())).convert("RGB")
    context.close()
    return picture


def picture(browser: Any, wide: Path, phone: Path, out: Path, width: int = WIDE) -> None:
    """Both windows side by side."""
    left, right = shot(browser, wide, width, "light"), shot(browser, phone, PHONE, "dark")
    both = Image.new("RGB", (left.width + GAP + right.width, left.height), PAPER)
    both.paste(left, (0, 0))
    both.paste(right, (left.width + GAP, 0))
    both.quantize(COLOURS).save(out, optimize=True)
    print(f"{out.name}  {out.stat().st_size / 1000:.0f} kB")


def main() -> None:
    site = ROOT / "site"
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        report = write(collect([ROOT / "results"]), Path(folder)).page
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        picture(browser, report, report, ROOT / "docs/images/report.png")
        if (site / "index.html").exists():
            pages = site / "index.html", site / "concepts" / "setting.html"
            picture(browser, *pages, ROOT / "docs/images/site.png", TABS)
        else:
            print("No site/: `make docs` builds it.")
        browser.close()


if __name__ == "__main__":
    main()
