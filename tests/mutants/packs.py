"""Packs: what children of an array that share a sandbox start are protected by."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import PROCESS, Mutant, of

_DRIVER: Final = "sandbox/pack/driver.py"
_PROCESS: Final = "sandbox/pack/process.py"
_PACK: Final = "sandbox/pack/pack.py"
_PACKS: Final = f"{PROCESS}sandbox_packs.py::test_"
_UNIT: Final = "tests/unit/client_agent/run/test_packs.py::test_"

MUTANTS: Final[tuple[Mutant, ...]] = (
    of(
        "3",
        "the driver is the init of its namespace, which no job can kill",
        "sandbox/bubblewrap/command.py",
        'options.append("--as-pid-1")',
        "pass",
        f"{_PACKS}no_attempt_reaches_the_driver_or_its_socket",
    ),
    of(
        "3",
        "nor interrupt",
        _DRIVER,
        "trap '' INT; echo;",
        "echo;",
        f"{_PACKS}no_attempt_reaches_the_driver_or_its_socket",
    ),
    of(
        "3",
        "its socket is no job's",
        _DRIVER,
        """'exec "$@" ) </dev/null; '""",
        """'exec "$@" ); '""",
        f"{_PACKS}no_attempt_reaches_the_driver_or_its_socket",
    ),
    of(
        "3",
        "processes that an attempt left are killed, or end its sandbox",
        _PROCESS,
        "or not is_alone(self.pid):",
        "or False:",
        f"{_PACKS}processes_that_the_driver_did_not_kill_end_the_sandbox",
    ),
    of(
        "3",
        "an answer is believed only about the attempt that runs",
        _PROCESS,
        "if answer is not None and answer.is_of(self._launch.variables):",
        "if answer is not None:",
        f"{_PACKS}an_answer_that_is_not_about_the_attempt_ends_the_sandbox",
    ),
    of(
        "3",
        "the driver kills them",
        _DRIVER,
        "FERRYMAN_kill() { FERRYMAN_n=0; kill -9 -1;",
        "FERRYMAN_kill() { return 0; kill -9 -1;",
        f"{_PACKS}a_daemon_is_dead_when_its_attempt_has_ended_and_writes_into_no_sibling",
    ),
    of(
        "3",
        "files in memory are gone before the next attempt",
        _DRIVER,
        'FERRYMAN_empty() { "',
        'FERRYMAN_empty() { return 0; "',
        f"{_PACKS}what_an_attempt_leaves_in_memory_is_gone_before_the_next",
    ),
    of(
        "3",
        "and shared memory",
        _DRIVER,
        "FERRYMAN_ipc || FERRYMAN_c=ipc;",
        "FERRYMAN_ipc;",
        f"{_PACKS}what_cannot_be_cleaned_ends_the_sandbox",
    ),
    of(
        "3",
        "a driver that a job has changed starts nothing more",
        _PROCESS,
        "and self._attributes == attributes_of(self.pid)",
        "and attributes_of(self.pid) is not None",
        f"{_PACKS}a_job_that_changes_the_driver_gets_its_sandbox_ended",
    ),
    of(
        "3",
        "nor does one whose folders in memory have other modes",
        "sandbox/pack/process.py",
        "            *(_top_folder(",
        "            *(0 and _top_folder(",
        f"{_PACKS}what_cannot_be_cleaned_ends_the_sandbox",
    ),
    of(
        "3",
        "a job's directory is empty for the next",
        _PACK,
        "        empty_folder(fd)\n",
        "",
        f"{_PACKS}attempts_have_directories_logs_and_variables_of_their_own",
    ),
    of(
        "3",
        "pipes are as they were",
        _PACK,
        "            state.restore(pipe_end)",
        "            pass",
        f"{_PACKS}what_a_job_changed_of_its_logs_pipes_is_as_before_for_the_next",
    ),
    of(
        "4",
        "an attempt that was ended takes its sandbox with it",
        _PROCESS,
        "            and self._cause is None\n",
        "",
        f"{_PACKS}a_timeout_ends_one_attempt_and_its_sandbox_only",
    ),
    of(
        "3",
        "jobs that may control other processes are not packed",
        "run/sandboxes.py",
        " or grant.allow & UNSAFE:",
        ":",
        f"{_UNIT}jobs_that_may_control_other_processes_are_not_packed",
    ),
    of(
        "3",
        "a pack is one user's",
        "run/sandboxes.py",
        "        payload.user_id,\n",
        "",
        f"{_UNIT}what_differs_is_not_packed_together",
    ),
    of(
        "3",
        "and one array's",
        "run/sandboxes.py",
        "        payload.pack.batch,\n",
        "",
        f"{_UNIT}what_differs_is_not_packed_together",
    ),
    of(
        "5",
        "short children hold up nobody for long",
        "run/sandboxes.py",
        "_LOOK_AT if passes else 1",
        "_LOOK_AT",
        f"{_UNIT}short_tasks_go_on_past_another_payload_and_long_ones_do_not",
    ),
)
