"""`scripts/check_language.py` finds each kind of violation, in the right line, and accepts what is permitted."""

from pathlib import Path

import pytest

from scripts.check_language import IDIOMS, MARKER, check, check_class_names, check_text

MODULE = Path("src/mainspring/jobs/module.py")
TEST = Path("tests/unit/test_module.py")
DOCUMENT = Path("docs/jobs.md")


def found(path: Path, content: str) -> list[tuple[int, str]]:
    """The lines and words that are reported."""
    return [(violation.line, violation.found) for violation in check_text(path, content)]


# -- idioms


@pytest.mark.parametrize(
    "idiom",
    [
        *("whoever", "whomever", "somebody", "anybody", "everybody", "nobody", "comes to pass", "come to pass"),
        *("in the way of", "of which", "for whom", "of whom", "look after", "looks after", "looked after"),
        *("looking after", "bark", "barks", "barked", "barking", "left lying", "clock on the wall"),
    ],
)
def test_every_idiom_is_found_in_a_document(idiom: str) -> None:
    assert found(DOCUMENT, f"# Jobs\n\nA {idiom} b.\n") == [(3, idiom)]
    assert found(DOCUMENT, f"{idiom.capitalize()} b.\n") == [(1, idiom.capitalize())]


def test_an_idiom_across_two_lines_is_found() -> None:
    assert found(DOCUMENT, "One\ntwo of\nwhich three.\n") == [(2, "of which")]


def test_parts_of_other_words_are_not_idioms() -> None:
    assert found(DOCUMENT, "The embarkation of whichever nobodyish ship.\n") == []


def test_a_report_says_what_to_write_instead() -> None:
    (violation,) = check_text(DOCUMENT, "Whoever waits.\n")
    assert str(violation) == "docs/jobs.md:1: 'Whoever': " + IDIOMS["who(?:m)?ever"]


@pytest.mark.parametrize("path", [MODULE, TEST])
@pytest.mark.parametrize(
    "source",
    [
        '"""Module.\n\nNobody waits.\n"""\n',
        'LIMIT = 3\n\n"""Nobody waits."""\n',
        'def run() -> None:\n    "Wait."\n    # nobody waits\n',
        "\n\ndef test_nobody_waits() -> None: ...\n",
        "\n\nclass Nobody: ...\n",
        "\n\ndef run(nobody: int) -> None: ...\n",
        "\n\nprint(pool.nobody)\n",
        "\n\npool.run(nobody=1)\n",
    ],
    ids=["docstring", "attribute docstring", "comment", "function", "class", "parameter", "attribute", "keyword"],
)
def test_docstrings_comments_and_names_are_checked(path: Path, source: str) -> None:
    assert [(line, word.lower()) for line, word in found(path, source)] == [(3, "nobody")]


def test_other_strings_are_messages_in_src_and_data_elsewhere() -> None:
    source = 'name = 1\nraise ValueError(f"{name}: nobody waits")\n'
    assert found(MODULE, source) == [(2, "nobody")]
    assert found(TEST, source) == []


def test_the_marker_permits_its_line_only() -> None:
    quote = f'print("nobody")  # {MARKER}\n'
    assert found(MODULE, quote) == []
    assert found(MODULE, quote + 'print("nobody")\n') == [(2, "nobody")]
    assert found(DOCUMENT, f"| nobody <!-- {MARKER} --> |\n| nobody |\n") == [(2, "nobody")]


def test_a_marker_without_a_quote_is_reported() -> None:
    assert found(MODULE, f"pass  # {MARKER}\n") == [(1, MARKER)]


# -- spelling


@pytest.mark.parametrize(
    "source",
    [
        "# a cancelled job\n",
        '"""Return the cancelled jobs."""\n',
        "cancelled = 0\n",
        "def cancelled() -> bool: ...\n",
        "def add(cancelled: int) -> None: ...\n",
        "def test_a_cancelled_job() -> None: ...\n",
        "job.was_cancelled\n",
        "class CancelledJob: ...\n",
    ],
)
def test_the_british_spelling_is_found(source: str) -> None:
    assert [line for line, _ in found(TEST, source)] == [1]


@pytest.mark.parametrize(
    "source",
    [
        "future.cancelled()\n",
        "current_job().cancelled\n",
        "Statistics(cancelled=1)\n",
        "class Statistics:\n    cancelled: int\n",
        "class Future:\n    def cancelled(self) -> bool: ...\n",
        "asyncio.CancelledError\n",
        "except_(CancelledError)  # a CancelledError\n",
        '"""Set `cancelled`, see `current_job().cancelled`."""\n',
        "canceled = 0  # a canceled job\n",
    ],
)
def test_names_of_the_standard_library_and_of_the_public_api_are_permitted(source: str) -> None:
    assert found(MODULE, source) == []


def test_a_document_is_spelled_like_the_code() -> None:
    assert found(DOCUMENT, "`cancelled` of a cancelled job: `job.cancelled`, `CancelledError`\n") == [
        (1, "cancelled")
    ]


# -- class names


def test_classes_of_one_name_are_found_in_both_modules() -> None:
    first, second = Path("src/mainspring/a.py"), Path("src/mainspring/b.py")
    modules = {first: "class Worker(Protocol): ...\n", second: "\nclass _Worker: ...\nclass Other: ...\n"}
    assert [str(violation) for violation in check_class_names(modules)] == [
        "src/mainspring/a.py:1: 'class Worker': choose another name: src/mainspring/b.py:2 has this one",
        "src/mainspring/b.py:2: 'class Worker': choose another name: src/mainspring/a.py:1 has this one",
    ]


# -- which files


def test_documents_source_and_tests_are_read(tmp_path: Path) -> None:
    files = {
        "README.md": "Nobody.\n",
        "docs/deep/jobs.md": "Nobody.\n",
        "docs/decisions/022-old.md": "Nobody: this record is older than the rule.\n",
        "docs/decisions/023-new.md": "Nobody.\n",
        "src/mainspring/worker.py": "class Worker: ...  # nobody\n",
        "src/mainspring/other.py": "class Worker: ...\n",
        "src/mainspring/testing/worker.py": "class Worker: ...\n",
        "tests/unit/test_worker.py": "class Worker: ...  # nobody\n",
        "unrelated/module.py": "# nobody\n",
    }
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    assert sorted(f"{violation.path}:{violation.found.lower()}" for violation in check(tmp_path)) == [
        "README.md:nobody",
        "docs/decisions/023-new.md:nobody",
        "docs/deep/jobs.md:nobody",
        "src/mainspring/other.py:class worker",
        "src/mainspring/worker.py:class worker",
        "src/mainspring/worker.py:nobody",
        "tests/unit/test_worker.py:nobody",
    ]
