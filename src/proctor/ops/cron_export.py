"""Schedules for cron, systemd and GitHub Actions instead of `proctor schedule serve`.

Promise: what is written means the same times, or is refused. cron and systemd only say when: they
call `proctor schedule run NAME`, which keeps overlap, notifications and logs, so no secret is in
their files. GitHub has no such file: its workflow calls `proctor run`, and addresses are a secret
of the repository. What another scheduler cannot do is said in a comment.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

from proctor.errors import ProctorError
from proctor.ops.cron import Cron
from proctor.ops.schedule import Schedule
from proctor.ops.serving import run_arguments

Kind = Literal["cron", "systemd", "github"]

_DAYS = ("Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat")
_WHOLE = {"minutes": 60, "hours": 24, "days": 31, "months": 12}


def export(kind: Kind, project: Path, schedules: Mapping[str, Schedule]) -> dict[str, str]:
    """The files of a scheduler: name → content."""
    if kind == "cron":
        return {"proctor.crontab": _crontab(project, schedules)}
    files: dict[str, str] = {}
    for name, schedule in schedules.items():
        if kind == "systemd":
            files[f"proctor-{name}.service"] = _service(project, name)
            files[f"proctor-{name}.timer"] = _timer(name, schedule)
        else:
            files[f"proctor-{name}.yml"] = _workflow(name, schedule)
    return files


def _plain(name: str, schedule: Schedule) -> Cron:
    """The times, if every scheduler can say them."""
    times = schedule.times()
    days = times.expression.upper().split()
    # Names of months and days hold an L too; `L`, `5L`, `LW` and `1#2` are this library's own.
    odd = any(
        "#" in field or part in ("L", "LW") or (part[:1].isdigit() and part.endswith("L"))
        for field in (days[2], days[4])
        for part in field.split(",")
    )
    if odd:
        raise ProctorError(
            f"{schedule.cron!r} uses L or #, which other schedulers do not know",
            where=name,
            hint="keep it with `proctor schedule serve`, or name the days",
        )
    return times


# -- cron ----------------------------------------------------------------------------------------


def _crontab(project: Path, schedules: Mapping[str, Schedule]) -> str:
    lines = ["# Add these lines with `crontab -e`.", "# cron does not make up for missed times."]
    for name, schedule in schedules.items():
        expression = _plain(name, schedule).expression
        command = shlex.join([sys.executable, "-m", "proctor", "schedule", "run", name, "--log"])
        line = f"cd {shlex.quote(str(project))} && {command}"
        # A percent sign ends a command in a crontab.
        line = line.replace("%", r"\%")
        lines += [
            "",
            "# The line CRON_TZ is known to cronie; Debian's cron goes by the machine's zone.",
            f"CRON_TZ={schedule.tz}",
            f"{expression} {line}",
        ]
    return "\n".join(lines) + "\n"


# -- systemd -------------------------------------------------------------------------------------


def _service(project: Path, name: str) -> str:
    words = [sys.executable, "-m", "proctor", "schedule", "run", name, "--log"]
    return "\n".join(
        [
            "[Unit]",
            f"Description=Proctor schedule {name}",
            "",
            "[Service]",
            "Type=oneshot",
            f"WorkingDirectory={_specifiers(str(project))}",
            f"ExecStart={' '.join(map(_word, words))}",
            "",
        ]
    )


def _timer(name: str, schedule: Schedule) -> str:
    times = [f"OnCalendar={each}" for each in calendars(_plain(name, schedule), schedule.tz)]
    overlap = ["# systemd starts no second run while one is going on."] if schedule.overlap else []
    return "\n".join(
        [
            f"# From the cron expression {schedule.cron}",
            *overlap,
            "[Unit]",
            f"Description=Times of the Proctor schedule {name}",
            "",
            "[Timer]",
            *times,
            f"Persistent={'true' if schedule.missed == 'run' else 'false'}",
            "AccuracySec=1s",
            "",
            "[Install]",
            "WantedBy=timers.target",
            "",
        ]
    )


def calendars(times: Cron, zone: str) -> list[str]:
    """The same times as systemd writes them: two where either of two kinds of day will do."""
    from datetime import UTC, datetime

    from cronsim import CronSim

    read = CronSim(times.expression, datetime(2024, 1, 1, tzinfo=UTC))
    fields: dict[str, set[int]] = {name: getattr(read, name) for name in _WHOLE}
    minutes, hours, days, months = (
        "*" if len(found) == _WHOLE[name] else ",".join(f"{n:02}" for n in sorted(found))
        for name, found in fields.items()
    )
    weekdays = sorted({day % 7 for day in cast("set[int]", read.weekdays)})
    names = "" if len(weekdays) == 7 else ",".join(_DAYS[day] for day in weekdays) + " "
    clock = f"{hours}:{minutes}:00 {zone}"
    if read.day_and or not names or days == "*":
        return [f"{names}*-{months}-{days} {clock}"]
    return [f"*-{months}-{days} {clock}", f"{names}*-{months}-* {clock}"]


def _word(text: str) -> str:
    """A word of a command as systemd reads it: neither specifier nor variable."""
    escaped = _specifiers(text).replace("$", "$$").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _specifiers(text: str) -> str:
    return text.replace("%", "%%")


# -- GitHub --------------------------------------------------------------------------------------


def _workflow(name: str, schedule: Schedule) -> str:
    import yaml

    times = _plain(name, schedule)
    if schedule.tz not in ("UTC", "Etc/UTC"):
        raise ProctorError(
            f"{name} is in the zone {schedule.tz}, and workflows go by UTC",
            where="--to github",
            hint="add it again with --tz UTC",
        )
    command = shlex.join(["proctor", "run", *run_arguments(schedule)])
    if "${{" in command:
        raise ProctorError(
            "'${{' in an option would be read by GitHub", where=name, hint="leave it out"
        )
    extra = "proctor[notify]" if schedule.notify else "proctor"
    job: dict[str, Any] = {
        "runs-on": "ubuntu-latest",
        "defaults": {"run": {"working-directory": schedule.folder}},
        "steps": [
            {"uses": "actions/checkout@v4"},
            {"uses": "actions/setup-python@v5", "with": {"python-version": "3.12"}},
            {"run": f'pip install "{extra}"'},
            {"run": command},
        ],
    }
    if schedule.notify:
        job["env"] = {"PROCTOR_NOTIFY_TO": "${{ secrets.PROCTOR_NOTIFY_TO }}"}
    document: dict[str, Any] = {
        "name": f"proctor {name}",
        "on": {"schedule": [{"cron": times.expression}], "workflow_dispatch": {}},
        "permissions": {"contents": "read"},
        "jobs": {"run": job},
    }
    if not schedule.overlap:
        document["concurrency"] = {"group": f"proctor-{name}", "cancel-in-progress": False}
    head = [
        "# Belongs in .github/workflows. GitHub may start late, and makes up for no missed time.",
        *(
            ["# Addresses of notifications: the repository's secret PROCTOR_NOTIFY_TO."]
            if schedule.notify
            else []
        ),
    ]
    # `on` is quoted by YAML's rules, which GitHub reads as well.
    return "\n".join([*head, yaml.safe_dump(document, sort_keys=False, width=100)])
