"""The launch of a job: rule 3 of the threat model."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import BOX, HOSTILE, PROCESS, Mutant, of

_OPTIONS: Final = "sandbox/bubblewrap/command.py"
_START_NAMESPACE: Final = "sandbox/kernel/start_namespace.py"
_TREE: Final = "sandbox/bubblewrap/root_tree.py"
_ROOT_TREE: Final = f"{BOX}bubblewrap/test_root_tree.py::test_"
_SPAWN: Final = "sandbox/process/start.py"
_SUPERVISOR: Final = "sandbox/process/supervisor.py"
_RULES: Final = f"{PROCESS}sandbox_rules.py::test_"
_INSIDE: Final = f"{PROCESS}sandbox_inside.py::test_"
_ISOLATION: Final = f"{PROCESS}sandbox_isolation.py::test_"
_LAYERS: Final = f"{PROCESS}sandbox_layers.py::test_"
_UNIT: Final = f"{BOX}bubblewrap/test_command.py::test_"
_CHAIN: Final = f"{BOX}process/test_chain.py::test_"
_NAMESPACES: Final = f"{_UNIT}every_namespace_is_new_and_none_can_be_made_inside"

LAUNCH: Final[tuple[Mutant, ...]] = (
    of(
        "3",
        "a cgroup that cannot be joined stops the chain",
        "sandbox/process/chain.py",
        'echo 0 >"$1" || exit 126;',
        'echo 0 >"$1";',
        f"{_CHAIN}a_cgroup_that_cannot_be_joined_stops_the_chain",
    ),
    of(
        "3",
        "no groups of the agent's are kept (`--setgid`)",
        _OPTIONS,
        ', f"--setgid={uid}", "--"]',
        ', "--"]',
        f"{_UNIT}a_root_agent_changes_its_uid_before_bwrap_starts",
        f"{_RULES}no_process_of_a_job_has_a_group_of_the_agent",
    ),
    of(
        "3",
        "the kernel takes the job before the agent",
        "sandbox/process/chain.py",
        "-lt 500 ] && score=500 ||",
        "-lt 500 ] && score=0 ||",
        f"{_INSIDE}the_kernel_kills_the_job_before_the_agent",
    ),
    of(
        "3",
        "and an agent that it would take early starts jobs, too",
        "sandbox/process/chain.py",
        "|| score=1000",
        "|| score=500",
        f"{_CHAIN}the_oom_score_of_a_job_is_raised_and_never_lowered",
    ),
    of(
        "3",
        "a limit that cannot be set keeps the gate from speaking",
        "sandbox/process/chain.py",
        '"exit 124; }; shift 2',
        '"}; shift 2',
        f"{_CHAIN}without_its_limits_the_gate_writes_no_ready_byte",
        f"{PROCESS}sandbox_start.py::test_a_limit_that_cannot_be_set_is_a_broken_sandbox",
    ),
    of(
        "3",
        "what `/proc` shows of keyrings, disks, locks and the host's boot is hidden",
        _OPTIONS,
        "    options += _hide_proc_files()\n",
        "",
        f"{_INSIDE}files_of_proc_about_the_host_and_its_jobs_are_empty[user]",
        f"{_INSIDE}files_of_proc_about_the_host_and_its_jobs_are_empty[root]",
    ),
    of(
        "3",
        "what `/proc/fs` shows of other jobs' disks is hidden",
        _OPTIONS,
        '    options += ["--perms", "0555", "--size", "4096", "--tmpfs", PROC_FS]\n    options += _h',
        "    PROC_FS = INIT_PROC\n    options += _h",
        f"{_INSIDE}proc_does_not_show_the_free_space_of_other_jobs[user]",
        f"{_INSIDE}proc_does_not_show_the_free_space_of_other_jobs[root]",
    ),
    of(
        "3",
        "only the named descriptors are passed",
        _SPAWN,
        "pass_fds=tuple(passed),",
        "close_fds=False,",
        f"{HOSTILE}[user-fd-leak]",
    ),
    of(
        "3",
        "a network namespace of its own",
        _OPTIONS,
        '        options.append("--unshare-net")',
        "        pass",
        f"{HOSTILE}[user-net-agent-port]",
        f"{_ISOLATION}two_jobs_cannot_reach_each_other",
    ),
    of(
        "3",
        "a pid namespace of its own",
        _OPTIONS,
        '"--unshare-pid", ',
        "",
        f"{HOSTILE}[user-pid-visibility]",
    ),
    of(
        "3",
        "an ipc namespace of its own",
        _OPTIONS,
        '"--unshare-ipc", ',
        "",
        f"{_LAYERS}memory_segments_and_queues_of_the_host_are_not_visible",
    ),
    of(
        "3",
        "a uts namespace of its own",
        _OPTIONS,
        ', "--unshare-uts"]',
        "]",
        f"{_LAYERS}the_host_name_and_the_paths_of_cgroups_are_not_visible",
    ),
    of(
        "3",
        "the host's name is not shown",
        _OPTIONS,
        '"--hostname", "sandbox", ',
        "",
        f"{_LAYERS}the_host_name_and_the_paths_of_cgroups_are_not_visible",
    ),
    of(
        "3",
        "a cgroup namespace of its own",
        _OPTIONS,
        '["--unshare-cgroup-try", ',
        "[",
        f"{_LAYERS}the_host_name_and_the_paths_of_cgroups_are_not_visible[root]",
    ),
    of(
        "3",
        "`--disable-userns`, without the filter",
        _OPTIONS,
        '"--disable-userns", ',
        "",
        f"{_LAYERS}without_the_filter_no_namespace_can_be_made_inside",
    ),
    of("3", "`--cap-drop ALL`", _OPTIONS, '"--cap-drop", "ALL", ', "", _NAMESPACES),
    of(
        "3",
        "a session of its own (`--new-session`)",
        _OPTIONS,
        '"--new-session", ',
        "",
        f"{_LAYERS}a_job_has_a_session_of_its_own_and_no_terminal",
    ),
    of(
        "3",
        "the job dies with its agent (`--die-with-parent`)",
        _OPTIONS,
        ', "--die-with-parent"]',
        "]",
        f"{_RULES}a_job_dies_with_its_killed_agent",
    ),
    of(
        "3",
        "of the host's /etc only what programs need",
        _TREE,
        '    "/etc/nsswitch.conf",\n',
        '    "/etc/nsswitch.conf",\n    "/etc/hostname",\n    "/etc/fstab",\n',
        f"{_INSIDE}etc_contains_what_programs_need_and_no_account_of_the_host",
    ),
    of(
        "3",
        "/etc/passwd is generated",
        _TREE,
        "            file.write_text(text)\n",
        '            file.write_text(Path("/etc", name).read_text())\n',
        f"{_INSIDE}etc_contains_what_programs_need_and_no_account_of_the_host",
    ),
    of(
        "3",
        "a file of the host that is closed to the job stays closed in the prepared root",
        _TREE,
        "            shutil.copyfile(source, place)\n            place.chmod(mode)\n",
        "            shutil.copyfile(source, place)\n",
        f"{_ROOT_TREE}what_is_closed_to_jobs_stays_closed_in_the_copy",
    ),
    of(
        "3",
        "where chains are spawned, nothing of the host is but what they need",
        _START_NAMESPACE,
        '        mounts.unmount(Path("/", _OLD_ROOT), detach=True)\n        Path("/", _OLD_ROOT).rmdir()\n',
        "",
        f"{_LAYERS}a_root_agents_chain_is_spawned_where_few_mounts_are[root]",
    ),
    of(
        "3",
        "and making that place unmounts nothing of the agent's",
        _START_NAMESPACE,
        '        mounts.keep_from_others(Path("/", _OLD_ROOT))\n',
        "",
        f"{_LAYERS}without_the_filter_no_namespace_can_be_made_inside",
    ),
    of(
        "3",
        "a job sees the files of the host as they are when it starts",
        _TREE,
        "            if self._signature(network=network) != tree.signature:\n",
        "            if False:\n",
        f"{_ROOT_TREE}a_tree_is_made_again_when_a_source_changed",
    ),
    of(
        "3",
        "operators' binds are read-only",
        _OPTIONS,
        '["--ro-bind", str(source), checked_mount_target(target)]',
        '["--bind", str(source), checked_mount_target(target)]',
        f"{_INSIDE}operators_binds_can_be_read_and_not_written",
    ),
    of(
        "3",
        "orphans of a chain become the agent's children",
        "sandbox/kernel/pidfd.py",
        "_PR_SET_CHILD_SUBREAPER, 1,",
        "_PR_SET_CHILD_SUBREAPER, 0,",
        f"{_RULES}orphans_of_a_chain_become_the_agents_children",
    ),
    of(
        "3",
        "without confirmed death nothing is collected and the folder is kept apart",
        _SUPERVISOR,
        "        if not certain:\n",
        "        if False:\n",
        f"{_RULES}processes_that_do_not_die_are_reported_and_their_folder_is_kept",
    ),
    of(
        "3",
        "a new life kills the processes of a former one",
        "sandbox/host_sandbox.py",
        "                if not await self._kill_recorded_init(folder):",
        "                if False:",
        f"{_ISOLATION}a_restart_in_the_middle_clears_everything",
    ),
    of(
        "3",
        "what would not die keeps its folder, and no agent from starting",
        "sandbox/kernel/work_folders.py",
        "            if folder not in alive:\n",
        "            if True:\n",
        f"{PROCESS}sandbox_quarantine.py::"
        "test_an_agent_starts_although_a_process_of_its_last_run_does_not_die[user]",
    ),
    of(
        "3",
        "and what is left in its cgroups",
        "sandbox/host_sandbox.py",
        "        await self._clear_cgroups()",
        "        pass",
        f"{_ISOLATION}a_process_left_in_a_cgroup_is_killed_at_the_next_start",
    ),
    of(
        "3",
        "and what is left in the cgroups of an agent that was started elsewhere",
        "sandbox/host_sandbox.py",
        "dict.fromkeys([*recorded, *current])",
        "dict.fromkeys(current)",
        f"{PROCESS}sandbox_cgroups.py::test_processes_left_in_another_cgroup_are_killed_and_their_groups_removed",
    ),
    of(
        "3",
        "and its folders and images",
        "sandbox/host_sandbox.py",
        "            await self.in_thread(self.work_folders.clear, alive)",
        "            pass",
        f"{_ISOLATION}a_restart_in_the_middle_clears_everything",
    ),
    of(
        "3",
        "mounts are the agent's own and die with it",
        "sandbox/kernel/work_folders.py",
        "            mounts.enter_private_namespace(MOUNT_ROOT)\n",
        "            MOUNT_ROOT.mkdir(exist_ok=True)\n",
        f"{_ISOLATION}the_agents_mounts_are_not_visible_on_the_host",
    ),
)
