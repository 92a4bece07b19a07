"""Every statement against the schema: parameters and columns have the names and types that Python relies on."""

import re
from importlib.resources import files

import asyncpg
import pytest

from pqrun.job.record import Job
from pqrun.store.statements import Statements, quote_identifier, render

_CLAIMED = {
    "lane": "int4",
    "place": "int8",
    "id": "int8",
    "claim_id": "int8",
    "queue": "text",
    "job_type": "text",
    "payload": "text",
    "priority": "int2",
    "attempts": "int4",
    "max_attempts": "int4",
    "run_after": "float8",
    "timeout_seconds": "float8",
    "locked_at": "float8",
    "dedupe_key": "text",
    "last_error": "text",
    "created_at": "float8",
    "lost": "int4",
    "releases": "int4",
    "snoozes": "int4",
    "backoff_seconds": "float8[]",
    "payload_version": "int4",
    "scheduled_for": "float8",
    "headers": "text",
}
_STORED = {
    "id": "int8",
    "claim_id": "int8",
    "queue": "text",
    "job_type": "text",
    "payload": "text",
    "priority": "int2",
    "attempts": "int4",
    "max_attempts": "int4",
    "run_after": "timestamptz",
    "timeout_seconds": "float8",
    "locked_at": "timestamptz",
    "dedupe_key": "text",
    "last_error": "text",
    "created_at": "timestamptz",
    "lost": "int4",
    "releases": "int4",
    "snoozes": "int4",
    "backoff_seconds": "float8[]",
    "payload_version": "int4",
    "scheduled_for": "timestamptz",
    "headers": "text",
    "status": "text",
    "locked_by": "text",
    "updated_at": "timestamptz",
    "finished_at": "timestamptz",
    "duration_ms": "int8",
    "result": "text",
    "cancel_requested_at": "timestamptz",
}
_TAKEN_BACK = {
    "id": "int8",
    "claim_id": "int8",
    "job_type": "text",
    "queue": "text",
    "attempts": "int4",
    "max_attempts": "int4",
    "lost": "int4",
    "releases": "int4",
    "worker_id": "text",
}
_JSON = {"payload_json": "payload", "headers_json": "headers", "result_json": "result"}
_ATTEMPT = {
    "id": "int8",
    "job_id": "int8",
    "job_type": "text",
    "queue": "text",
    "number": "int4",
    "kind": "text",
    "started_at": "timestamptz",
    "ended_at": "timestamptz",
    "duration_ms": "int8",
    "worker": "text",
    "status_after": "text",
    "exception_type": "text",
    "message": "text",
    "traceback": "text",
    "frame": "text",
    "fingerprint": "text",
}
_GROUP = {
    "fingerprint": "text",
    "job_type": "text",
    "kind": "text",
    "exception_type": "text",
    "frame": "text",
    "message": "text",
    "count": "int8",
    "first_seen": "timestamptz",
    "last_seen": "timestamptz",
    "job_id": "int8",
    "attempt_id": "int8",
}
_DONE = {"id": "int8", "is_requested": "bool", "messages": "int8"}
_WAITING = {"id": "int8", "job_type": "text", "payload_version": "int4", "payload": "text"}

