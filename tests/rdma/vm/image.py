"""What the guest boots: a stock Debian kernel, and an initramfs of busybox and modules.

The kernel package is downloaded and unpacked, never installed. vmlinux is extracted from vmlinuz,
so that qemu starts it directly (PVH) and nothing is decompressed under emulation. Everything is
kept in .build/rdma and made once for each kernel version, under a lock; the guest runs initramfs.sh
(before the root is there) and guest.sh (after). guest.py boots it.
"""

import fcntl
import lzma
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.dev.steps import BUILD, StepError, quiet_step

FOLDER = BUILD / "rdma"
HERE = Path(__file__).parent
# It is Debian's name for the current kernel; not -cloud, which has no rxe.
KERNEL = "linux-image-amd64"
BUSYBOX = Path("/bin/busybox")
# They are in the order of need; modules.dep says on which other modules they depend.
MODULES = (
    "virtio_mmio",
    "virtio_pci",
    "9pnet_virtio",
    "9p",
    "virtio_console",
    "overlay",
    "fuse",
    "loop",
    "crc32_generic",
    "crc32c_generic",
    "ext4",
    "dummy",
    "rdma_rxe",
    "rdma_ucm",
)
_XZ_MAGIC = b"\xfd7zXZ\x00"


@dataclass(frozen=True, slots=True)
class Image:
    kernel: Path
    initramfs: Path


def make_image() -> Image:
    """The image, made when it is not there yet. Raises StepError with what is missing."""
    with _lock():
        package = _package()
        folder = FOLDER / package
        image = Image(folder / "vmlinux", folder / "initramfs.gz")
        scripts = b"".join(path.read_bytes() for path in sorted(HERE.glob("*.sh")))
        stamp = folder / "made-from"
        if not stamp.exists() or stamp.read_bytes() != scripts + repr(MODULES).encode():
            _make(package, folder, image)
            stamp.write_bytes(scripts + repr(MODULES).encode())
        return image


@contextmanager
def _lock() -> Iterator[None]:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _package() -> str:
    """The name of the kernel package, such as linux-image-6.1.0-40-amd64: one that is here already
    is good enough, else the one that Debian offers now."""
    folders = FOLDER.glob("linux-image-*")
    here = sorted(path.name for path in folders if (path / "made-from").exists())
    if here:
        return here[-1]
    found = subprocess.run(
        ["apt-cache", "depends", KERNEL], capture_output=True, text=True, check=False
    ).stdout
    names = [line.split()[-1] for line in found.splitlines() if line.strip().startswith("Depends:")]
    if not names:
        raise StepError(f"apt knows no package {KERNEL}: run apt-get update, or see /etc/apt")
    return names[0]


def _make(package: str, folder: Path, image: Image) -> None:
    tree = folder / "tree"
    if not (tree / "boot").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        folder.chmod(0o755)
        text = f"Kernel for the guest ({package})"
        quiet_step(text, ["apt-get", "download", package], folder=folder)
        quiet_step(
            "Unpacking the kernel", ["dpkg", "-x", str(next(folder.glob("*.deb"))), str(tree)]
        )
    version = next((tree / "lib/modules").iterdir()).name
    quiet_step("Module dependencies", ["depmod", "-b", str(tree), version])
    image.kernel.write_bytes(_vmlinux((tree / f"boot/vmlinuz-{version}").read_bytes()))
    _make_initramfs(tree / "lib/modules" / version, folder / "initramfs", image.initramfs)


def _vmlinux(compressed: bytes) -> bytes:
    """The ELF inside a bzImage: the xz stream in it that unpacks to one."""
    at = compressed.find(_XZ_MAGIC)
    while at >= 0:
        try:
            unpacked = lzma.LZMADecompressor().decompress(compressed[at:])
        except lzma.LZMAError:
            unpacked = b""
        if unpacked.startswith(b"\x7fELF"):
            return unpacked
        at = compressed.find(_XZ_MAGIC, at + 1)
    raise StepError("the kernel image has no xz-compressed kernel in it")


def _make_initramfs(modules: Path, folder: Path, archive: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("bin", "modules", "proc", "sys", "dev", "host", "top", "new"):
        (folder / name).mkdir(parents=True)
    shutil.copy2(BUSYBOX, folder / "bin/busybox")
    ordered = _in_order(modules)
    for path in ordered:
        shutil.copy2(path, folder / "modules" / path.name)
    (folder / "modules/order").write_text("".join(f"{path.name}\n" for path in ordered))
    shutil.copy2(HERE / "initramfs.sh", folder / "init")
    (folder / "init").chmod(0o755)
    pack = f"find . | cpio --quiet -o -H newc | gzip -1 > {archive}"
    quiet_step("Initramfs for the guest", ["sh", "-c", pack], folder=folder)


def _in_order(modules: Path) -> list[Path]:
    """The files of MODULES, each after those on which it depends; built-in ones are left out."""
    needs: dict[str, tuple[str, list[str]]] = {}
    for line in (modules / "modules.dep").read_text().splitlines():
        path, _, rest = line.partition(":")
        needs[Path(path).name.removesuffix(".ko").replace("-", "_")] = (path, rest.split())
    ordered: list[Path] = []
    for name in MODULES:
        path, before = needs.get(name, ("", []))
        for one in [*reversed(before), path]:
            if one and modules / one not in ordered:
                ordered.append(modules / one)
    return ordered
