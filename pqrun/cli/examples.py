"""The examples that ``--help`` of each command shows; docs/cli.md has them too."""

from collections.abc import Mapping
from typing import Final

__all__ = ["EXAMPLES", "epilog"]

EXAMPLES: Final[Mapping[str, tuple[str, ...]]] = {
    "bench": ("pqrun bench --jobs 50000 --concurrency 10",),
    "cancel": (
        "pqrun cancel 17 18",
        "pqrun cancel --queue mail --payload user_id=7",
        "pqrun cancel --query 'task:send_* state:ready' --yes",
    ),
    "check": ("pqrun check shop:jobs", "pqrun check shop:jobs --strict --json"),
    "defer": (
        "pqrun defer shop:jobs send_email user_id=7 template=welcome",
        "pqrun defer shop:jobs send_email user_id=7 --in 5m --queue mail",
        "pqrun defer shop:jobs send_email --json-payload '{\"user_id\": 7}' --wait --timeout 30",
    ),
    "delete": (
        "pqrun delete --state cancelled --before 7d",
        "pqrun delete --query 'queue:mail state:scheduled' --waiting --dry-run",
    ),
    "demo": ("pqrun demo",),
    "dev": ("pqrun dev app:jobs", "pqrun dev shop:jobs --concurrency 10 --no-reload", "pqrun dev app:jobs --port 9000"),
    "doctor": ("pqrun doctor", "pqrun doctor --json --strict"),
    "init": ("pqrun init", "pqrun init shop"),
    "jobs": (
        "pqrun jobs",
        "pqrun jobs 'state:failed task:send_* since:1h'",
        "pqrun jobs 'payload.user_id:42 error:\"no such card\"' --limit 10 --json",
        "pqrun jobs queue:mail state:ready --count",
    ),
    "migrate": ("pqrun migrate", "pqrun migrate --sql > pqrun.sql"),
    "move": ("pqrun move --queue mail --type send_email --to slow",),
    "prioritize": ("pqrun prioritize --query 'payload.customer:acme' --to 10",),
    "pause": ('pqrun pause --queue mail --reason "provider down"', "pqrun pause --task send_email"),
    "queues": ("pqrun queues", "pqrun queues --json"),
    "resume": ("pqrun resume --queue mail",),
    "retry": (
        "pqrun retry 17",
        "pqrun retry --state failed --type send_email --since 2h --dry-run",
        "pqrun retry --query 'state:failed error:\"no such card\"'",
    ),
    "schedules": ("pqrun schedules list", "pqrun schedules pause nightly"),
    "show": ("pqrun show 17", "pqrun show 17 --payload --traceback"),
    "tasks": ("pqrun tasks shop:jobs", "pqrun tasks shop:jobs --schema send_email"),
    "top": ("pqrun top", "pqrun top --once", "pqrun top --json"),
    "watch": ("pqrun watch 17", "pqrun watch 17 --json --timeout 600"),
    "web": ("pqrun web shop:jobs --role admin", "pqrun web shop:jobs --user ann --password-file password --admin ann"),
    "why": ("pqrun why 17", "pqrun why 17 --app shop:jobs --json"),
    "worker": ("pqrun worker shop:jobs --concurrency 10", "pqrun worker shop:jobs --queues default:10,mail:2"),
    "workers": (
        "pqrun workers",
        "pqrun workers set web-1 --queues default:20,mail:4",
        "pqrun workers pause web-1",
        "pqrun workers drain --all",
        "pqrun workers stacks 17",
    ),
}
"""By command; each a line for a shell."""


def epilog(command: str) -> str:
    """Return the end of a command's help, empty where there are none; the backspace keeps its lines as they are."""
    if command not in EXAMPLES:
        return ""
    lines = "\n".join(f"  {line}" for line in EXAMPLES[command])
    return f"\b\nExamples:\n{lines}"
