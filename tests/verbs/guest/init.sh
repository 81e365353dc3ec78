#!/bin/busybox sh
# shellcheck shell=dash
# First program of the guest: mounts the host's root file system, read-only under a layer of memory, and goes there.
b=/bin/busybox
die() {
  $b echo "@@ vm $*"
  $b poweroff -f
}
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
for module in $($b cat /mod/order); do
  $b insmod "/mod/$module" || die "cannot load $module"
done
$b mkdir -p /rw /out
$b mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=512000 host /host || die "cannot mount the root"
$b mount -t 9p -o trans=virtio,version=9p2000.L,cache=none,msize=512000 out /out || die "cannot mount the out folder"
# shellcheck source=/dev/null
. /out/settings.sh
$b mount -t tmpfs tmpfs /rw
$b mkdir -p /rw/upper /rw/work /new
$b mount -t overlay -o lowerdir=/host,upperdir=/rw/upper,workdir=/rw/work overlay /new || die "cannot layer the root"
for folder in proc sys dev run tmp; do $b mkdir -p /new/$folder; done
$b mount -t proc proc /new/proc
$b mount -t sysfs sys /new/sys
$b mount -t devtmpfs dev /new/dev
$b mkdir -p /new/dev/shm /new/dev/pts
$b mount -t tmpfs tmpfs /new/dev/shm
$b mount -t devpts devpts /new/dev/pts
$b mount -t tmpfs tmpfs /new/run
$b mount -t tmpfs -o mode=1777 tmpfs /new/tmp
$b mkdir -p /new/run/out /new/run/host /new/lib/modules
$b mount --bind /out /new/run/out
$b mount --bind /host /new/run/host
$b mount --bind "/host$STORE/lib/modules" /new/lib/modules
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb LANG=C.UTF-8
# Process 1 itself changes the root, so that the modprobe that the kernel calls finds its modules.
exec $b chroot /new /bin/bash "/run/host$ROOT/tests/verbs/guest/main.sh"
