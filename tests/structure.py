"""The structure of the code as its imports say it. `python -m tests.structure` draws the picture of
it.

A room is a folder of `paradnn`, or one of the other packages; the files at the top of `paradnn`,
which `python -m` runs, are the room of the commands. A room stands one floor above the highest of
those it imports. The picture in docs/explanation/architecture.md shows every room with the first sentence of
its docstring, and the arrows that no longer way round replaces.
"""

import ast
import html
import textwrap
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "images" / "architecture.svg"
#: The room of the files at the top of `paradnn`.
COMMANDS = "commands"
PACKAGES = ("paradnn", "analysis", "hydra_plugins", "benchmarks")
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
}

Arrows = dict[str, set[str]]
WIDTH = 1500
BOX = 78
GAP = 16
ROW = 128
MARGIN = 24


@cache
def tree(path: Path) -> ast.Module:
    """A file's syntax tree."""
    return ast.parse(path.read_text())


@cache
def imports_of(path: Path) -> set[str]:
    """Dotted names of every import in a file, those inside functions too; not those that a type
    checker alone makes.
    """
    names: set[str] = set()
    typed = [
        node
        for node in ast.walk(tree(path))
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    unmade = {part for node in typed for statement in node.body for part in ast.walk(statement)}
    for node in ast.walk(tree(path)):
        if node in unmade:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return names


def room_of(module: str) -> str | None:
    """The room of a module; None outside the house, and for `paradnn` itself and its dispatcher of
    commands.
    """
    head, _, rest = module.partition(".")
    if head != "paradnn":
        return head if head in PACKAGES else None
    room = rest.partition(".")[0]
    if f"paradnn.{room}" not in MODULES or room == "__main__":
        return None
    return room if (ROOT / "paradnn" / room).is_dir() else COMMANDS


def arrows() -> Arrows:
    """Every room with the rooms it imports."""
    found: Arrows = {room: set() for name in MODULES if (room := room_of(name))}
    for name, path in MODULES.items():
        room = room_of(name)
        if room:
            found[room] |= {
                other for imported in imports_of(path) if (other := room_of(imported))
            } - {room}
    return found


def floors(house: Arrows) -> dict[str, int]:
    """The floor of every room, from 1; RecursionError for a circle."""
    known: dict[str, int] = {}

    def floor(room: str) -> int:
        if room not in known:
            known[room] = 1 + max((floor(other) for other in house[room]), default=0)
        return known[room]

    return {room: floor(room) for room in house}


def captions() -> dict[str, str]:
    """The first sentence of every room's docstring."""
    files = {room: MODULES.get(f"paradnn.{room}") or MODULES.get(room) for room in arrows()}
    texts = {room: ast.get_docstring(tree(path)) or "" for room, path in files.items() if path}
    # A namespace package has no docstring.
    texts[COMMANDS] = (
        f"{', '.join(sorted(name[8:] for name in MODULES if room_of(name) == COMMANDS and name[8:]))}"
    )
    texts["hydra_plugins"] = "What Hydra finds by itself: the sweeper that plans."
    return {
        room: " ".join(text.split("\n\n")[0].split()).partition(". ")[0].rstrip(".")
        for room, text in texts.items()
    }


def needed(house: Arrows) -> set[tuple[str, str]]:
    """The arrows that remain when each that a longer way replaces is left out."""

    def reach(room: str) -> set[str]:
        return {room}.union(*(reach(other) for other in house[room]))

    return {
        (room, other)
        for room, others in house.items()
        for other in others
        if not any(other in reach(between) for between in others - {other})
    }


def places(house: Arrows) -> dict[str, tuple[float, float]]:
    """Centre (x, y) of every room: floors as rows, within a row near what a room is tied to."""
    floor = floors(house)
    tied = needed(house)
    top = max(floor.values())
    rows = {
        level: sorted(room for room in house if floor[room] == level) for level in range(1, top + 1)
    }
    x = {
        room: WIDTH * (index + 1) / (len(row) + 1)
        for row in rows.values()
        for index, room in enumerate(row)
    }
    for _ in range(12):
        for row in rows.values():
            near = {
                room: [x[b if a == room else a] for a, b in tied if room in (a, b)] for room in row
            }
            row.sort(
                key=lambda room: (
                    sum(near[room]) / len(near[room]) if near[room] else x[room],
                    room,
                )
            )
            x |= {room: WIDTH * (index + 0.5) / len(row) for index, room in enumerate(row)}
    return {room: (x[room], MARGIN + (top - floor[room]) * ROW + BOX / 2) for room in house}


def draw() -> str:
    """The picture as SVG."""
    house = arrows()
    place = places(house)
    caption = captions()
    height = max(y for _, y in place.values()) + BOX / 2 + MARGIN
    style = (
        "text{font-family:system-ui,sans-serif;fill:#1b2733}.n{font-size:16px;font-weight:600}.c{font-size:11px}"
        "rect{fill:#eef3f8;stroke:#7a93ab}path{fill:none;stroke:#4a6785;stroke-opacity:.45;stroke-width:1.3}"
    )
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        'aria-label="Rooms of the code and the imports between them">',
        f'<style>{style}</style><rect width="100%" height="100%" style="fill:#fff;stroke:none"/>',
    ]
    for room, other in sorted(needed(house)):
        (x1, y1), (x2, y2) = place[room], place[other]
        middle = (y1 + y2) / 2
        lines.append(
            f'<path d="M{x1:.0f} {y1 + BOX / 2:.0f}C{x1:.0f} {middle:.0f} {x2:.0f} {middle:.0f} '
            f'{x2:.0f} {y2 - BOX / 2:.0f}"/>'
        )
    counts = {y: sum(1 for _, other in place.values() if other == y) for _, y in place.values()}
    for room, (x, y) in sorted(place.items()):
        width = min(330, WIDTH / counts[y] - GAP)
        lines.append(
            f'<rect x="{x - width / 2:.0f}" y="{y - BOX / 2:.0f}" width="{width:.0f}" height="{BOX}" rx="7"/>'
        )
        name = room if room == COMMANDS else f"{room}/"
        lines.append(
            f'<text class="n" x="{x:.0f}" y="{y - 18:.0f}" text-anchor="middle">{name}</text>'
        )
        words = textwrap.wrap(caption.get(room, "").replace("`", ""), int(width / 6.4))[:3]
        lines += [
            f'<text class="c" x="{x:.0f}" y="{y + 15 * index:.0f}" text-anchor="middle">{html.escape(line)}</text>'
            for index, line in enumerate(words)
        ]
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(draw())
