"""What lies around the launch: folders, records, the self-test, and what operators open."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import BOX, PROCESS, Mutant, of

_WORK_FOLDERS: Final = "sandbox/kernel/work_folders.py"
_SELFTEST: Final = "sandbox/bubblewrap/selftest.py"
_LAYERS: Final = f"{PROCESS}sandbox_layers.py::test_"
_OUTSIDE: Final = (
    f"{PROCESS}sandbox_outside.py::test_other_users_of_the_host_cannot_reach_a_jobs_files"
)
_QUARANTINE: Final = f"{PROCESS}sandbox_quarantine.py::test_"
_SELF_TEST_FAILS: Final = f"{_LAYERS}a_sandbox_that_does_not_isolate_fails_its_self_test"
_INSIDE: Final = f"{PROCESS}sandbox_inside.py::test_"
_SETTINGS: Final = "tests/unit/client_agent/settings/test_agent.py::test_"
_SELF_TEST_UNIT: Final = f"{BOX}bubblewrap/test_selftest.py::test_"
_SOFT: Final = f"{BOX}limits/test_soft.py::test_"

_SOURCES: Final = "tests/unit/client_agent/intake/test_mount_sources.py::test_"

AROUND: Final[tuple[Mutant, ...]] = (
    of(
        "3",
        "a file server that is gone refuses only services that use it",
        "intake/admission.py",
        "if not self._sources[path].exists)",
        "if not all(source.exists for source in self._sources.values()))",
        f"{_SOURCES}a_file_server_that_does_not_answer_blocks_nothing",
    ),
    of(
        "3",
        "and nobody waits for it twice",
        "intake/admission.py",
        "            if not source.unresponsive and not await",
        "            if not await",
        f"{_SOURCES}a_file_server_that_does_not_answer_blocks_nothing",
    ),
    of(
        "1",
        "a sandbox that does not hold keeps the agent from starting",
        _SELFTEST,
        "    if failed:\n",
        "    if False:\n",
        f"{_SELF_TEST_FAILS}",
    ),
    of(
        "1",
        "a setuid bwrap is refused",
        _SELFTEST,
        "    if path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID):",
        "    if False:",
        f"{_SELF_TEST_UNIT}a_setuid_binary_is_refused",
    ),
    of(
        "1",
        "a bwrap that does not know the options is refused",
        _SELFTEST,
        "    if missing:\n",
        "    if False:\n",
        f"{_SELF_TEST_UNIT}an_old_binary_is_refused",
    ),
    of(
        "3",
        "the folders of jobs are closed to everybody else on the host",
        _WORK_FOLDERS,
        "            self.work.chmod(0o700)\n",
        "            self.work.chmod(0o711)\n",
        f"{_OUTSIDE}[user-True-bubblewrap]",
        f"{_OUTSIDE}[root-False-bubblewrap]",
    ),
    of(
        "3",
        "a job cannot take over its init through `/proc/1`",
        "sandbox/bubblewrap/command.py",
        '    options += ["--perms", "0555", "--size", "4096", "--tmpfs", INIT_PROC]\n',
        '    options += ["--tmpfs", "/var/lib"]\n    INIT_PROC = "/var/lib"\n',
        f"{PROCESS}sandbox_attacks.py::test_the_init_cannot_be_stopped_or_seen_and_holds_nothing_of_the_agents",
        f"{_LAYERS}a_job_cannot_control_its_init_and_dies_with_its_agent",
    ),
    of(
        "3",
        "the gate opens only when the sandbox dies with its agent",
        "sandbox/process/start.py",
        "            if filtered is None:\n                return False\n",
        "            if not filtered:\n                return True\n",
        f"{_LAYERS}the_gate_opens_only_after_the_init_has_its_parent_death_signal",
    ),
    of(
        "3",
        "a record of the init is made before the gate can open",
        "sandbox/process/start.py",
        "        self._record(init)\n",
        "",
        f"{_LAYERS}the_recorded_init_of_a_killed_agent_is_killed_at_the_next_start",
    ),
    of(
        "3",
        "a record of a process that is another by now kills nobody",
        "sandbox/kernel/pidfd.py",
        "fields is not None and fields[19] == start_time",
        "fields is not None",
        f"{PROCESS}sandbox_isolation.py::test_a_restart_in_the_middle_clears_everything",
    ),
    of(
        "3",
        "clearing a cgroup kills nobody whose pid was used again",
        "sandbox/kernel/pidfd.py",
        "pidfds.keys() & set(listed()):",
        "pidfds:",
        f"{BOX}kernel/test_pidfd.py::test_only_processes_that_are_still_listed_are_killed",
    ),
    of(
        "3",
        "a clearing that failed is tried again before anything starts",
        "sandbox/host_sandbox.py",
        "            if self.cleared:\n                return\n",
        "            if self.cleared:\n                return\n            self.cleared = True\n",
        f"{_QUARANTINE}a_clear_that_failed_is_tried_again_before_a_job_starts",
    ),
    of(
        "3",
        "nothing starts during a clearing",
        "sandbox/host_sandbox.py",
        "        async with self._clearing:\n            if self.cleared:",
        "        if True:\n            if self.cleared or self._clearing.locked():",
        f"{_QUARANTINE}no_job_starts_before_a_running_clear_has_ended",
    ),
    of(
        "3",
        "a folder that was kept apart is removed once its processes are dead",
        "sandbox/workspace.py",
        "        self._resources.remove_when_dead(self)\n",
        "",
        f"{_QUARANTINE}a_quarantined_attempt_is_removed_when_its_processes_are_dead",
    ),
    of(
        "3",
        "and not before",
        "sandbox/workspace.py",
        "            return bool(poll.poll(0))\n",
        "            return True\n",
        f"{_QUARANTINE}a_quarantined_attempt_is_removed_when_its_processes_are_dead",
    ),
    of(
        "3",
        "nothing of the agent's own lies where jobs can look",
        "settings/agent.py",
        "                if path is not None and path.resolve().is_relative_to(",
        "                if path is None and Path().resolve().is_relative_to(",
        f"{_SETTINGS}data_of_the_agent_cannot_be_where_jobs_can_read",
        f"{_SETTINGS}the_settings_file_is_hidden_from_jobs_too",
    ),
    of(
        "3",
        "with the host's network there are no Unix sockets",
        "sandbox/bubblewrap/seccomp.py",
        "        refused = {AF_UNIX} if network and ",
        "        refused = {AF_UNIX} if False and ",
        f"{_INSIDE}sockets_of_the_host_are_reached_only_with_its_network",
        f"{BOX}bubblewrap/test_seccomp.py::test_with_the_hosts_network_there_are_no_unix_sockets",
    ),
    of(
        "3",
        "arguments are words, never text of a shell",
        "sandbox/process/chain.py",
        'exec "$@" </dev/null',
        'eval exec "$*" </dev/null',
        f"{_INSIDE}variables_and_arguments_are_data",
    ),
    of(
        "4",
        "soft: files in memory count",
        "sandbox/limits/soft.py",
        "        files += usage.deleted_file_bytes(init, usage.memfd_device())\n",
        "",
        f"{PROCESS}sandbox_attacks.py::test_files_in_memory_count_if_no_process_maps_them[user]",
    ),
    of(
        "4",
        "soft: a job that is much to look at does not hold up the agent",
        "sandbox/limits/soft.py",
        "await asyncio.to_thread(work, *args, **kwargs)",
        "work(*args, **kwargs)",
        f"{_SOFT}slow_samples_do_not_block_the_event_loop",
    ),
    of(
        "4",
        "soft: looking takes a part of the time only",
        "sandbox/limits/soft.py",
        "ended + self._pause_factor * (ended - started)",
        "ended",
        f"{_SOFT}after_a_long_sample_there_is_a_pause",
    ),
)
