#!/usr/bin/env bash
# PID 1 of a test host: it makes a root of its own over this machine's, and becomes systemd there.
# host_init.sh FOLDER NAME SHARED, inside fresh mount, pid, net, uts, ipc and cgroup namespaces.
# The root is an overlay whose upper layer is a tmpfs: no change of a host reaches the machine.
# The folder SHARED of the machine is visible at /mnt, read-only.
set -euo pipefail
folder=$1
name=$2
shared=$3
root=$folder/root

mount --make-rprivate /
exec 9<"$shared"  # the tmpfs below may hide it
mount -t tmpfs -o mode=755 tmpfs "$folder"
mkdir "$folder/upper" "$folder/work" "$root"
mount -t overlay -o "lowerdir=/,upperdir=$folder/upper,workdir=$folder/work" overlay "$root"

# Remove services and files that this machine may have.
rm -rf "$root"/etc/systemd/system "$root"/etc/braidfs "$root"/opt/braidfs "$root"/srv/braidfs \
  "$root"/var/lib/braidfs "$root"/sbin/mount.fuse.braidfs "$root"/etc/systemd/journald.conf.d \
  "$root"/var/lib/etcd/*
mkdir -p "$root/etc/systemd/system"
hostname "$name"
printf '%s\n' "$name" >"$root/etc/hostname"
: >"$root/etc/fstab"
rm -f "$root/etc/machine-id"
tr -d - </proc/sys/kernel/random/uuid >"$root/etc/machine-id"

mount --bind /proc/self/fd/9 "$root/mnt"
mount -o remount,bind,ro "$root/mnt"
exec 9<&-
mount -t proc proc "$root/proc"
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
mount --bind "$root/proc/sys/net" "$root/proc/sys/net"
mount -o remount,bind,rw "$root/proc/sys/net"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t tmpfs tmpfs "$root/sys/fs/cgroup"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in null zero full random urandom tty fuse autofs; do
  [[ -e /dev/$device ]] || continue
  touch "$root/dev/$device"
  mount --bind "/dev/$device" "$root/dev/$device"
done
touch "$root/dev/console"
mount --bind "$(readlink /proc/self/fd/2)" "$root/dev/console"
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"

# Disable units that a host without hardware and users does not need.
ln -s /lib/systemd/system/multi-user.target "$root/etc/systemd/system/default.target"
for unit in systemd-udevd.service systemd-udevd-kernel.socket systemd-udevd-control.socket \
  systemd-udev-trigger.service systemd-logind.service systemd-timesyncd.service \
  systemd-networkd.service systemd-resolved.service getty.target apt-daily.timer \
  apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer \
  systemd-sysctl.service systemd-modules-load.service systemd-random-seed.service \
  systemd-update-utmp.service systemd-remount-fs.service systemd-tmpfiles-setup.service \
  dev-hugepages.mount dev-mqueue.mount sys-kernel-debug.mount sys-kernel-tracing.mount \
  sys-kernel-config.mount sys-fs-fuse-connections.mount proc-sys-fs-binfmt_misc.automount; do
  ln -sf /dev/null "$root/etc/systemd/system/$unit"
done

mkdir "$root/.machine"
cd "$root"
pivot_root . .machine
umount -l /.machine
rmdir /.machine
ip link set lo up
exec env -i container=braidfs-test PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
  /lib/systemd/systemd --system --log-target=console --show-status=false
