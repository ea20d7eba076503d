"""Numbers of the system calls in the filter (asm/unistd_64.h, asm-generic/unistd.h)."""

from __future__ import annotations

from typing import Final

AUDIT_ARCH: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32: Final = 0x40000000
"""Calls with this bit use the x32 ABI, which has the same AUDIT_ARCH as x86_64."""

_TABLE: Final = """
ioctl                    16       29
socket                   41      198
socketpair               53      199
clone                    56      220
fcntl                    72       25
ptrace                  101      117
syslog                  103      116
ustat                   136        -
sysfs                   139        -
vhangup                 153       58
pivot_root              155       41
chroot                  161       51
acct                    163       89
settimeofday            164      170
mount                   165       40
umount2                 166       39
swapon                  167      224
swapoff                 168      225
reboot                  169      142
iopl                    172        -
ioperm                  173        -
create_module           174        -
init_module             175      105
delete_module           176      106
quotactl                179       60
nfsservctl              180       42
lookup_dcookie          212       18
clock_settime           227      112
mbind                   237      235
set_mempolicy           238      237
get_mempolicy           239      236
kexec_load              246      104
add_key                 248      217
request_key             249      218
keyctl                  250      219
inotify_init            253        -
inotify_add_watch       254       27
migrate_pages           256      238
unshare                 272       97
move_pages              279      239
inotify_init1           294       26
perf_event_open         298      241
fanotify_init           300      262
name_to_handle_at       303      264
open_by_handle_at       304      265
setns                   308      268
process_vm_readv        310      270
process_vm_writev       311      271
kcmp                    312      272
finit_module            313      273
kexec_file_load         320      294
bpf                     321      280
userfaultfd             323      282
io_uring_setup          425      425
io_uring_enter          426      426
io_uring_register       427      427
open_tree               428      428
move_mount              429      429
fsopen                  430      430
fsconfig                431      431
fsmount                 432      432
fspick                  433      433
clone3                  435      435
pidfd_getfd             438      438
process_madvise         440      440
mount_setattr           442      442
quotactl_fd             443      443
set_mempolicy_home_node    450      450
statmount               457      457
listmount               458      458
open_tree_attr          467      467
"""
"""Name, number on x86_64, number on aarch64; "-": it has no such call. Since Linux 5.0, new calls
have the same number on all architectures."""

_ROWS: Final = [line.split() for line in _TABLE.split("\n") if line]

NUMBERS: Final[dict[str, dict[str, int]]] = {
    machine: {row[0]: int(row[column]) for row in _ROWS if row[column] != "-"}
    for column, machine in enumerate(("x86_64", "aarch64"), start=1)
}
