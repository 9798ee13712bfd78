"""Listing folders: complete, without duplicates, stable under change, resumable, and large."""

import os
import random
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.mount

WALK_C = r"""
#include <dirent.h>
#include <stdio.h>
#include <string.h>
/* Prints every name; after every 7th it seeks back 3 entries and reads them twice. */
static int again(DIR *dir, long place, char names[3][300], int compare) {
  seekdir(dir, place);
  for (int i = 0; i < 3; i++) {
    struct dirent *entry = readdir(dir);
    if (!entry) return 3;
    if (compare && strcmp(names[i], entry->d_name)) return 4;
    strcpy(names[i], entry->d_name);
  }
  return 0;
}
int main(int argc, char **argv) {
  DIR *dir = opendir(argv[argc - 1]);
  struct dirent *entry;
  long places[8];
  char names[3][300];
  if (!dir) return 2;
  for (int count = 0;; ) {
    places[count % 8] = telldir(dir);
    if (!(entry = readdir(dir))) break;
    puts(entry->d_name);
    if (++count % 7) continue;
    int failed = again(dir, places[(count - 3) % 8], names, 0);
    if (!failed) failed = again(dir, places[(count - 3) % 8], names, 1);
    if (failed) return failed;
  }
  return closedir(dir);
}
"""


def _touch(folder: Path, names: Iterator[str] | list[str]) -> None:
    fd = os.open(folder, os.O_RDONLY)
    for name in names:
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)


def test_empty_folder_and_dots(workdir: Path) -> None:
    assert os.listdir(workdir) == []
    shown = subprocess.run(["ls", "-a", str(workdir)], check=True, capture_output=True, text=True)
    assert shown.stdout.split() == [".", ".."]


def test_every_name_once(workdir: Path) -> None:
    names = [f"name-{number}" for number in range(3000)]
    _touch(workdir, names)
    assert sorted(os.listdir(workdir)) == sorted(names)


def test_inode_numbers_of_entries_are_those_of_stat(workdir: Path) -> None:
    _touch(workdir, [f"{number}" for number in range(200)])
    with os.scandir(workdir) as entries:
        for entry in entries:
            assert entry.inode() == (workdir / entry.name).stat().st_ino


def test_seekdir_goes_back_to_the_same_entry(workdir: Path, localdir: Path) -> None:
    (localdir / "walk.c").write_text(WALK_C)
    subprocess.run(["cc", "-O1", "-o", localdir / "walk", localdir / "walk.c"], check=True)
    (workdir / "d").mkdir()
    names = {f"entry-{number}" for number in range(2000)}
    _touch(workdir / "d", sorted(names))
    result = subprocess.run(
        [localdir / "walk", workdir / "d"], check=False, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0
    printed = result.stdout.split()
    assert sorted(printed) == sorted(names | {".", ".."})


@pytest.mark.timeout(1800)
def test_listing_while_entries_come_and_go(workdir: Path, sized: Callable[[int, int], int]) -> None:
    """Entries that existed all the time are listed exactly once, whatever else changes."""
    stable = {f"stable-{number}" for number in range(sized(8000, 1_000_000))}
    _touch(workdir, sorted(stable))
    stop = threading.Event()

    def churn() -> None:
        chance = random.Random(0)
        while not stop.is_set():
            name = workdir / f"churn-{chance.randrange(500)}"
            if name.exists():
                name.unlink()
            else:
                name.touch()

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(3):
            listed = os.listdir(workdir)
            assert len(listed) == len(set(listed)), "an entry was listed twice"
            assert stable - set(listed) == set(), "an entry was missed"
    finally:
        stop.set()
        thread.join()
    subprocess.run(["rm", "-r", workdir], check=True)
    workdir.mkdir()


def test_removal_while_listing(workdir: Path) -> None:
    """rm -r does this: it unlinks what readdir shows, until nothing is shown."""
    _touch(workdir, [f"{number}" for number in range(3000)])
    with os.scandir(workdir) as entries:
        for entry in entries:
            Path(entry.path).unlink()
    assert os.listdir(workdir) == []


def test_rewind_shows_what_is_new(workdir: Path) -> None:
    fd = os.open(workdir, os.O_RDONLY)
    assert os.listdir(fd) == []
    (workdir / "new").touch()
    assert os.listdir(fd) == ["new"]  # listdir of a descriptor rewinds it
    os.close(fd)


def test_attributes_after_listing_are_fresh(workdir: Path) -> None:
    """readdirplus fills the kernel's cache: it must not fill it with old sizes."""
    _touch(workdir, [f"{number}" for number in range(100)])
    os.listdir(workdir)
    with (workdir / "50").open("wb", buffering=0) as file:
        file.write(b"x" * 777)
        list(os.scandir(workdir))
        assert (workdir / "50").stat().st_size == 777
    sizes = {entry.name: entry.stat().st_size for entry in os.scandir(workdir)}
    assert sizes["50"] == 777 and sum(sizes.values()) == 777
