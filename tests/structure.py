"""The imports between the packages of this project, and their diagram in the documentation.

`python -m tests.structure` draws docs/images/architecture.svg. The diagram shows every package of
`paradnn`, the commands at its top level, `analysis` and `hydra_plugins`, each with the first
sentence of its docstring. The color of a package shows in which process it runs. A package is one
layer above the highest package that it imports. An import is omitted if a chain of other imports
implies it. `benchmarks`, which may import everything, is not shown.
"""

import ast
import html
import textwrap
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "images" / "architecture.svg"
#: The diagram's name for the modules at the top level of `paradnn`.
COMMANDS = "commands"
PACKAGES = ("paradnn", "analysis", "hydra_plugins", "benchmarks")


def _module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


#: File of each module by dotted name.
MODULES = {
    _module_name(path): path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
}

#: Color of the boxes and names of the packages, by role.
ROLES = {
    "driver": (
        "#dbe9f6",
        ("designs", "best", "compare", "forecast", "session", "platform", "store", "cli", "config"),
    ),
    "worker, in the interpreter under test": ("#fbe3cf", ("worker",)),
    "driver, worker and analyses": ("#f6f0c8", ("workloads", "families", "core")),
    "analyses": ("#dcefdc", ("analysis",)),
    "driver and analyses": ("#e9e1f3", ("statistics",)),
    "entry points": ("#eceff1", (COMMANDS, "hydra_plugins")),
}
#: Fill color of each package.
COLORS = {package: color for color, packages in ROLES.values() for package in packages}

#: Imported packages of each package.
Dependencies = dict[str, set[str]]

# Sizes in the diagram, in pixels.
WIDTH = 1500
BOX_HEIGHT = 78
MAX_BOX_WIDTH = 330
GAP = 16
LAYER_HEIGHT = 128
MARGIN = 24
LEGEND_HEIGHT = 40
CHARACTER_WIDTH = 6.4
CAPTION_LINES = 3
_SWEEPS = 12
_STYLE = (
    "text{font-family:system-ui,sans-serif;fill:#1b2733}"
    ".n{font-size:16px;font-weight:600}"
    ".c{font-size:11px}"
    "rect{stroke:#7a93ab}"
    ".i{fill:none;stroke:#4a6785;stroke-opacity:.6;stroke-width:1.3;marker-end:url(#a)}"
)


@dataclass(frozen=True)
class Position:
    """Center of a box in the diagram."""

    x: float
    y: float


@cache
def parse(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text())


@cache
def imported_names(path: Path) -> set[str]:
    """Return the dotted names that a file imports.

    Imports within functions count, and so do imports that only a type checker sees.
    """
    names: set[str] = set()
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def package_of(module: str) -> str | None:
    """Return the package of a module by its name in the diagram.

    Returns None for modules of other projects, `paradnn` itself and its dispatcher
    `paradnn.__main__`.
    """
    top, _, rest = module.partition(".")
    if top != "paradnn":
        return top if top in PACKAGES else None
    name = rest.partition(".")[0]
    if f"paradnn.{name}" not in MODULES or name == "__main__":
        return None
    if (ROOT / "paradnn" / name).is_dir():
        return name
    return COMMANDS


def package_dependencies() -> Dependencies:
    """Return all packages with the packages that they import."""
    dependencies: Dependencies = {}
    for name, path in MODULES.items():
        package = package_of(name)
        if package is None:
            continue
        imported = {package_of(other) for other in imported_names(path)} - {None, package}
        dependencies.setdefault(package, set()).update(other for other in imported if other)
    return dependencies


def module_dependencies() -> Dependencies:
    """Return all modules with the modules of this project that they import."""
    return {
        name: (imported_names(path) & MODULES.keys()) - {name} for name, path in MODULES.items()
    }


def layers(dependencies: Dependencies) -> dict[str, int]:
    """Return the layer of every package, from 1; raises CycleError if packages form a cycle."""
    layer: dict[str, int] = {}
    for package in TopologicalSorter(dependencies).static_order():
        layer[package] = 1 + max((layer[other] for other in dependencies[package]), default=0)
    return layer


def direct_dependencies(dependencies: Dependencies) -> set[tuple[str, str]]:
    """Return pairs of a package and an imported one, unless a chain of other imports implies it."""

    @cache
    def reachable(package: str) -> frozenset[str]:
        return frozenset({package}.union(*(reachable(other) for other in dependencies[package])))

    direct = set()
    for package, imported in dependencies.items():
        for other in imported:
            is_implied = any(other in reachable(third) for third in imported - {other})
            if not is_implied:
                direct.add((package, other))
    return direct