EXPECTED: dict[str, tuple[str, dict[str, str]]] = {
    "add_audit": ("text text text int8 int8 int8 int8 text", {"id": "int8"}),
    "add_operation": ("text text text text int8[]", {"id": "int8"}),
    "add_schedule": (
        "text text text text int2 int4 float8 text float8[] text text float8 text text float8 int4 timestamptz bool",
        {"name": "text", "told": "bool"},
    ),
    "advance_operation": ("int8 int8 int8 int8 int8 text text", {"is_stopped": "bool"}),
    "add_statistics": ("float8[] int8[] text[] text[] text[] text[] text[]", {"clock": "float8"}),
    "announce": ("text[] int2[] bool", {"told": "int8"}),
    "audit_job": (
        "int8 int4",
        {
            "id": "int8",
            "at": "timestamptz",
            "actor": "text",
            "action": "text",
            "target": "text",
            "job_id": "int8",
            "made_id": "int8",
            "operation_id": "int8",
            "jobs": "int8",
            "outcome": "text",
        },
    ),
    "await": ("text", {"told": "bool"}),
    "beat": (
        "int8",
        {
            "id": "int8",
            "beat": "int8",
            "worker_id": "text",
            "has_lock": "bool",
            "is_self": "bool",
            "wanted": "text",
            "pauses": "text",
        },
    ),
    "begin_selection": ("", {"now": "timestamptz", "last_id": "int8"}),
    "bury": ("int8[] int8[]", {"id": "int8", "worker_id": "text"}),
    "cancel": ("int8", {"outcome": "text", "told": "int8", "announced": "int8"}),
    "cancel_many": ("int8[] text[]", _DONE),
    "claim": ("text[] int2[] int8[] text[] int4 int4 int8 text int4 text[] int8[]", _CLAIMED),
    "claim_suspect": ("text[] text[] int8 text int8[]", _CLAIMED),
    "count_active": (
        "int4",
        {
            "looked": "int8",
            "now": "timestamptz",
            "queue": "text",
            "job_type": "text",
            "status": "text",
            "jobs": "int8",
            "again": "int8",
            "oldest_due": "timestamptz",
        },
    ),
    "count_due": ("text[] text[]", {"due": "int8"}),
    "count_operation": ("int8 int8 int8 int8[] bool text", {"id": "int8"}),
    "count_finished": (
        "float8 int4",
        {
            "looked": "int8",
            "queue": "text",
            "job_type": "text",
            "status": "text",
            "jobs": "int8",
            "duration_ms": "int8",
        },
    ),
    "count_waiting": (
        "int8 int4 int4",
        {
            "job_type": "text",
            "payload_version": "int4",
            "queue": "text",
            "jobs": "int8",
            "last_id": "int8",
            "ids": "int8[]",
        },
    ),
    "declare_schedule": (
        "text text text text int2 int4 float8 text float8[] text text float8 text text float8 int4 timestamptz text text bool",
        {"change": "text", "told": "int8"},
    ),
    "delete_many": ("int8[] text[]", _DONE),
    "deregister": ("int8", {"id": "int8", "told": "bool"}),
    "drop_connections": ("text int8", {"ended": "int8"}),
    "edit_schedule": (
        "text text text text int2 int4 float8 text float8[] text text float8 text text float8 int4 timestamptz int8",
        {"name": "text", "told": "bool"},
    ),
    "end_operation": ("int8 text text text", {"id": "int8"}),
    "enqueue": (
        "text[] text[] text[] int2[] int4[] float8[] text[] text[] float8[] text[] int4[] text[] bool",
        {"position": "int4", "id": "int8"},
    ),
    "enqueue_one": (
        "text text text int2 int4 float8 text text float8 text int4 text bool",
        {"position": "int4", "id": "int8", "told": "text"},
    ),
    "find_active": ("text[] text[]", {"position": "int4", "id": "int8"}),
    "find_attempts": ("int8", _ATTEMPT),
    "find_claim": ("int8 int8", {"status": "text"}),
    "find_due_schedules": (
        "text[] int4 text text[]",
        {
            "name": "text",
            "cron": "text",
            "tz": "text",
            "every_seconds": "float8",
            "catch_up": "text",
            "jitter_seconds": "float8",
            "next_at": "timestamptz",
            "revision": "int8",
            "clock": "timestamptz",
            "next_in_seconds": "float8",
            "has_dropped": "bool",
        },
    ),
    "find_ends": ("int8[]", {"id": "int8", "status": "text", "result": "text", "last_error": "text"}),
    "find_error_groups": ("text[] text timestamptz int8 int4 int4 int4 float8", _GROUP),
    "find_forgotten": ("int8 int8[] int4", _CLAIMED),
    "find_group_jobs": ("text int8 int4", {"job_id": "int8", "last_id": "int8", "looked": "int8"}),
    "keep_group_jobs": ("text int8[]", {"job_id": "int8"}),
    "count_group_hours": ("text[] int4", {"fingerprint": "text", "hour": "int4", "attempts": "int4", "is_cut": "bool"}),
    "count_old": ("float8 int4", {"jobs": "int8", "oldest": "timestamptz"}),
    "prune_audit": ("float8 int4", {"is_mine": "bool", "deleted": "int4"}),
    "see_surroundings": (
        "int8 text int4",
        {
            "now": "timestamptz",
            "worker": "int8",
            "beat_seconds": "float8",
            "is_dead": "bool",
            "names": "text[]",
            "is_last": "bool",
        },
    ),
    "see_indexes": (
        "text",
        {"name": "name", "table_name": "name", "bytes": "int8", "scans": "int8", "is_valid": "bool"},
    ),
    "find_lost": ("int4", _TAKEN_BACK),
    "find_operations": (
        "int8 int8 int4",
        {
            "id": "int8",
            "actor": "text",
            "action": "text",
            "arguments": "text",
            "query": "text",
            "state": "text",
            "matched": "int8",
            "looked": "int8",
            "is_cut": "bool",
            "position": "int8",
            "done": "int8",
            "requested": "int8",
            "reasons": "text",
            "refusals": "text",
            "error": "text",
            "created_at": "timestamptz",
            "started_at": "timestamptz",
            "ended_at": "timestamptz",
            "stop_asked_at": "timestamptz",
            "beat_seconds": "float8",
            "now": "timestamptz",
        },
    ),
    "find_orphans": ("float8 float8 int4", _TAKEN_BACK),
    "find_overdue": ("float8 int4", _TAKEN_BACK | {"timeout_seconds": "float8", "backoff_seconds": "float8[]"}),
    "find_pauses": ("", {"kind": "text", "name": "text", "paused_at": "timestamptz", "reason": "text"}),
    "find_queues": (
        "int4 int4",
        {
            "name": "text",
            "ready": "int8",
            "scheduled": "int8",
            "running": "int8",
            "failing": "int8",
            "is_ready_cut": "bool",
            "is_scheduled_cut": "bool",
            "is_running_cut": "bool",
            "oldest_ready_seconds": "float8",
            "paused_at": "timestamptz",
            "reason": "text",
            "workers": "int8",
            "slots": "int8",
            "paused_workers": "int8",
        },
    ),
    "find_stacks": ("int8[] timestamptz", {"id": "int8", "stacks": "text", "stacks_at": "timestamptz"}),
    "find_longest": (
        "int4 int4",
        {
            "now": "timestamptz",
            "id": "int8",
            "job_type": "text",
            "queue": "text",
            "attempts": "int4",
            "max_attempts": "int4",
            "locked_by": "text",
            "timeout_seconds": "float8",
            "running_seconds": "float8",
        },
    ),
    "find_notable": (
        "text int4 int4 int4",
        {"kind": "text", "id": "int8", "looked": "int8", "since": "timestamptz"},
    ),
    "find_schedules": (
        "text[]",
        {
            "name": "text",
            "job_type": "text",
            "payload": "text",
            "queue": "text",
            "priority": "int2",
            "max_attempts": "int4",
            "timeout_seconds": "float8",
            "dedupe_key": "text",
            "backoff_seconds": "float8[]",
            "cron": "text",
            "tz": "text",
            "every_seconds": "float8",
            "catch_up": "text",
            "overlap": "text",
            "jitter_seconds": "float8",
            "payload_version": "int4",
            "next_at": "timestamptz",
            "last_at": "timestamptz",
            "last_job_id": "int8",
            "paused_at": "timestamptz",
            "orphaned_at": "timestamptz",
            "origin": "text",
            "app": "text",
            "code_definition": "text",
            "revision": "int8",
            "created_at": "timestamptz",
            "updated_at": "timestamptz",
            "clock": "timestamptz",
        },
    ),
    "find_progress": (
        "int8[]",
        {
            "id": "int8",
            "status": "text",
            "claim_id": "int8",
            "attempt": "int4",
            "value": "float8",
            "message": "text",
            "reported_at": "timestamptz",
        },
    ),
    "find_shapes": ("text[]", {"job_type": "text", "version": "int4", "shape": "text"}),
    "find_unserved": ("int4 int4", {"queue": "text", "job_type": "text"}),
    "find_waiting": ("int8[]", _WAITING),
    "fire_schedules": (
        "text[] timestamptz[] int8[] timestamptz[] text[] timestamptz[] timestamptz[]",
        {"name": "text", "is_busy": "bool", "jobs": "int4", "last_job_id": "int8"},
    ),
    "forget_workers": ("float8", {"id": "int8"}),
    "get": ("int8", _STORED),
    "get_many": ("int8[]", _STORED),
    "get_lines": (
        "int8[]",
        {
            "id": "int8",
            "job_type": "text",
            "queue": "text",
            "status": "text",
            "priority": "int2",
            "attempts": "int4",
            "max_attempts": "int4",
            "created_at": "timestamptz",
            "run_after": "timestamptz",
            "locked_at": "timestamptz",
            "finished_at": "timestamptz",
            "duration_ms": "int8",
            "locked_by": "text",
            "dedupe_key": "text",
            "last_error": "text",
            "snoozes": "int4",
            "cancel_requested_at": "timestamptz",
            "now": "timestamptz",
        },
    ),
    "hold_lock": ("int8", {"has_lock": "bool"}),
    "inspect_rights": ("", {"name": "text", "privilege": "text"}),
    "inspect_server": (
        "",
        {
            "version": "text",
            "version_number": "int4",
            "is_standby": "bool",
            "clock": "float8",
            "max_connections": "int4",
            "reserved_connections": "int4",
            "connections": "int8",
            "has_autovacuum": "bool",
            "has_counts": "bool",
            "naptime_seconds": "float8",
            "idle_timeout_seconds": "float8",
            "is_durable": "bool",
            "role": "text",
            "role_limit": "int4",
            "database_limit": "int4",
        },
    ),
    "inspect_snapshots": (
        "float8 int4",
        {"kind": "text", "who": "text", "detail": "text", "seconds": "float8", "transactions": "int4"},
    ),
    "inspect_strays": ("int4", {"jobs": "int8", "first_id": "int8"}),
    "inspect_tables": (
        "",
        {
            "name": "text",
            "bytes": "int8",
            "live_rows": "int8",
            "dead_rows": "int8",
            "vacuumed_seconds": "float8",
            "is_left_alone": "bool",
        },
    ),
    "inspect_workers": (
        "",
        {
            "id": "int8",
            "worker_id": "text",
            "hostname": "text",
            "pid": "int4",
            "queues": "text[]",
            "job_types": "text[]",
            "has_lock": "bool",
            "is_dead": "bool",
            "beat_seconds": "float8",
            "started_seconds": "float8",
            "is_older_than_schema": "bool",
            "version": "text",
        },
    ),
    "inspect_many": ("int8[]", {"id": "int8", "status": "text", "holder": "int8"}),
    "leave_turn": ("text int8", {"duty": "text"}),
    "explain": (
        "int8 float8 int4 int4",
        {
            "id": "int8",
            "status": "text",
            "job_type": "text",
            "queue": "text",
            "priority": "int2",
            "attempts": "int4",
            "max_attempts": "int4",
            "lost": "int4",
            "last_error": "text",
            "payload_version": "int4",
            "run_after": "timestamptz",
            "locked_at": "timestamptz",
            "locked_by": "text",
            "finished_at": "timestamptz",
            "cancel_requested_at": "timestamptz",
            "due_in_seconds": "float8",
            "running_seconds": "float8",
            "holder_hostname": "text",
            "holder_pid": "int4",
            "is_holder_known": "bool",
            "is_holder_dead": "bool",
            "holder_beat_age_seconds": "float8",
            "living": "int8",
            "serving_task": "int8",
            "serving_queue": "int8",
            "serving": "int8",
            "serving_paused": "int8",
            "serving_holds": "int8",
            "served_tasks": "text[]",
            "served_queues": "text[]",
            "newest_version": "int4",
            "before": "int8",
            "queue_paused_at": "timestamptz",
            "queue_pause_reason": "text",
            "task_paused_at": "timestamptz",
            "task_pause_reason": "text",
        },
    ),
    "list_workers": (
        "float8 int4",
        {
            "id": "int8",
            "worker_id": "text",
            "hostname": "text",
            "pid": "int4",
            "queues": "text[]",
            "job_types": "text[]",
            "started_at": "timestamptz",
            "beat_at": "timestamptz",
            "dead_at": "timestamptz",
            "beat_age_seconds": "float8",
            "is_alive": "bool",
            "running": "int8",
            "concurrency": "int4",
            "slots": "text",
            "wanted": "text",
            "version": "text",
            "fetching": "bool",
        },
    ),
    "list_active": ("text[] int4", _STORED | {"in_seconds": "float8"}),
    "list_claims": ("int8", {"id": "int8"}),
    "list_migrations": ("", {"version": "int4", "name": "text", "applied_at": "timestamptz"}),
    "list_running": (
        "int8 int4",
        {
            "id": "int8",
            "job_type": "text",
            "queue": "text",
            "attempts": "int4",
            "max_attempts": "int4",
            "locked_at": "timestamptz",
            "timeout_seconds": "float8",
            "cancel_requested_at": "timestamptz",
        },
    ),
    "list_running_in": (
        "text int4 int4",
        {
            "id": "int8",
            "job_type": "text",
            "queue": "text",
            "attempts": "int4",
            "max_attempts": "int4",
            "locked_at": "timestamptz",
            "timeout_seconds": "float8",
            "cancel_requested_at": "timestamptz",
            "worker": "int8",
            "locked_by": "text",
        },
    ),
    "measure_queues": (
        "int4 int4",
        {"queue": "text", "ready": "int8", "scheduled": "int8", "running": "int8", "oldest_ready_seconds": "float8"},
    ),
    "note_shapes": ("text[] int4[] text[]", {"job_type": "text", "version": "int4"}),
    "orphan_schedules": ("text text[] int8", {"name": "text"}),
    "page_audit": (
        "int8 int4",
        {
            "id": "int8",
            "at": "timestamptz",
            "actor": "text",
            "action": "text",
            "target": "text",
            "job_id": "int8",
            "made_id": "int8",
            "operation_id": "int8",
            "jobs": "int8",
            "outcome": "text",
        },
    ),
    "page_jobs": (
        "text int8 int8 timestamptz int4 int8[] text[] text[] text[] int2[] text[] text text"
        + " timestamptz" * 6
        + " text[] text[] int4 int4 int4",
        {"id": "int8", "finished_at": "timestamptz", "looked": "int8", "matched": "int8", "newest": "timestamptz"},
    ),
    "page_waiting": ("int8 int8 int4 int8 text[]", _WAITING),
    "pause": ("text text text", {"name": "text", "told": "bool"}),
    "pause_schedule": ("text", {"name": "text"}),
    "probe_lock": ("int8[]", {"id": "int8"}),
    "promote": (
        "timestamptz int4",
        {
            "queue": "text",
            "priority": "int2",
            "jobs": "int4",
            "last_run_after": "timestamptz",
            "suspect": "bool",
            "next_in_seconds": "float8",
            "clock": "float8",
        },
    ),
    "prune": ("float8 int4", {"is_mine": "bool", "deleted": "int4"}),
    "prune_statistics": ("float8 int4", {"is_mine": "bool", "deleted": "int4"}),
    "read_statistics": (
        "timestamptz timestamptz float8 text text text",
        {
            "at": "timestamptz",
            "key": "text",
            **dict.fromkeys(
                ("started", "arrived", "done", "failed", "retrying", "snoozed", "cancelled", "lost", "released"), "int8"
            ),
            "run_ms": "float8",
            "wait_ms": "float8",
            "run_counts": "int8[]",
            "wait_counts": "int8[]",
        },
    ),
    "prune_attempts": ("int8 int4", {"is_mine": "bool", "deleted": "int4", "last_job_id": "int8"}),
    "read_pulse": ("text", {"name": "name", "writes": "int8"}),
    "register": ("text text int4 text[] text[] text[] int4 text bool text", {"id": "int8"}),
    "remove_schedule": ("text", {"app": "text", "removed": "bool"}),
    "relane_many": ("int8[] text[] text int2", _DONE),
    "renew": ("int8[] int8[]", {"id": "int8", "claim_id": "int8", "is_cancelled": "bool"}),
    "report_progress": ("int8[] int8[] float8[] text[]", {"id": "int8", "claim_id": "int8", "is_written": "bool"}),
    "reschedule": ("int8 timestamptz float8", {"id": "int8", "status": "text", "messages": "int8"}),
    "resume": ("text text", {"name": "text", "told": "bool"}),
    "resume_schedule": ("text timestamptz int8", {"name": "text", "told": "bool"}),
    "retry": ("int8 bool", {"job_type": "text", "dedupe_key": "text", "retried": "bool", "told": "int8"}),
    "skip_schedule": ("text timestamptz int8 timestamptz", {"name": "text"}),
    "run_schedule": ("text", {"id": "int8", "busy_id": "int8", "holder_id": "int8", "told": "int8"}),
    "retry_many": ("int8[] text[]", _DONE),
    "see_ages": ("text float8[] int4", {"bucket": "int4", "jobs": "int8"}),
    "see_database": (
        "",
        {
            "now": "timestamptz",
            "version": "text",
            "database": "text",
            "max_connections": "int4",
            "is_standby": "bool",
            "notify_usage": "float8",
            "autovacuum": "bool",
            "connections": "int8",
            "longest_seconds": "float8",
            "longest_application": "text",
            "longest_state": "text",
            "longest_pid": "int4",
            "waiting": "int8",
        },
    ),
    "see_tables": (
        "text",
        {
            "name": "name",
            "bytes": "int8",
            "index_bytes": "int8",
            "live": "int8",
            "dead": "int8",
            "vacuumed_at": "timestamptz",
            "analyzed_at": "timestamptz",
            "age": "int8",
        },
    ),
    "serve": ("int8 text[] int4 text bool", {"id": "int8"}),
    "tell_stacks": ("int8 text", {"id": "int8"}),
    "settle": (
        "text text text text[] text[] text float8[] int4[] int4[] int4[] int4[] int8[] text[] text[] text[] text[] int4",
        {
            "id": "int8",
            "claim_id": "int8",
            "status": "text",
            "due_in_seconds": "float8",
            "ended": "int8",
            "messages": "int8",
        },
    ),
    "settle_done": (
        "text text text[] text int8[]",
        {"id": "int8", "claim_id": "int8", "ended": "int8", "messages": "int8"},
    ),
    "shift_times": ("float8", {"jobs": "int8", "told": "int8"}),
    "start_operation": (
        "int8 int8 float8",
        {
            "id": "int8",
            "actor": "text",
            "action": "text",
            "arguments": "text",
            "query": "text",
            "ids": "int8[]",
            "position": "int8",
        },
    ),
    "stop_operation": ("int8 float8 text", {"id": "int8"}),
    "survey": ("text[] int4", {"queue": "text", "priority": "int2", "suspect": "bool"}),
    "sweep_progress": ("int8 int4", {"last_id": "int8", "looked": "int4", "deleted": "int4"}),
    "take_ids": ("int4", {"id": "int8"}),
    "take_turn": ("text int8 float8", {"holder": "int8"}),
    "want": ("int8[] text", {"id": "int8", "asked_at": "timestamptz", "told": "bool"}),
    "touch_schedules": ("text[] text[] text", {"name": "text"}),
}
"""File → types of its parameters, in order; and name → type of its columns."""


