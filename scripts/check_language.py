"""Check the language rules of CONTRIBUTING.md: plain words, one class for one name, the spelling `canceled`.

Prints one line for each violation and exits with 1 if there is any. It reads

- documents: the whole text, except decision records that are older than the rule;
- `src`: comments, names and all strings, because errors and log lines are strings;
- other Python files: comments, names and docstrings. Their other strings may be test data.

A line with the marker `language: quote` may contain what the rule forbids, for instance as an example of bad
language. A marker in a line without a violation is a violation itself.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHON = ("src", "tests", "scripts", "benchmarks", "examples", "deploy")
DOCUMENTS = ("*.md", "docs/**/*.md")
OLD_DECISIONS = re.compile(r"docs/decisions/0([01]\d|2[0-2])-.*|docs/decisions/README\.md")
MARKER = "language: quote"

NAME_THE_ACTOR = "name the actor: the caller, the worker, another process"
NAME_WHO_DOES_NOT = "name the actor that does not: no worker, no caller"
IDIOMS = {
    r"who(?:m)?ever": NAME_THE_ACTOR,
    r"(?:some|any|every)body": NAME_THE_ACTOR,
    r"nobody": NAME_WHO_DOES_NOT,
    r"come(?:s)? to pass": "say what happens",
    r"in the way of": "say what prevents what",
    r"of which": "write two sentences, or use 'that' or 'whose'",
    r"(?:for|of) whom": NAME_THE_ACTOR,
    r"look(?:s|ed|ing)? after": "say what it does: checks, repairs, serves",
    r"bark(?:s|ed|ing)?": "say what it logs or raises",
    r"left lying": "say what is not done: not picked up, not removed",
    r"clocks? on the wall": "write 'wall clock'",
}
WORDS = "|".join(IDIOMS).replace(" ", r"[\s_]+")  # a name has underscores between its words
RIDDLE = re.compile(rf"(?<![a-z])(?:{WORDS})(?![a-z])", re.IGNORECASE)

# `cancelled` belongs to the protocol of futures in the standard library. The public API and the JSON output of the
# demonstration have members of that name. Prose may name these: `cancelled`. Elsewhere it is *canceled*.
SPELLING = re.compile(r"(?<![.\w])(?!(?<=[`\"'])cancelled[`\"'])\w*cancelled\w*", re.IGNORECASE)
SUSPECT = re.compile(rf"{WORDS}|cancelled|{MARKER}")
"""Matches the lower-case text of every file that can break a rule of words. The others need not be parsed."""
CLASS = re.compile(r"^\s*class\s+_*(\w+)", re.MULTILINE)
STANDARD_LIBRARY = {"CancelledError", "CANCELLED", "CANCELLED_AND_NOTIFIED"}
MEMBERS = {"cancelled", "cancelled_though_paid"}


@dataclass(frozen=True)
class Violation:
    """One place that breaks a rule, and what to write instead."""

    path: Path
    line: int
    found: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.found!r}: {self.remedy}"


@dataclass(frozen=True)
class Text:
    """A piece of prose: a document, a comment, a string or a name, and the line where it begins."""

    line: int
    text: str

    def violations(self, path: Path) -> Iterator[Violation]:
        """Find idioms and wrong spelling."""
        for match in RIDDLE.finditer(self.text):
            yield Violation(path, self._line_of(match), _plain(match[0]), _remedy_for(match[0]))
        for match in SPELLING.finditer(self.text):
            if match[0] not in STANDARD_LIBRARY:
                yield Violation(path, self._line_of(match), match[0], "write 'canceled'")

    def _line_of(self, match: re.Match[str]) -> int:
        return self.line + self.text.count("\n", 0, match.start())


def _plain(found: str) -> str:
    return re.sub(r"[\s_]+", " ", found)


def _remedy_for(found: str) -> str:
    return next(remedy for idiom, remedy in IDIOMS.items() if re.fullmatch(idiom, _plain(found), re.IGNORECASE))


def texts_of(source: str, *, with_all_strings: bool) -> Iterator[Text]:
    """Find the prose of a Python file: comments, strings and names."""
    tree = ast.parse(source)
    docstrings = set(_docstring_places(tree))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        is_string = tokenize.tok_name[token.type].endswith(("STRING", "STRING_MIDDLE"))
        if token.type == tokenize.COMMENT or (is_string and (with_all_strings or token.start in docstrings)):
            yield Text(token.start[0], token.string)
    for line, name in _names(tree):
        yield Text(line, name)


def _docstring_places(tree: ast.Module) -> Iterator[tuple[int, int]]:
    """Find where docstrings begin, including strings below an attribute, which document it."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node.value.lineno, node.value.col_offset


