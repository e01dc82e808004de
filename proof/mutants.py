"""Finds what can be mutated in a C++ source, and writes the source with many mutants in it, of which none or one is on.

A mutant is a change of one operator, literal or statement. All of them are compiled at once: `a < b` becomes a call
that computes `a <= b` when the process was told the mutant's number, and `a < b` else (mutant.h). So a run of the tests
for each mutant costs no build.
"""

from __future__ import annotations

import bisect
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from clang.cindex import Cursor, CursorKind, Index, TokenKind, TranslationUnit, TypeKind

# operator -> (what it becomes, the function of mutant.h that is both)
OPERATORS = {
    "<": ("<=", "less"),
    "<=": ("<", "less_equal"),
    ">": (">=", "greater"),
    ">=": (">", "greater_equal"),
    "==": ("!=", "equal"),
    "!=": ("==", "not_equal"),
    "+": ("-", "plus"),
    "-": ("+", "minus"),
    "*": ("/", "times"),
    "/": ("*", "divided"),
    "%": ("/", "modulo"),
    "<<": (">>", "left"),
    ">>": ("<<", "right"),
    "&": ("|", "bit_and"),
    "|": ("&", "bit_or"),
}
LOGICAL = {"&&": "||", "||": "&&"}
STATEMENTS = {
    CursorKind.CALL_EXPR,
    CursorKind.BINARY_OPERATOR,
    CursorKind.COMPOUND_ASSIGNMENT_OPERATOR,
    CursorKind.UNARY_OPERATOR,
    CursorKind.UNEXPOSED_EXPR,
    CursorKind.CONTINUE_STMT,
    CursorKind.BREAK_STMT,
}
# The text of a message is for people.
MESSAGES = ("throw_", "format")


@dataclass(frozen=True)
class Edit:
    """Text that is put in at an offset; of several there, what encloses more lies further outside."""

    offset: int
    opens: bool
    width: float
    text: str


@dataclass
class Mutant:
    file: str
    line: int
    last_line: int
    source: str  # the line as it stands
    change: str  # "< is <=", "removed: sync(fd);"
    edits: list[tuple[int, bool, float, str]]  # with %d for the number
    comma: tuple[int, int] | None = None  # an operator that a comma takes the place of
    number: int = 0
    killed_by: str = ""
    reached: bool = False
    explained: str = field(default="")


class Source:
    """One parsed file."""

    def __init__(self, path: Path, root: Path, index: Index, resources: str) -> None:
        self.name = str(path.relative_to(root))
        self.bytes = path.read_bytes()
        self.lines = self.bytes.decode().splitlines()
        arguments = ["-std=c++20", f"-I{root}/include", f"-I{root}/src", "-resource-dir", resources]
        self.unit: TranslationUnit = index.parse(str(path), args=arguments)
        errors = [str(d) for d in self.unit.diagnostics if d.severity >= 3]
        if errors:
            raise SystemExit(f"[mutation] {self.name}: {errors[0]}")
        tokens = self.unit.get_tokens(extent=self.unit.cursor.extent)
        self.tokens = [
            (t.extent.start.offset, t.extent.end.offset, t.spelling) for t in tokens if t.kind != TokenKind.COMMENT
        ]
        self.starts = [start for start, _, _ in self.tokens]

    def token_from(self, offset: int) -> tuple[int, int, str]:
        """The first that begins there or later."""
        return self.tokens[min(bisect.bisect_left(self.starts, offset), len(self.tokens) - 1)]

    def token_before(self, offset: int) -> str:
        return self.tokens[bisect.bisect_left(self.starts, offset) - 1][2]

    def text(self, begin: int, end: int) -> str:
        return self.bytes[begin:end].decode()

    def mutant(self, cursor: Cursor, change: str, edits: list[tuple[int, bool, float, str]]) -> Mutant:
        line = cursor.extent.start.line
        return Mutant(self.name, line, cursor.extent.end.line, self.lines[line - 1].strip(), change, edits)


ON = "::mutants::is_on(%d)"


def range_of(cursor: Cursor) -> tuple[int, int]:
    return cursor.extent.start.offset, cursor.extent.end.offset