def template(name: str) -> str:
    return (files("pqrun.store") / "sql" / f"{name}.sql").read_text("utf-8")


def test_the_table_lists_every_file() -> None:
    assert Statements("pqrun").names() == sorted(EXPECTED)


async def test_parameters_and_columns_are_as_expected(connection: asyncpg.Connection) -> None:
    found = {}
    for name in EXPECTED:
        prepared = await connection.prepare(Statements("pqrun")[name])
        types = " ".join(parameter.name for parameter in prepared.get_parameters())
        found[name] = types, {attribute.name: attribute.type.name for attribute in prepared.get_attributes()}
        assert {attribute.type.schema for attribute in prepared.get_attributes()} == {"pg_catalog"}
    assert found == EXPECTED


async def test_files_are_valid_in_psql_as_they_stand(connection: asyncpg.Connection) -> None:
    for name in EXPECTED:
        await connection.prepare(template(name))


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_statement_names_each_parameter_in_its_head_and_has_no_stray_schema(name: str) -> None:
    text = template(name)
    head = "".join(line for line in text.splitlines() if line.startswith("--"))
    for number in range(1, len(EXPECTED[name][0].split()) + 1):
        assert f"${number} " in head
    code = "\n".join(line.partition("--")[0] for line in render(text, "elsewhere").splitlines())
    assert "pqrun" not in code
    assert not text.rstrip().endswith(";")


