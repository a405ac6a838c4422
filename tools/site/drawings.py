"""Draw the pictures of docs/concepts/ as SVG files.

python tools/site/drawings.py
"""

from pathlib import Path

IMAGES = Path(__file__).parents[2] / "docs" / "images"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")
GREY = "#667"


def picture(name: str, width: int, height: int, *parts: str) -> None:
    """Write an SVG with a white card behind it, so that it reads on a dark page too."""
    box_of_view = f'viewBox="0 0 {width} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box_of_view} font-family="sans-serif" font-size="14">'
    marker = (
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0L10 5L0 10z" fill="{GREY}"/></marker></defs>'
    )
    card = f'<rect width="{width}" height="{height}" rx="8" fill="#fff"/>'
    (IMAGES / f"{name}.svg").write_text("\n".join((head, marker, card, *parts, "</svg>")) + "\n")


def box(x: float, y: float, width: float, height: float, fill: str, stroke: str = "none", opacity: float = 1) -> str:
    place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
    return f'<rect {place} rx="3" fill="{fill}" stroke="{stroke}" opacity="{opacity:g}"/>'


def text(x: float, y: float, words: str, anchor: str = "middle", size: int = 14, colour: str = "#223") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}" fill="{colour}">{words}</text>'


def arrow(*points: tuple[float, float]) -> str:
    path = " ".join(f"{x:g},{y:g}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{GREY}" stroke-width="1.5" marker-end="url(#tip)"/>'


def setting() -> None:
    """Tasks above, the learner below, tests at the ends of tasks."""
    parts = []
    for task, colour in enumerate(COLOURS):
        left = 20 + 146 * task
        parts.append(text(left, 28, f"task {task + 1}", "start"))
        for number in range(12):
            shade = 1 if (number * 7 + task) % 3 else 0.45
            parts.append(box(left + 11 * number, 40, 9, 28, colour, opacity=shade))
    parts += [
        arrow((20, 84), (748, 84)),
        text(748, 104, "each task brings two new classes; each batch is seen once", "end", 13, GREY),
    ]
    parts += [arrow((166, 72), (166, 138)), text(176, 124, "a batch of 10 images", "start", 13)]
    parts += [
        box(60, 142, 250, 56, "#eef4fa", COLOURS[0]),
        text(185, 166, "network, one head"),
        text(185, 186, "learn(x, y)", size=13, colour=GREY),
    ]
    parts += [
        box(420, 142, 190, 56, "#fdf3e7", COLOURS[4]),
        text(515, 166, "memory, fixed size"),
        text(515, 186, "some images of all classes", size=13, colour=GREY),
    ]
    parts += [arrow((314, 162), (414, 162)), text(364, 156, "store", size=12, colour=GREY)]
    parts += [arrow((416, 182), (316, 182)), text(364, 196, "replay", size=12, colour=GREY)]
    parts += [
        arrow((185, 202), (185, 238)),
        text(195, 226, "after each task: tested on all classes so far", "start", 13),
    ]
    for task, colour in enumerate(COLOURS):
        for seen in range(task + 1):
            parts.append(box(60 + 146 * task + 20 * seen, 246, 16, 16, COLOURS[seen]))
        parts.append(text(60 + 146 * task, 280, f"after task {task + 1}", "start", 12, colour))
    picture("concept-setting", 770, 292, *parts)


def review() -> None:
    """How often each class is seen, while a task is learned and in a review."""
    parts = [text(185, 26, "while task 5 is learned"), text(560, 26, "in a review")]
    for left, heights in ((40, (16, 16, 16, 16, 132)), (415, (74, 74, 74, 74, 74))):
        for task, (height, colour) in enumerate(zip(heights, COLOURS, strict=True)):
            parts.append(box(left + 60 * task, 190 - height, 44, height, colour))
            parts.append(text(left + 60 * task + 22, 208, f"task {task + 1}", size=12, colour=GREY))
        parts.append(f'<line x1="{left - 8}" y1="190" x2="{left + 292}" y2="190" stroke="{GREY}"/>')
    parts += [
        text(185, 236, "images per class in a step: the newest lead", size=13),
        text(560, 236, "all classes alike, a tenth of the learning rate", size=13),
    ]
    parts.append(arrow((345, 110), (400, 110)))
    picture("concept-review", 740, 252, *parts)


def growing() -> None:
    """A head whose room doubles."""
    parts = []
    stages = ((30, 4, 3, "three classes met, room for four"), (330, 8, 5, "the fifth class: room for eight"))
    for left, room, met, words in stages:
        parts.append(text(left, 26, words, "start"))
        for row in range(room):
            known = row < met
            fill = COLOURS[row % 5] if known else "#eee"
            parts.append(box(left, 40 + 26 * row, 150, 20, fill, "none" if known else "#bbb"))
            note = f"class {row + 1}" if known else "not met: -10,000"
            parts.append(text(left + 160, 55 + 26 * row, note, "start", 13, "#223" if known else GREY))
    parts.append(arrow((278, 90), (320, 90)))
    parts.append(text(30, 200, "one row of weights per class", "start", 13, GREY))
    picture("concept-growing", 640, 262, *parts)


def anytime() -> None:
    """A sawtooth: accuracy between reviews."""
    points, peaks, x = [], [], 60.0
    for task in range(5):
        top = 60 + 22 * task
        low = top + 78
        points += [(x, low - 14), (x + 16, low), (x + 60, low - 22), (x + 118, low - 30), (x + 122, top)]
        peaks.append((x + 122, top))
        x += 126
    line = " ".join(f"{a:g},{b:g}" for a, b in points)
    parts = [
        f'<line x1="50" y1="250" x2="720" y2="250" stroke="{GREY}"/>',
        f'<line x1="50" y1="250" x2="50" y2="30" stroke="{GREY}"/>',
        text(50, 20, "accuracy on the classes so far", "start", 13, GREY),
        text(720, 284, "stream batches", "end", 13, GREY),
        f'<polyline points="{line}" fill="none" stroke="{COLOURS[0]}" stroke-width="2.5"/>',
    ]
    for number, (a, b) in enumerate(peaks):
        parts.append(f'<line x1="{a}" y1="{b}" x2="{a}" y2="250" stroke="#ccc" stroke-dasharray="4 4"/>')
        parts.append(f'<circle cx="{a}" cy="{b}" r="5" fill="{COLOURS[1]}"/>')
        parts.append(text(a, 266, f"review {number + 1}", size=12, colour=GREY))
    parts.append(text(peaks[0][0] + 12, peaks[0][1] - 4, "what a table shows", "start", 13, COLOURS[1]))
    parts.append(text(270, 215, "what a user meets", "start", 13, COLOURS[0]))
    picture("concept-anytime", 740, 294, *parts)


if __name__ == "__main__":
    for draw in (setting, review, growing, anytime):
        draw()
