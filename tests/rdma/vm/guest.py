"""Boots the guest and runs one command in it as if it ran here: output, exit code, time limit.

The guest sees this host's whole root file system; what it writes goes to memory and is lost with
the guest, except in the folders given as writable. It has two Soft-RoCE rails, rxe0 (10.77.0.1 and
.2) and rxe1 (10.77.1.1 and .2). Emulation (TCG) makes it slow, some twenty times in Python: it
shows whether something works, never how fast it is.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tests.dev.steps import ROOT, StepError
from tests.rdma.vm.image import HERE, Image, make_image

QEMU = "qemu-system-x86_64"
MEMORY_MIB = 1536
# It ends with the program that started it, however that ends.
LOW_PRIORITY = ("nice", "-n", "5", "setpriv", "--pdeathsig", "KILL")
BOOT_SECONDS_MAX = 180.0  # on a loaded host half a minute was observed
TIMED_OUT = 124  # timeout(1) uses the same code
GUEST_BROKE = 125


@dataclass(frozen=True, slots=True)
class GuestRun:
    """One command in one guest. `folders` are writable there and shared with this host."""

    command: Sequence[str]
    seconds_max: float = 600.0
    folders: Sequence[Path] = ()
    folder: Path = ROOT
    environment: tuple[tuple[str, str], ...] = ()
    is_counting: bool = False  # one instruction is one nanosecond of the guest's clocks

    def script(self) -> str:
        exports = "".join(
            f"export {name}={shlex.quote(value)}\n" for name, value in self.environment
        )
        return (
            "touch /run/guest/up\nexport BRAIDFS_TEST_PATIENCE=10\n"
            f"{exports}cd {shlex.quote(str(self.folder))} || exit 126\n"
            f"{shlex.join(self.command)}\n"
        )


def missing() -> str:
    """Why no guest can be booted here; empty when one can."""
    if not Path("/bin/busybox").exists() or not shutil.which(QEMU):
        return f"{QEMU} or busybox-static is not installed (./dev rdma installs them)"
    return ""


def run_in_guest(run: GuestRun, out: BinaryIO | None = None, err: BinaryIO | None = None) -> int:
    """Runs it; returns the exit code of the command, TIMED_OUT, or GUEST_BROKE when the machine
    died."""
    image = make_image()
    with tempfile.TemporaryDirectory(prefix="braidfs-guest-") as name:
        control = Path(name)
        _write_control(control, run)
        machine = subprocess.Popen(
            _qemu(image, control, run),
            stdin=subprocess.DEVNULL,
            stdout=(control / "console").open("wb"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        copies = [
            _copier(control / "stdout.out", out or sys.stdout.buffer),
            _copier(control / "stderr.out", err or sys.stderr.buffer),
        ]
        try:
            code = _wait(machine, control, run.seconds_max)
        finally:
            _end(machine)
        for copy in copies:
            copy.join(5.0)
        if code == GUEST_BROKE:
            console = (control / "console").read_text(errors="replace")[-4000:]
            raise StepError(f"the guest ended without running its command; its console:\n{console}")
        return code


def _write_control(control: Path, run: GuestRun) -> None:
    shutil.copy2(HERE / "guest.sh", control)
    (control / "command").write_text(run.script())
    lines = (f"folder{index} {path}\n" for index, path in enumerate(run.folders))
    (control / "folders").write_text("".join(lines))
    for name in ("stdout", "stderr"):
        for end in ("in", "out"):  # with one pipe for both, qemu would read what it wrote
            os.mkfifo(control / f"{name}.{end}")


COUNTING_KHZ = 1_000_000


def _qemu(image: Image, control: Path, run: GuestRun) -> list[str]:
    khz = COUNTING_KHZ if run.is_counting else host_khz()
    machine = ["-accel", "tcg,thread=multi", "-smp", "2"]
    if run.is_counting:
        machine = ["-accel", "tcg,thread=single", "-icount", "shift=0,sleep=on", "-smp", "1"]
    append = (
        "console=ttyS0 quiet panic=-1 nokaslr mitigations=off cryptomgr.notests audit=0 apparmor=0"
        f" random.trust_cpu=1 tsc=reliable no_timer_check tsc_early_khz={khz} lpj={4 * khz}"
    )
    words = [
        *LOW_PRIORITY,
        QEMU,
        "-M",
        "microvm,pic=off,pit=off,rtc=on",
        *machine,
        "-cpu",
        "Nehalem-v1",
        "-m",
        str(MEMORY_MIB),
        "-nodefaults",
        "-no-user-config",
        "-nographic",
        "-no-reboot",
        "-kernel",
        str(image.kernel),
        "-initrd",
        str(image.initramfs),
        "-append",
        append,
        "-serial",
        "stdio",
        "-device",
        "isa-debug-exit,iobase=0x501,iosize=2",
        "-device",
        "virtio-serial-device",
    ]
    for name in ("stdout", "stderr"):
        words += ["-chardev", f"pipe,id={name},path={control / name}"]
        words += ["-device", f"virtserialport,chardev={name},name={name}"]
    words += _shared("root", Path("/"), ",readonly=on,multidevs=remap")
    words += _shared("control", control, "")
    for index, path in enumerate(run.folders):
        words += _shared(f"folder{index}", path, ",multidevs=remap")
    return words


def _shared(tag: str, path: Path, more: str) -> list[str]:
    return [
        "-fsdev",
        f"local,id={tag},path={path},security_model=none{more}",
        "-device",
        f"virtio-9p-device,fsdev={tag},mount_tag={tag}",
    ]


def host_khz() -> int:
    """The frequency of this host's time stamp counter.

    The guest gets it instead of measuring it: the measurement sometimes hangs under emulation.
    """
    log = subprocess.run(["dmesg"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"tsc: (?:Refined TSC clocksource calibration:|Detected) ([0-9.]+) MHz", log)
    cpu = re.search(r"cpu MHz\s*: ([0-9.]+)", Path("/proc/cpuinfo").read_text())
    match = found or cpu
    return int(float(match.group(1)) * 1000) if match else 2_000_000


def _copier(pipe: Path, to: BinaryIO) -> threading.Thread:
    """Copies the output of a pipe of the guest until qemu closes it."""

    def copy() -> None:
        with pipe.open("rb", buffering=0) as source:
            while piece := source.read(1 << 16):
                to.write(piece)
                to.flush()

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    return thread


def _wait(machine: "subprocess.Popen[bytes]", control: Path, seconds_max: float) -> int:
    """Waits for the command, whose time begins when the guest is up."""
    ends_at = time.monotonic() + BOOT_SECONDS_MAX
    is_up = False
    while machine.poll() is None:
        if not is_up and (control / "up").exists():
            is_up = True
            ends_at = time.monotonic() + seconds_max
        if time.monotonic() > ends_at:
            return TIMED_OUT if is_up else GUEST_BROKE
        time.sleep(0.02)
    try:
        return int((control / "exit").read_text())
    except (FileNotFoundError, ValueError):
        return GUEST_BROKE


def _end(machine: "subprocess.Popen[bytes]") -> None:
    if machine.poll() is None:
        machine.send_signal(signal.SIGTERM)
        try:
            machine.wait(5.0)
        except subprocess.TimeoutExpired:
            machine.kill()
            machine.wait()
