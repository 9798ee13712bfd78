# Second program of the guest, in the host's root: it sets up devices, network and Soft-RoCE, and
# then runs the command.
# The control folder (/run/guest) has: command (a script), folders (writable ones, tag and path).
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
mkdir -p /dev/pts /dev/shm /run/lock
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
ln -sf /proc/self/fd /dev/fd
ln -sf /proc/self/fd/0 /dev/stdin
ln -sf /proc/self/fd/1 /dev/stdout
ln -sf /proc/self/fd/2 /dev/stderr
while read -r tag path; do
  mkdir -p "$path"
  mount -t 9p -o trans=virtio,version=9p2000.L,msize=524288,cache=mmap "$tag" "$path" || exit 96
done </run/guest/folders
hostname guest
sysctl -qw kernel.printk="3 4 1 3" fs.pipe-max-size=1048576
ip link set lo up
# Two rails of two addresses: dummy interfaces, each with a Soft-RoCE device.
for rail in 0 1; do
  ip link add "rail$rail" type dummy
  ip link set "rail$rail" up
  ip addr add "10.77.$rail.1/24" dev "rail$rail"
  ip addr add "10.77.$rail.2/24" dev "rail$rail"
  ip addr add "fd77:$rail::1/64" dev "rail$rail" nodad
  rdma link add "rxe$rail" type rxe netdev "rail$rail" || exit 95
done
bash /run/guest/command >/dev/vport0p1 2>/dev/vport0p2 </dev/null