def _names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Find the names that a file defines or uses, without the permitted members of classes."""
    methods_and_fields = set(_members(tree))
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) | ast.keyword(arg=str(name)) if name in MEMBERS:
                continue
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                pass
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                pass
            case _:
                continue
        if not (name in MEMBERS and node in methods_and_fields):
            yield node.lineno, name


def _members(tree: ast.Module) -> Iterator[ast.AST]:
    """Find the methods of classes, and the names of their fields with types."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for member in node.body:
                yield member.target if isinstance(member, ast.AnnAssign) else member


def check_text(path: Path, content: str) -> Iterator[Violation]:
    """Check the words of one file; `path` is relative to the project."""
    if SUSPECT.search(content.lower()) is None:
        return
    if path.suffix == ".py":
        texts = list(texts_of(content, with_all_strings=path.parts[0] == "src"))
    else:
        texts = [Text(1, content)]
    marked = {number for number, line in enumerate(content.splitlines(), 1) if _has_marker(path, line)}
    unused = set(marked)
    for violation in chain.from_iterable(text.violations(path) for text in texts):
        unused.discard(violation.line)
        if violation.line not in marked:
            yield violation
    for line in unused:
        yield Violation(path, line, MARKER, "remove the marker: this line breaks no rule")


def _has_marker(path: Path, line: str) -> bool:
    return re.search(rf"# {MARKER}\b" if path.suffix == ".py" else rf"<!-- {MARKER}\b", line) is not None


def check_class_names(modules: dict[Path, str]) -> Iterator[Violation]:
    """Find names of classes that more than one module has; leading underscores make no difference."""
    places: defaultdict[str, dict[Path, int]] = defaultdict(dict)
    names = {path: set(CLASS.findall(source)) for path, source in modules.items()}
    modules_with = Counter(chain.from_iterable(names.values()))
    for path, source in modules.items():
        if all(modules_with[name] == 1 for name in names[path]):
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].setdefault(path, node.lineno)
    for name, lines in places.items():
        for path, line in lines.items():
            others = ", ".join(f"{other}:{lines[other]}" for other in lines if other != path)
            if others:
                yield Violation(path, line, f"class {name}", f"choose another name: {others} has this one")


def check(root: Path) -> list[Violation]:
    """Check all files of a project."""
    paths = chain(
        *(root.glob(pattern) for pattern in DOCUMENTS),
        *((root / folder).rglob("*.py") for folder in PYTHON),
    )
    contents = {path.relative_to(root): path.read_text() for path in sorted(paths)}
    violations = [
        violation
        for path, content in contents.items()
        if not OLD_DECISIONS.fullmatch(path.as_posix())
        for violation in check_text(path, content)
    ]
    package = Path("src", "mainspring")
    modules = {
        path: content
        for path, content in contents.items()
        if path.suffix == ".py" and path.is_relative_to(package) and not path.is_relative_to(package / "testing")
    }
    return [*violations, *check_class_names(modules)]


def main() -> int:
    """Print the violations of this project."""
    violations = check(ROOT)
    for violation in violations:
        print(violation)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
