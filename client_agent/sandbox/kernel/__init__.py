"""Linux features that the sandboxes use: cgroups, pidfds, mounts, loop devices, uids."""
