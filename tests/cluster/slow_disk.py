"""A disk that takes its time, for a program that is started with the environment of `SlowDisk`.

A library that is loaded before all others makes each wait for the disk (fdatasync, fsync, msync)
longer, as long as a file says by how much. It works without the kernel's help, and for programs
that call the C library: those in Python, and LMDB in them.
"""

import subprocess
from pathlib import Path

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static void take_time(void) {
  FILE* file = fopen(getenv("SLOW_DISK_FILE"), "re");
  long milliseconds = 0;
  if (!file) return;
  if (fscanf(file, "%ld", &milliseconds) != 1) milliseconds = 0;
  fclose(file);
  struct timespec left = {milliseconds / 1000, milliseconds % 1000 * 1000000};
  nanosleep(&left, NULL);
}

int fdatasync(int fd) {
  take_time();
  return ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(fd);
}

int fsync(int fd) {
  take_time();
  return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd);
}

int msync(void* address, size_t length, int flags) {
  take_time();
  return ((int (*)(void*, size_t, int))dlsym(RTLD_NEXT, "msync"))(address, length, flags);
}
"""


class SlowDisk:
    """In a folder of its own. It is as fast as ever until `take`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._file = folder / "milliseconds"
        library = folder / "slow_disk.so"
        words = ("cc", "-shared", "-fPIC", "-O", "-o", str(library), "-x", "c", "-", "-ldl")
        subprocess.run(words, input=_SOURCE, text=True, check=True, timeout=60)
        self.environment = {"LD_PRELOAD": str(library), "SLOW_DISK_FILE": str(self._file)}

    def take(self, milliseconds: int) -> None:
        """Each wait for the disk takes so much longer from now on."""
        self._file.write_text(f"{milliseconds}\n")
