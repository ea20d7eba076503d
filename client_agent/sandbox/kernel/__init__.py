"""What Linux offers a sandbox: cgroups, pidfds, mounts, loop devices, uids."""
