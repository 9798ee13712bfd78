#!/bin/busybox sh
# First program of the guest: it loads modules, mounts the host's root read-only over 9p under an
# overlay in memory, and runs guest.sh from the control folder in that root. It ends the machine by
# isa-debug-exit.
B=/bin/busybox
die() { echo "guest: $*" >/dev/ttyS0; halt 97; }
halt() { # the exit code of qemu is code * 2 + 1
  $B printf "\\$($B printf '%03o' "$1")" | $B dd of=/dev/port bs=1 seek=1281 2>/dev/null
  $B sleep 5
  $B poweroff -f
}
$B mount -t proc proc /proc
$B mount -t sysfs sysfs /sys
$B mount -t devtmpfs dev /dev
while read -r module; do
  $B insmod "/modules/$module" || echo "guest: no module $module" >/dev/ttyS0
done </modules/order
NINE=trans=virtio,version=9p2000.L,msize=524288
$B mount -t 9p -o "$NINE,ro,cache=loose" root /host || die "the host's root cannot be mounted"
$B mount -t tmpfs -o size=75% tmpfs /top && $B mkdir /top/upper /top/work
$B mount -t overlay -o lowerdir=/host,upperdir=/top/upper,workdir=/top/work overlay /new ||
  die "the overlay cannot be mounted"
$B mkdir -p /new/run/guest
$B mount --move /dev /new/dev
$B mount -t proc proc /new/proc
$B mount -t sysfs sysfs /new/sys
$B mount -t tmpfs tmpfs /new/run && $B mkdir /new/run/guest
$B mount -t 9p -o "$NINE,cache=none" control /new/run/guest || die "no control folder"
$B chroot /new /bin/bash /run/guest/guest.sh
echo $? >/new/run/guest/exit.new && $B mv /new/run/guest/exit.new /new/run/guest/exit
$B sync
halt 0