def of_binary(source: Source, cursor: Cursor, left: Cursor, right: Cursor) -> Iterator[Mutant]:
    (begin, left_end), (right_begin, end) = range_of(left), range_of(right)
    op_begin, op_end, op = source.token_from(left_end)
    if not (left_end <= op_begin and op_end <= right_begin) or (begin, end) != range_of(cursor):
        return  # in a macro
    width = end - begin
    if op in LOGICAL:
        edits = [
            (begin, True, width, "(((((bool)("),
            (left_end, False, left_end - begin + 0.5, f")) != {ON})"),
            (right_begin, True, end - right_begin + 0.5, "(((bool)("),
            (end, False, end - right_begin + 0.5, f")) != {ON})"),
            (end, False, width, f") != {ON})"),
        ]
        yield source.mutant(cursor, f"{op} is {LOGICAL[op]}", edits)
    elif op in OPERATORS:
        other, name = OPERATORS[op]
        edits = [(begin, True, width, f"::mutants::{name}<%d>("), (end, False, width, ")")]
        mutant = source.mutant(cursor, f"{op} is {other}", edits)
        mutant.comma = (op_begin, op_end)
        yield mutant


def of_statement(source: Source, cursor: Cursor, parent: Cursor) -> Iterator[Mutant]:
    """A whole statement that ends with a semicolon."""
    begin, end = range_of(cursor)
    _, after, text = source.token_from(end)
    if text != ";" or parent.kind in (CursorKind.DECL_STMT, CursorKind.RETURN_STMT):
        return
    before = source.token_before(begin)
    if before not in ("{", "}", ";", ")", "else", ":") or (before == ";" and parent.kind == CursorKind.FOR_STMT):
        return
    whole = source.text(begin, end)
    if whole.startswith("static_cast<void>"):
        return
    edits = [(begin, True, end - begin + 1.0, f"{{ if (!{ON}) "), (after, False, end - begin + 1.0, "}")]
    yield source.mutant(cursor, f"removed: {' '.join(whole.split())};", edits)


def of_cursor(source: Source, cursor: Cursor, parent: Cursor) -> Iterator[Mutant]:
    begin, end = range_of(cursor)
    children = list(cursor.get_children())
    if cursor.kind == CursorKind.BINARY_OPERATOR and len(children) == 2:
        yield from of_binary(source, cursor, children[0], children[1])
    elif cursor.kind == CursorKind.CALL_EXPR and cursor.spelling == "operator==" and len(children) == 3:
        yield from of_binary(source, cursor, children[0], children[2])
    elif cursor.kind == CursorKind.UNARY_OPERATOR and source.token_from(begin)[2] == "!":
        edits = [(begin, True, end - begin, "((bool)("), (end, False, end - begin, f") != {ON})")]
        yield source.mutant(cursor, "! is gone", edits)
    elif cursor.kind == CursorKind.CXX_BOOL_LITERAL_EXPR and source.text(begin, end) in ("true", "false"):
        edits = [(begin, True, end - begin, "("), (end, False, end - begin, f" != {ON})")]
        other = "false" if source.text(begin, end) == "true" else "true"
        yield source.mutant(cursor, f"{source.text(begin, end)} is {other}", edits)
    elif cursor.kind == CursorKind.INTEGER_LITERAL and source.text(begin, end)[:1].isdigit():
        edits = [(begin, True, end - begin, "("), (end, False, end - begin, f" + {ON})")]
        yield source.mutant(cursor, f"{source.text(begin, end)} is 1 more", edits)
    if cursor.kind in STATEMENTS and parent.kind.is_statement():
        yield from of_statement(source, cursor, parent)


def walk(source: Source, cursor: Cursor) -> Iterator[Mutant]:
    for child in cursor.get_children():
        place = child.location.file
        if place is None or not place.name.endswith(source.name):
            continue
        if child.kind.is_expression() or child.kind.is_statement():
            yield from of_cursor(source, child, cursor)
        if child.kind == CursorKind.CALL_EXPR and child.spelling.startswith(MESSAGES):
            continue
        if child.kind == CursorKind.STATIC_ASSERT or (
            child.type.kind == TypeKind.INVALID and child.kind.is_attribute()
        ):
            continue
        yield from walk(source, child)


def find(path: Path, root: Path) -> list[Mutant]:
    """Every mutant of the file, in its order."""
    command = ["clang", "-print-resource-dir"]
    resources = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    source = Source(path, root, Index.create(), resources)
    unique = {(m.change, tuple(m.edits)): m for m in walk(source, source.unit.cursor)}
    return list(unique.values())


def write(original: bytes, mutants: list[Mutant]) -> bytes:
    """The source with these in it. No line moves."""
    edits = []
    for mutant in mutants:
        for offset, opens, width, text in mutant.edits:
            # What closes comes first, the inner one before the outer; then what opens, the outer one first.
            order = (offset, 1, -width) if opens else (offset, 0, width)
            edits.append((order, offset, offset, text.replace("%d", str(mutant.number))))
        if mutant.comma:
            edits.append(((mutant.comma[0], 2, 0.0), *mutant.comma, ","))
    result, at = [], 0
    for _, begin, end, text in sorted(edits):
        result += [original[at:begin], text.encode()]
        at = end
    return b"".join([*result, original[at:]])
