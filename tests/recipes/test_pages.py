"""Each recipe of the pages has a test that runs it, and code that can be read."""

import re
from pathlib import Path

from tests.dev.guide import DOCS
from tests.recipes.recipe import INDEX, Recipe, check_syntax, pages, recipes_of

HERE = Path(__file__).parent
RECIPES = [one for page in pages() for one in recipes_of(page)]


def _tests() -> set[tuple[str, str]]:
    """Page and title of each recipe that a test of this folder runs."""
    found = set()
    for file in HERE.glob("test_*.py"):
        text = file.read_text()
        for page in re.findall(r'^PAGE = "(\S+)"$', text, re.M):
            found |= {
                (f"train/{page}", title) for title in re.findall(r'recipe\(PAGE, "(.+?)"', text)
            }
    return found


def test_each_recipe_has_a_test() -> None:
    assert RECIPES
    assert {(one.page, one.title) for one in RECIPES} - _tests() == set()


def test_each_recipe_is_in_the_table() -> None:
    rows = re.findall(r"^\| \[(.+)\]\((\S+?)#\S+\) \|", (DOCS / INDEX).read_text(), re.M)
    listed = [(f"train/{page}", title) for title, page in rows]
    assert sorted(listed) == sorted((one.page, one.title) for one in RECIPES)


def test_programs_can_be_read() -> None:
    for one in RECIPES:
        assert one.programs, f"'{one.title}' of {one.page} has no program with a name"
        for name, text in one.programs.items():
            check_syntax(name, text)


def test_each_recipe_says_what_was_tried() -> None:
    missing = [f"{one.page}: {one.title}" for one in RECIPES if not _says_what_was_tried(one)]
    assert missing == []


def _says_what_was_tried(one: Recipe) -> bool:
    section = (DOCS / one.page).read_text().partition(f"## {one.title}\n")[2]
    return "\n*Tried:* " in section.partition("\n## ")[0]
