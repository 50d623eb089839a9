"""Hold the manifests of a page against the schemas of those who read them (by hand).

    python tests/docs/manifests.py jobset.x-k8s.io_jobsets.yaml trainer.kubeflow.org_trainjobs.yaml

The files are the CRDs of kubernetes-sigs/jobset and kubeflow/trainer. A plain Job is the template of
a JobSet's. With SkyPilot installed, its own schema is read for its task.
"""

import re
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from paths import ROOT

PAGE = ROOT / "docs" / "guides" / "kubernetes.md"
Schema = dict[str, Any]


def strict(schema: Schema) -> Schema:
    """The schema, which takes no key that it does not name: a server would drop it in silence."""
    inner = {
        key: {name: strict(part) for name, part in value.items()} if key == "properties" else value
        for key, value in schema.items()
    }
    for key in ("items", "additionalProperties"):
        if isinstance(inner.get(key), dict):
            inner[key] = strict(inner[key])
    is_closed = "properties" in inner and not inner.get("x-kubernetes-preserve-unknown-fields")
    if is_closed and "additionalProperties" not in inner:
        inner["additionalProperties"] = False
    return inner


def schemas(paths: list[str]) -> Iterator[tuple[str, Schema]]:
    """By what a manifest is: its kind, or its task."""
    for path in paths:
        crd = yaml.safe_load(Path(path).read_text(encoding="utf-8"))["spec"]
        for version in crd["versions"]:
            of_kind = strict(version["schema"]["openAPIV3Schema"])
            of_kind["properties"]["metadata"] = {}
            yield f"{crd['group']}/{version['name']} {crd['names']['kind']}", of_kind
            if crd["names"]["kind"] == "JobSet":
                jobs = of_kind["properties"]["spec"]["properties"]["replicatedJobs"]["items"]
                job = jobs["properties"]["template"]["properties"]["spec"]
                yield "batch/v1 Job", {"required": ["spec"], "properties": {"spec": job}}
    if find_spec("sky") is not None:
        yield "task", import_module("sky.utils.schemas").get_task_schema()


def main(paths: list[str]) -> int:
    """Print what each manifest breaks; 1 where any does, or has no schema."""
    known, bad = dict(schemas(paths)), 0
    text = PAGE.read_text(encoding="utf-8")
    for block in re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        manifest = yaml.safe_load(block)
        kind = f"{manifest.get('apiVersion')} {manifest.get('kind')}"
        kind = kind if "kind" in manifest else "task"
        if kind not in known:
            print(f"{kind}: no schema was named")  # noqa: T201 - what it is for
            bad += 1
            continue
        errors = [*Draft202012Validator(known[kind]).iter_errors(manifest)]
        print(f"{kind}: {len(errors)} errors", *(e.message for e in errors), sep="\n  ")  # noqa: T201 - as above
        bad += bool(errors)
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