def captions() -> dict[str, str]:
    """Return the first sentence of the docstring of every package."""
    texts = {}
    for package in package_dependencies():
        path = MODULES.get(f"paradnn.{package}") or MODULES.get(package)
        docstring = ast.get_docstring(parse(path)) if path else ""
        texts[package] = docstring or ""
    commands = sorted(name for name in MODULES if package_of(name) == COMMANDS)
    texts[COMMANDS] = ", ".join(name.removeprefix("paradnn.") for name in commands)
    # A namespace package has no docstring.
    texts["hydra_plugins"] = "The sweeper that Hydra loads: it plans the points of a multirun."
    return {package: _first_sentence(text) for package, text in texts.items()}


def _first_sentence(text: str) -> str:
    paragraph = " ".join(text.split("\n\n")[0].split())
    return paragraph.partition(". ")[0].rstrip(".")


def positions(dependencies: Dependencies) -> dict[str, Position]:
    """Return the position of every package: one row per layer, close to the connected packages."""
    layer = layers(dependencies)
    top = max(layer.values())
    neighbors: dict[str, list[str]] = {package: [] for package in dependencies}
    for package, other in direct_dependencies(dependencies):
        neighbors[package].append(other)
        neighbors[other].append(package)
    rows = [
        sorted(package for package in dependencies if layer[package] == level)
        for level in range(1, top + 1)
    ]
    x: dict[str, float] = {}
    for row in rows:
        for index, package in enumerate(row):
            x[package] = WIDTH * (index + 1) / (len(row) + 1)

    def mean_neighbor(package: str) -> tuple[float, str]:
        near = sorted(x[other] for other in neighbors[package]) or [x[package]]
        return sum(near) / len(near), package

    for _ in range(_SWEEPS):
        for row in rows:
            row.sort(key=mean_neighbor)
            for index, package in enumerate(row):
                x[package] = WIDTH * (index + 0.5) / len(row)
    return {
        package: Position(
            x[package], MARGIN + (top - layer[package]) * LAYER_HEIGHT + BOX_HEIGHT / 2
        )
        for package in dependencies
    }


def draw() -> str:
    """Return the diagram as SVG."""
    dependencies = package_dependencies()
    del dependencies["benchmarks"]
    position = positions(dependencies)
    bottom = max(each.y for each in position.values()) + BOX_HEIGHT / 2
    height = bottom + LEGEND_HEIGHT + MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        'aria-label="Packages of the code and the imports between them">',
        f"<style>{_STYLE}</style>",
        '<marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0L8 4L0 8z" fill="#4a6785"/></marker>',
        '<rect width="100%" height="100%" style="fill:#fff;stroke:none"/>',
    ]
    for package, other in sorted(direct_dependencies(dependencies)):
        lines.append(_draw_import(position[package], position[other]))
    caption = captions()
    for package, center in sorted(position.items()):
        row = [each for each in position.values() if each.y == center.y]
        width = min(MAX_BOX_WIDTH, WIDTH / len(row) - GAP)
        lines += _draw_package(package, caption.get(package, ""), center, width)
    lines += _draw_legend(bottom + LEGEND_HEIGHT)
    return "\n".join([*lines, "</svg>", ""])


def _draw_legend(y: float) -> list[str]:
    lines = []
    x = MARGIN
    for role, (color, _) in ROLES.items():
        lines += [
            f'<rect x="{x}" y="{y - 11:.0f}" width="16" height="14" rx="3" fill="{color}"/>',
            f'<text class="c" x="{x + 22}" y="{y:.0f}">{role}</text>',
        ]
        x += 60 + round(CHARACTER_WIDTH * len(role))
    lines.append(f'<text class="c" x="{x}" y="{y:.0f}">A → B: A imports B</text>')
    return lines


def _draw_import(start: Position, end: Position) -> str:
    top = start.y + BOX_HEIGHT / 2
    bottom = end.y - BOX_HEIGHT / 2
    middle = (start.y + end.y) / 2
    curve = (
        f"M{start.x:.0f} {top:.0f}"
        f"C{start.x:.0f} {middle:.0f} {end.x:.0f} {middle:.0f} {end.x:.0f} {bottom:.0f}"
    )
    return f'<path class="i" d="{curve}"/>'


def _draw_package(package: str, caption: str, center: Position, width: float) -> list[str]:
    name = package if package == COMMANDS else f"{package}/"
    left = center.x - width / 2
    top = center.y - BOX_HEIGHT / 2
    lines = [
        f'<rect x="{left:.0f}" y="{top:.0f}" width="{width:.0f}" height="{BOX_HEIGHT}" rx="7" '
        f'fill="{COLORS[package]}"/>',
        f'<text class="n" x="{center.x:.0f}" y="{center.y - 18:.0f}" '
        f'text-anchor="middle">{name}</text>',
    ]
    wrapped = textwrap.wrap(caption.replace("`", ""), int(width / CHARACTER_WIDTH))
    for index, text in enumerate(wrapped[:CAPTION_LINES]):
        y = center.y + 15 * index
        lines.append(
            f'<text class="c" x="{center.x:.0f}" y="{y:.0f}" '
            f'text-anchor="middle">{html.escape(text)}</text>'
        )
    return lines


if __name__ == "__main__":
    PICTURE.write_text(draw())