def test_identifiers_are_quoted() -> None:
    assert quote_identifier('a"b') == '"a""b"'
    assert render("SELECT 1 FROM /*$schema*/pqrun.jobs", 'a"b') == 'SELECT 1 FROM "a""b".jobs'
    assert render("/*$literal*/'pqrun.s'", "a'b") == "'\"a''b\".s'"
    assert render("/*$channel*/'pqrun:done'", "a'b\\c") == " E'a''b\\\\c:done'"


def test_a_replaced_name_is_not_expanded_again() -> None:
    assert render("/*$schema*/pqrun.jobs", "/*schema*/pqrun") == '"/*schema*/pqrun".jobs'


def test_the_columns_of_a_claim_and_of_a_look_are_the_fields_of_a_job_in_their_order() -> None:
    fields = [_JSON.get(name, name.lstrip("_")) for name in Job.__struct_fields__]
    assert list(_CLAIMED)[2:] == fields[: len(_CLAIMED) - 2]
    assert list(_STORED) == fields


MOVERS = ("cancel", "cancel_many", "retry", "retry_many", "settle", "settle_done")
"""Statements that take a row out of one part and put it into the other."""

NOT_MOVED = {
    "cancel": {"claim_id", "worker", "locked_at", "locked_by", "duration_ms", "result", "cancel_requested_at"},
    "retry": {
        *(
            "claim_id",
            "worker",
            "locked_at",
            "locked_by",
            "duration_ms",
            "result",
            "finished_at",
            "cancel_requested_at",
        ),
        *("attempts", "lost", "releases", "snoozes", "run_after", "place", "updated_at"),
    },
    "settle": set[str](),
    "settle_done": set[str](),
}
"""What a cancelled job never had, and what a retry begins anew."""


@pytest.mark.parametrize("name", MOVERS)
async def test_a_row_that_moves_keeps_every_column(connection: asyncpg.Connection, name: str) -> None:
    query = (
        "SELECT attname FROM pg_attribute WHERE attrelid = 'pqrun.jobs'::regclass AND attnum > 0 AND NOT attisdropped"
    )
    columns = {row["attname"] for row in await connection.fetch(query)}
    (into,) = re.findall(r"INSERT INTO \S+\.jobs_\w+(?: AS a)?\s*\(([^)]*)\)", Statements("pqrun")[name])
    assert columns - set(into.replace("\n", " ").replace(" ", "").split(",")) <= NOT_MOVED[name.removesuffix("_many")]
