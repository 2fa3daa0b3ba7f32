#!/bin/busybox sh
# The guest's first process: mount, load modules, run the job, power off.
/bin/busybox mkdir -p /dev /proc /sys /host
/bin/busybox mount -t devtmpfs dev /dev
exec </dev/console >/dev/console 2>&1
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
while read -r m; do insmod "/modules/$m" || echo "init: cannot load $m"; done </modules/order

o=trans=virtio,version=9p2000.L,msize=262144
mount -t 9p -o $o,ro,cache=loose host /host || { echo "init: no host share"; poweroff -f; }
for d in /tmp /run /var/tmp; do mount -t tmpfs tmpfs /host$d; done
mkdir -p /host/tmp/job /host/run/netns
mount -t 9p -o $o job /host/tmp/job || { echo "init: no job share"; poweroff -f; }

ln -s /proc/self/fd /dev/fd
mkdir -p /dev/shm /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t devpts devpts /dev/pts
for d in /dev /proc /sys; do mount --rbind $d /host$d; done

# The second serial port carries the job's output alone, byte for byte.
stty -F /dev/ttyS1 raw -echo
chroot /host /bin/bash /tmp/job/job.sh </dev/null >/dev/ttyS1 2>&1
echo "@@rxe exit $?" >/dev/ttyS1
sync
poweroff -f
