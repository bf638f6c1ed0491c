"""Templates in a run's spec: kept whole, so that the run needs no catalog any more.

Promise: a run that is resumed or repeated is put to the very templates it began with. The catalog
they came from is used while it says the same, since code may lie beside them; else they are
written out from the spec, into the user's cache, by content.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from proctor.errors import ProctorError
from proctor.files import write_atomic
from proctor.scenarios import Catalog, Template
from proctor.scenarios.builder import default_cache_folder
from proctor.spec import SpecError
from proctor.trials.staging import Scenario


def scenarios_record(scenarios: Mapping[str, Scenario]) -> dict[str, Any]:
    """What the run folder keeps of the scenarios and their templates."""
    templates: dict[str, Any] = {}
    for scenario in scenarios.values():
        template = scenario.template
        if template.name not in templates:
            templates[template.name] = {
                "catalog": str(template.root.resolve()),
                "hash": template.content_hash,
                "files": dict(sorted(template.sources.items())),
            }
    cases = {
        case: {
            "template": each.template.name,
            **({"variant": each.template.variant} if each.template.variant else {}),
            **({"overrides": dict(each.overrides)} if each.overrides else {}),
        }
        for case, each in sorted(scenarios.items())
    }
    return {"templates": dict(sorted(templates.items())), "cases": cases}


def restored_scenarios(record: Mapping[str, Any]) -> dict[str, Scenario]:
    """The scenarios of a run folder, with the templates it was begun with."""
    kept: Mapping[str, Mapping[str, Any]] = record.get("templates") or {}
    cases: Mapping[str, Mapping[str, Any]] = record.get("cases") or {}
    templates = {name: _restored(name, each) for name, each in kept.items()}
    found: dict[str, Scenario] = {}
    for case, about in cases.items():
        template = templates[about["template"]]
        variant = about.get("variant")
        under = template if variant is None else template.under(variant)
        found[case] = Scenario(under, about.get("overrides") or {})
    return found


def _restored(name: str, kept: Mapping[str, Any]) -> Template:
    for root in (Path(kept["catalog"]), None):
        try:
            template = Catalog([root or _written_out(kept)]).get(name)
        except (ProctorError, SpecError):
            if root is None:
                raise
            continue
        if template.content_hash == kept["hash"]:
            return template
    raise ProctorError(
        f"the template {name!r} kept in the spec of the run is not the one it names",
        hint="the spec was changed by hand",
    )


def _written_out(kept: Mapping[str, Any]) -> Path:
    root = default_cache_folder(os.environ).parent / "templates" / str(kept["hash"])
    for name, text in kept["files"].items():
        path = root / name
        if ".." in path.parts or not path.resolve().is_relative_to(root.resolve()):
            raise ProctorError(f"a template's file is called {name!r}", hint="do not run this spec")
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, text.encode())
    return root
