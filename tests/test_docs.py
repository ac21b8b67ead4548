"""Every example in the README and on the site is run, and the site is built."""

from __future__ import annotations

import doctest
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest
from sybil import Example, Sybil
from sybil.example import SybilFailure
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser

from support.cluster import SHORT

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

#: What a browser fetches with a page, unlike a link that a reader may follow.
LOADS = r"<(?:script|img|link|iframe|source)\b[^>]*?(?:src|href)=[\"']?([^\"'> ]+)"

#: What is run, and what is only shown. A misspelt language would pass for the latter.
RUN = {"console", "python"}
SHOWN = {"", "json", "sh", "sql", "text", "toml"}


def run_console(example: Example) -> str | None:
    """Run the lines after ``$ `` and compare what follows each, if anything, with what it prints."""
    scripts = sysconfig.get_path("scripts")
    path = f"{scripts}{os.pathsep}{os.environ['PATH']}"
    # Each command has a Java of its own, which ends before it would gain from a better compiler.
    env = {**os.environ, "PATH": path, "COLUMNS": "100", "NO_COLOR": "1", "JDK_JAVA_OPTIONS": SHORT}
    head, *commands = re.split(r"^\$ ", example.parsed, flags=re.MULTILINE)
    if head.strip() or not commands:
        return f"a console block starts with '$ ', not with {head!r}"
    for text in commands:
        command, _, wanted = re.sub(r"\\\n", "", text).partition("\n")
        done = subprocess.run(
            ["/bin/sh", "-c", command], env=env, capture_output=True, text=True, timeout=300, check=False
        )
        if done.returncode:
            return f"{command!r} exits with {done.returncode}:\n{done.stdout}{done.stderr}"
        wanted = wanted.strip()
        if wanted and not doctest.OutputChecker().check_output(wanted + "\n", done.stdout, FLAGS):
            return f"{command!r} is to print:\n{wanted}\nand prints:\n{done.stdout}"
    return None


def run_page(page: Path) -> int:
    """Run the examples of a page in order, in the working folder, and return how many there are."""
    console = CodeBlockParser("console", run_console)
    python = PythonCodeBlockParser(doctest_optionflags=FLAGS)
    examples = list(Sybil(parsers=[console, python]).parse(page).examples())
    for example in examples:
        example.evaluate()
    return len(examples)


#: Pages with many commands, each of which starts a Spark: minutes.
LONG = (
    "clusters.md",
    "compare.md",
    "explain.md",
    "export.md",
    "follow.md",
    "matching.md",
    "overall.md",
    "partitioning.md",
    "pipeline.md",
    "plans.md",
    "reproduce.md",
    "run.md",
    "sessions.md",
    "stream.md",
    "workloads.md",
)


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.slow] * (page.name in LONG)) for page in PAGES],
    ids=[str(page.relative_to(ROOT)) for page in PAGES],
)
def test_examples(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    if "pipeline.session(" in page.read_text():  # which then gives the one that runs
        request.getfixturevalue("spark")
    fences = re.findall(r"^ *```(\S+)$", page.read_text(), re.MULTILINE)
    assert set(fences) <= RUN | SHOWN
    assert run_page(page) >= sum(language in RUN for language in fences)


@pytest.mark.parametrize(
    "text",
    [
        "```python\nx = 1\n```\n\n```python\nassert x == 1\n```",
        "```python\n>>> 1 + 1\n2\n>>> list(range(99))\n[0, ..., 98]\n```",
        "```python\nopen('made', 'w').close()\n```\n\n```console\n$ ls\nmade\n```",
        "```console\n$ echo one; echo two \\\n    three\none\n...three\n$ true\n```",
        "```console\n$ python -c 'import sys; print(sys.prefix)'\n" + sys.prefix + "\n```",
    ],
)
def test_right_example_passes(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "page.md").write_text(text)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert run_page(tmp_path / "page.md") >= text.count("```") // 2


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("```python\nassert 1 == 2\n```", "assert 1 == 2"),
        ("```python\n1 +\n```", "invalid syntax"),
        ("```python\n>>> 1 + 1\n3\n```", "Expected:"),
        ("```python\nx = 1\n```\n\n```python\ny\n```", "name 'y' is not defined"),
        ("```console\n$ false\n```", "'false' exits with 1"),
        ("```console\n$ true\n$ nosuchprogram\n```", "'nosuchprogram' exits with 127"),
        ("```console\n$ echo one\ntwo\n```", "is to print:\ntwo"),
        ("```console\n$ echo one; echo two\none\n```", "and prints:\none\ntwo"),
        ("```console\n$ true\nsomething\n```", "is to print:\nsomething"),
        ("```console\nnarrowcast doctor\n```", "starts with"),
    ],
)
def test_broken_example_fails(
    text: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page.md").write_text(text)
    with pytest.raises((SybilFailure, AssertionError, SyntaxError, NameError)) as failure:
        run_page(tmp_path / "page.md")
    assert reason in str(failure.value) or reason in str(failure.getrepr())


def test_every_make_line_is_a_target() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        named = set(re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(), re.MULTILINE))
        assert named <= targets, page


def test_every_page_is_in_the_menu() -> None:
    menu = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    listed = set(re.findall(r"[\w/-]+\.md", str(menu)))
    assert listed == {page.relative_to(ROOT / "docs").as_posix() for page in PAGES[1:]}


def test_site_is_built_and_fetches_nothing(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    build = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    made = sorted((tmp_path / "site").rglob("*.html"))
    assert {page.stem for page in PAGES[1:]} <= {page.stem for page in made}
    for page in made:
        loaded = re.findall(LOADS, page.read_text())
        assert loaded
        assert [url for url in loaded if re.match(r"(?:\w+:)?//", url)] == []


#: What else begins like a module: subjects of NATS, and the name of an archive.
OTHER = {"channel", "flow", "to", "tar", "planners"}


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_every_module_that_is_named_is_there(page: Path) -> None:
    for name in set(re.findall(r"\bnarrowcast((?:\.[A-Za-z_]\w*)+)", page.read_text())):
        if name.split(".")[1] not in OTHER:
            assert pkgutil.resolve_name(f"narrowcast{name}") is not None
    for name in set(re.findall(r"`([a-z_]+/[a-z_/]+)(?:\.py)?`", page.read_text())):
        if (ROOT / "src" / "narrowcast" / name.split("/")[0]).is_dir():
            found = ROOT / "src" / "narrowcast" / name
            assert found.is_dir() or found.with_suffix(".py").is_file(), name
