"""The drawing of the rooms in ARCHITECTURE.md, made from the import rules in pyproject.toml and the imports that are.

Run `python benchmarks/measuring/rooms.py` to draw it again; a test compares.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from structure import SourceTree

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "ARCHITECTURE.md"
_FENCED = re.compile(r"(?<=<!-- drawn by benchmarks/measuring/rooms.py -->\n)```mermaid\n.*?```", re.DOTALL)


def read_layers() -> list[list[str]]:
    """Return the rooms by layer, the command line first, as the first import rule has them."""
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return [[name.strip().removeprefix("headrace.") for name in layer.split("|")] for layer in rules[0]["layers"]]


def find_arrows() -> dict[str, set[str]]:
    """Return which rooms each room imports; files beside the rooms, which all may import, are left out."""
    tree = SourceTree(ROOT / "src" / "headrace")
    rooms = {room for layer in read_layers() for room in layer if (tree.root / room).is_dir()}
    arrows: dict[str, set[str]] = {room: set() for room in rooms}
    for module in tree.modules.values():
        room = module.name.split(".")[1:2]
        if room and room[0] in rooms:
            names = {name.split(".")[1] for name in tree.imports(module) if "." in name}
            arrows[room[0]] |= (names & rooms) - {room[0]}
    return arrows


def without_detours(arrows: dict[str, set[str]]) -> dict[str, set[str]]:
    """Leave out each arrow that others lead along anyway; rooms import each other in no circle."""

    def below(room: str) -> set[str]:
        return arrows[room].union(*map(below, arrows[room]))

    return {room: targets - {far for near in targets for far in below(near)} for room, targets in arrows.items()}


def draw() -> str:
    """Return the drawing: a room with an arrow to what it imports, layer by layer."""
    arrows = without_detours(find_arrows())
    rooms = [room for layer in read_layers() for room in layer if room in arrows]
    lines = [f"    {room} --> {' & '.join(sorted(arrows[room], key=rooms.index))}" for room in rooms if arrows[room]]
    return "\n".join(["```mermaid", "flowchart TD", *lines, "```"])


def drawn() -> str:
    """Return the drawing that the page has."""
    found = _FENCED.search(PAGE.read_text())
    return "" if found is None else found.group()


def main() -> None:
    """Draw it anew into the page."""
    drawing = draw()
    PAGE.write_text(_FENCED.sub(lambda _: drawing, PAGE.read_text()))


if __name__ == "__main__":
    main()
