"""States of jobs, and why they failed or wait, as they are spelled on the wire."""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    """States of a job on the server. What may follow what: ``server.domain.states``."""

    QUEUED = "Queued"
    PROCESSING = "Processing"
    SUBMITTED = "Submitted"
    RUNNING = "Running"
    COMPLETED = "Completed"
    FAILED = "Failed"
    UNKNOWN = "Unknown"
    CANCELLED = "Cancelled"
    CLEANED = "Cleaned"


class Reason(StrEnum):
    """Why a job failed, for programs; a sentence for people stands beside it."""

    EXIT_CODE = "exit_code"
    TIMEOUT = "timeout"
    HEARTBEAT_TIMEOUT = "heartbeat_timeout"
    QUEUE_TIMEOUT = "queue_timeout"
    MEMORY_LIMIT = "memory_limit"
    PIDS_LIMIT = "pids_limit"
    CPU_LIMIT = "cpu_limit"
    DISK_LIMIT = "disk_limit"
    LOG_LIMIT = "log_limit"
    RESULTS_LIMIT = "results_limit"
    SANDBOX_ERROR = "sandbox_error"
    AGENT_ERROR = "agent_error"
    AGENT_UNREACHABLE = "agent_unreachable"
    AGENT_LOST = "agent_lost"
    NOT_OFFERED = "not_offered"
    SHUTDOWN = "shutdown"
    INVALID_BUNDLE = "invalid_bundle"
    CHILD_FAILED = "child_failed"
    DEPENDENCY_FAILED = "dependency_failed"


class WaitReason(StrEnum):
    """Why a job is not running yet, for programs; a sentence for people stands beside it."""

    NEXT = "next"
    """Nothing is in its way: it is sent in a moment."""
    EARLIER_JOBS = "earlier_jobs"
    """Jobs of the same user come first."""
    USER_QUOTA = "user_quota"
    SERVICE_QUOTA = "service_quota"
    NOT_BEFORE = "not_before"
    DEPENDENCY = "dependency"
    MAX_PARALLEL = "max_parallel"
    CHILDREN = "children"
    """A parent: for its children to end."""
    PAUSED = "paused"
    DISK_FULL = "disk_full"
    """Results wait for room on the server's disk: no job is sent until they are stored."""
    NO_AGENT = "no_agent"
    AGENTS_BUSY = "agents_busy"
    NO_SERVICE = "no_service"
