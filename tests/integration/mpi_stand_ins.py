"""Stand-ins for mpirun, ior and mdtest, which may not be installed; the file's name says which one
it is.

They take the options that `braidfs validate` gives, do what these say with real files, and print
the lines that the real programs print. They run the tasks one after the other, without MPI.
"""

import argparse
import os
import sys
import time
from pathlib import Path

MIB = 1 << 20


def mpirun(words: list[str]) -> None:
    assert words[0] == "-n"
    os.environ["TASKS"] = words[1]
    os.execvp(words[2], words[2:])


def tasks() -> range:
    return range(int(os.environ.get("TASKS", "1")))


def ior(words: list[str]) -> None:
    parser = argparse.ArgumentParser()
    for flag in "kewrRF":
        parser.add_argument(f"-{flag}", action="store_true")
    for option in "atbsGo":
        parser.add_argument(f"-{option}", default="1")
    given = parser.parse_args(words)
    assert given.a == "POSIX" and given.k and given.w != given.r
    each, block, segments = int(given.t), int(given.b), int(given.s)
    began, moved, wrong = time.monotonic(), 0, 0
    for task in tasks():
        path = f"{given.o}.{task:08d}" if given.F else given.o
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT if given.w else os.O_RDONLY, 0o644)
        for segment in range(segments):
            start = (segment if given.F else segment * len(tasks()) + task) * block
            for at in range(start, start + block, each):
                data = (f"{given.G} {task} {at} ".encode() * each)[:each]
                if given.w:
                    moved += os.pwrite(descriptor, data, at)
                else:
                    seen = os.pread(descriptor, each, at)
                    moved += len(seen)
                    wrong += given.R and seen != data
        if given.e:
            os.fsync(descriptor)
        os.close(descriptor)
    if wrong:
        print(f"WARNING: Incorrect data on read ({wrong} errors found).")
    rate = moved / (time.monotonic() - began)
    what = "Write:" if given.w else "Read: "
    print(f"\nMax {what} {rate / MIB:.2f} MiB/sec ({rate / 1e6:.2f} MB/sec)")


def mdtest(words: list[str]) -> None:
    parser = argparse.ArgumentParser()
    for flag in "FuCTr":
        parser.add_argument(f"-{flag}", action="store_true")
    for option in "nd":
        parser.add_argument(f"-{option}")
    given = parser.parse_args(words)
    assert given.F and given.u and given.C + given.T + given.r == 1
    began, count = time.monotonic(), 0
    for task in tasks():
        folder = Path(given.d, f"task.{task}")
        if given.C:
            folder.mkdir(parents=True)
        for number in range(int(given.n)):
            name = folder / f"file.{number}"
            (name.touch if given.C else name.stat if given.T else name.unlink)()
            count += 1
    rate = count / (time.monotonic() - began)
    print("\nSUMMARY rate: (of 1 iterations)")
    for label, is_done in (("creation", given.C), ("stat", given.T), ("removal", given.r)):
        shown = rate if is_done else 0
        print(f"   File {label:<12}: {shown:14.3f} {shown:14.3f} {shown:14.3f}          0.000")


if __name__ == "__main__":
    {"mpirun": mpirun, "ior": ior, "mdtest": mdtest}[Path(sys.argv[0]).name](sys.argv[1:])
