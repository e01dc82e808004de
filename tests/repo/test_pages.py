"""What a reader meets: the code of README.md and of docs/ runs, lines can be read, every page can be found."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import page_blocks
import pytest
from page_blocks import NOT_RUN, RUN_LANGUAGES, blocks_that_run, code_blocks

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = [README, *sorted(DOCS.rglob("*.md"))]
OTHER_PAGES = [ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", ROOT / "bench" / "README.md"]
RELEASE_BUILD = ROOT / "build" / "release"
# Pages whose code needs an environment of its own, and the tests that run it there.
RUN_ELSEWHERE = {
    DOCS / "guides" / "vllm.md": ROOT / "tests" / "vllm" / "test_vllm_page.py",
    DOCS / "guides" / "sglang.md": ROOT / "tests" / "sglang" / "test_sglang_page.py",
}
MOST_WORDS_IN_README = 900
WIDEST_LINE = 120


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def pages_with(*languages: str) -> list[Path]:
    pages = [page for page in PAGES if page not in RUN_ELSEWHERE]
    return [page for page in pages if any(block.language in languages for block in blocks_that_run(page))]


def run_checked(command: list[str | Path], directory: Path, name: str) -> None:
    """Runs a program with the environment's own commands first in the path; fails with all that it printed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        command, check=False, cwd=directory, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"{name} failed with exit code {done.returncode}:\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("page", pages_with("python", "sh"), ids=name_of)
def test_python_and_shell_blocks_run(page: Path, tmp_path: Path) -> None:
    run_checked([sys.executable, page_blocks.__file__, page], tmp_path, name_of(page))


@pytest.mark.parametrize(("page", "test"), RUN_ELSEWHERE.items(), ids=map(name_of, RUN_ELSEWHERE))
def test_pages_that_run_elsewhere_have_code_and_a_test(page: Path, test: Path) -> None:
    assert blocks_that_run(page)
    assert f'"{page.name}"' in test.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not (RELEASE_BUILD / "CMakeCache.txt").exists():
        pytest.skip("the library is not built in build/release (`make test STAGES=release` does)")
    prefix = tmp_path_factory.mktemp("prefix")
    run_checked(["cmake", "--install", RELEASE_BUILD, "--prefix", prefix], ROOT, "installing the library")
    return prefix


@pytest.mark.parametrize("page", pages_with("cpp"), ids=name_of)
def test_cpp_blocks_build_and_run(page: Path, tmp_path: Path, installed: Path) -> None:
    """Those with a main, against the installed library, as a user would build them."""
    for block in blocks_that_run(page):
        if block.language == "cpp" and "main(" in block.code:
            name = f"{name_of(page)} line {block.line}"
            program = build_cpp(block.code, tmp_path / f"cpp_{block.line}", installed, name)
            run_checked([program], tmp_path, name)


def build_cpp(code: str, project: Path, prefix: Path, name: str) -> Path:
    project.mkdir()
    (project / "main.cc").write_text(code)
    (project / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.22)\n"
        "project(page LANGUAGES CXX)\n"
        "find_package(penstock REQUIRED)\n"
        "add_executable(page main.cc)\n"
        "target_link_libraries(page PRIVATE penstock::penstock)\n"
    )
    configure = ["cmake", "-S", project, "-B", project / "build", f"-DCMAKE_PREFIX_PATH={prefix}"]
    run_checked(configure, project, f"configuring {name}")
    run_checked(["cmake", "--build", project / "build"], project, f"building {name}")
    return project / "build" / "page"


def test_readme_has_blocks_in_all_three_languages() -> None:
    assert {block.language for block in blocks_that_run(README)} == RUN_LANGUAGES


def test_a_block_marked_as_not_run_is_left_out() -> None:
    text = f"```sh\ntrue\n```\n{NOT_RUN}\n```sh\nfalse\n```\n"
    assert [(block.code, block.run) for block in code_blocks(text)] == [("true\n", True), ("false\n", False)]


def test_a_failing_block_fails_its_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nassert 1 == 2\n```\n")
    with pytest.raises(AssertionError, match=r"page\.md failed with exit code 1"):
        run_checked([sys.executable, page_blocks.__file__, page], tmp_path, "page.md")


def test_readme_is_read_in_a_few_minutes() -> None:
    assert len(README.read_text(encoding="utf-8").split()) <= MOST_WORDS_IN_README


@pytest.mark.parametrize("page", [*PAGES, *OTHER_PAGES], ids=name_of)
def test_no_line_is_too_wide_to_read(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    wide = [(number, len(line)) for number, line in enumerate(lines, start=1) if len(line) > WIDEST_LINE]
    assert wide == []


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")[1]
    assert set(re.findall(r"[\w/]+\.md", navigation)) >= {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}


@pytest.mark.parametrize("page", [*PAGES, *OTHER_PAGES], ids=name_of)
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    """As they are read there; `make docs` checks those of the site, anchors included."""
    text = re.sub(r"^```.*?^```\s*$|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    links = re.findall(r"\]\(([^)\s#]+)[^)]*\)|(?:src|srcset)=\"([^\"]+)\"", text)
    targets = [target for pair in links for target in pair if target and "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []
