"""The rules of the sandbox: rule 2 of the threat model."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import BOX, HOSTILE, PROCESS, Mutant, of

_OPTIONS: Final = "sandbox/bubblewrap/command.py"
_SPAWN: Final = "sandbox/process/start.py"
_SUPERVISOR: Final = "sandbox/process/supervisor.py"
_RULES: Final = f"{PROCESS}sandbox_rules.py::test_"
_INSIDE: Final = f"{PROCESS}sandbox_inside.py::test_"
_LAYERS: Final = f"{PROCESS}sandbox_layers.py::test_"
_NOT_VISIBLE: Final = f"{PROCESS}sandbox_outside.py::test_command_lines_and_environments_of_a_sandbox_show_nothing_private"
_UNIT: Final = f"{BOX}bubblewrap/test_command.py::test_"
_CALLS: Final = f"{_INSIDE}dangerous_system_calls_are_refused"
_CHAIN: Final = f"{BOX}process/test_chain.py::test_"
_NAMESPACES: Final = f"{_UNIT}every_namespace_is_new_and_none_can_be_made_inside"

RULES: Final[tuple[Mutant, ...]] = (
    of(
        "2.1",
        "a root agent changes to an unprivileged uid before bwrap",
        _OPTIONS,
        "    if uid is not None:\n        command += [tools.unshare",
        "    if False:\n        command += [tools.unshare",
        f"{_RULES}no_process_of_a_job_is_root_on_the_host[root]",
    ),
    of(
        "2.1",
        "bwrap is refused the uid 0",
        _OPTIONS,
        "    if uid == 0:",
        "    if uid == -1:",
        f"{_UNIT}bwrap_never_runs_as_root",
    ),
    of(
        "2.1",
        "each slot has a uid of its own",
        "sandbox/host_sandbox.py",
        "self.settings.uid_base + slot if",
        "self.settings.uid_base if",
        f"{_RULES}two_slots_of_a_root_agent_have_different_uids",
    ),
    of(
        "2.1",
        "no two agents of a host take the same uids",
        "sandbox/kernel/uids.py",
        "elif not self._lock(start, block_size):",
        "elif False:",
        f"{BOX}kernel/test_uids.py::test_two_agents_of_a_host_never_share_a_uid",
    ),
    of(
        "2.1",
        "no account has the uid of a job",
        "sandbox/kernel/uids.py",
        "elif (account := _account(block)) is not None:",
        "if False:",
        f"{BOX}kernel/test_uids.py::test_the_uid_of_an_account_is_skipped",
    ),
    of(
        "2.2",
        "the job's directory is the last mount",
        _OPTIONS,
        '["--bind-fd", str(fds.job), JOB]',
        '["--bind-fd", str(fds.job), JOB, "--tmpfs", "/opt"]',
        f"{_UNIT}the_jobs_directory_is_the_last_mount_and_nothing_lies_below_it",
    ),
    of(
        "2.2",
        "no operator's bind lies below it",
        _OPTIONS,
        "RESERVED: Final = (JOB, ",
        "RESERVED: Final = (",
        f"{_UNIT}operators_binds_are_not_below_what_the_job_can_write[/job/data]",
        "tests/unit/client_agent/settings/test_grants.py::test_a_mistake_is_reported",
    ),
    of(
        "2.3",
        "the chain starts with an empty environment",
        _SPAWN,
        "env={},",
        "env=dict(os.environ),",
        f"{_RULES}chains_are_spawned_on_the_loops_thread_without_options_that_fork",
        _NOT_VISIBLE,
    ),
    of(
        "2.3",
        "`--clearenv`",
        _OPTIONS,
        'options.append("--clearenv")',
        "pass",
        _NAMESPACES,
    ),
    of(
        "2.3",
        "options travel by descriptor",
        _OPTIONS,
        'tools.bwrap, "--args", str(args_fd), "--", *inside]',
        'tools.bwrap, *os.pread(args_fd, 9999, 0).decode().split("\\0")[:-1], "--", *inside]',
        _NOT_VISIBLE,
    ),
    of(
        "2.4",
        "`/` is read-only",
        _OPTIONS,
        '"--remount-ro", "/"]',
        '"--remount-ro", "/usr"]',
        f"{HOSTILE}[root-tmpfs-bomb]",
        f"{HOSTILE}[user-fs-write-system]",
    ),
    of(
        "2.4",
        "`/dev` is read-only",
        _OPTIONS,
        '"--remount-ro", "/dev", ',
        "",
        f"{HOSTILE}[root-tmpfs-bomb]",
        f"{HOSTILE}[user-tmpfs-bomb]",
    ),
    of(
        "2.5",
        "the end is reported when the namespace's init is dead, not bwrap",
        _SUPERVISOR,
        "self._init_dead = pidfd.watch(spawned.init_fd)",
        "self._init_dead = spawned.outer_dead",
        f"{_RULES}all_processes_are_dead_when_the_end_is_reported",
    ),
    of(
        "2.6",
        "SIGKILL goes to the init, never to the outer bwrap",
        _SUPERVISOR,
        "        pidfd.kill(self._spawned.init_fd)\n        self._close_gate()",
        "        pidfd.kill(self._spawned.outer_fd)\n        self._close_gate()",
        f"{_RULES}signals_go_to_the_jobs_processes_and_its_init_only",
    ),
    of(
        "2.6",
        "SIGTERM goes to the job's own processes",
        _SUPERVISOR,
        "pidfd.signal_descendants(self.pid, signal.SIGTERM, signal.SIGCONT)",
        "pidfd.kill(self._spawned.outer_fd, signal.SIGTERM)",
        f"{_RULES}signals_go_to_the_jobs_processes_and_its_init_only",
        f"{HOSTILE}[user-wall-sleep]",
    ),
    of(
        "2.6",
        "a bwrap that is killed early leaves no orphan",
        "sandbox/process/start.py",
        "for fd in pidfd.open_orphans(self.pipes.err_inode):",
        "for fd in ():",
        f"{PROCESS}sandbox_start.py::test_a_bwrap_that_is_killed_early_leaves_no_orphan[user-False-60]",
    ),
    of(
        "2.6",
        "nor a zombie",
        "sandbox/kernel/pidfd.py",
        "or (parent_pid == os.getpid() and _is_init(pid))",
        "",
        f"{PROCESS}sandbox_start.py::test_a_bwrap_that_is_killed_early_leaves_no_orphan[user-True-0]",
    ),
    of(
        "2.5",
        "who dies at the last moment is dead for certain",
        _SUPERVISOR,
        "                self._give_up_timer.cancel()\n",
        "                pass\n",
        f"{BOX}process/test_supervisor.py::test_a_process_that_dies_at_the_last_moment_is_certainly_dead",
    ),
    of(
        "2.5",
        "no descriptor's watch is taken for another's",
        "sandbox/kernel/pidfd.py",
        "    asyncio.get_running_loop().remove_reader(pidfd)\n",
        "    asyncio.get_running_loop().call_soon(asyncio.get_running_loop().remove_reader, pidfd)\n",
        f"{BOX}kernel/test_pidfd.py::test_closing_one_descriptor_ends_no_watch_of_the_next_with_its_number",
    ),
    of(
        "2.7",
        "the gate waits for `go`",
        "sandbox/process/chain.py",
        'read -r word && [ "$word" = go ] || exit 125; ',
        "",
        f"{_RULES}no_job_runs_if_the_agent_is_killed_before_the_gate_opens",
    ),
    of(
        "2.7",
        "the end of its input does not open it",
        "sandbox/process/chain.py",
        'read -r word && [ "$word" = go ] || exit 125; ',
        "read -r word; ",
        f"{_LAYERS}the_gate_of_a_killed_agent_ends_even_if_nothing_kills_it",
    ),
    of(
        "2.7",
        "stdin of the program is empty",
        "sandbox/process/chain.py",
        'exec "$@" </dev/null',
        'exec "$@"',
        f"{_CHAIN}the_gate_opens_at_go_and_gives_an_empty_stdin",
    ),
    of(
        "2.8",
        "chains are spawned on the event loop's thread",
        "sandbox/bubblewrap/backend.py",
        "            start.spawn(argv, fds.passed())",
        "            await sandbox.in_thread(start.spawn, argv, fds.passed())",
        f"{_RULES}chains_are_spawned_on_the_loops_thread_without_options_that_fork",
    ),
    of(
        "2.9",
        "RLIMIT_NPROC is set inside",
        _OPTIONS,
        '    command = [tools.sh, "-c", JOIN, "join", *join, "--"]',
        '    command = [tools.sh, "-c", "ulimit -p 48; " + JOIN, "join", *join, "--"]',
        f"{_RULES}many_processes_in_one_sandbox_do_not_count_in_another[user]",
    ),
    of(
        "2.10",
        "the seccomp filter",
        _OPTIONS,
        "    if fds.seccomp is not None:\n        options +=",
        "    if False:\n        options +=",
        f"{_CALLS}[user]",
        f"{HOSTILE}[root-socket-families]",
    ),
    of(
        "2.11",
        "the status is read to the newline",
        "sandbox/process/status_pipe.py",
        "(self._buffer + data).split",
        "data.split",
        f"{BOX}process/test_status_pipe.py::test_a_document_in_single_bytes_is_one_document",
    ),
    of(
        "2.11",
        "no exit code is `sandbox_error`",
        _SUPERVISOR,
        "        elif code is None:",
        "        elif False:",
        f"{_RULES}a_sandbox_whose_outer_bwrap_is_killed_is_a_broken_sandbox",
    ),
    of(
        "2.12",
        "nothing makes Python fork",
        _SPAWN,
        "env={},",
        "env={}, preexec_fn=os.getpid,",
        f"{_RULES}chains_are_spawned_on_the_loops_thread_without_options_that_fork",
    ),
)
