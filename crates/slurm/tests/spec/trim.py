#!/usr/bin/env python3
"""Cuts a slurmrestd specification down to what this crate reads and writes.

    slurmrestd -d v0.0.45 -s slurmctld,slurmdbd,util --generate-openapi-spec | ./trim.py v0.0.45 > v0.0.45.json
"""
import json
import sys

OPERATIONS = [
    "get ping/", "get nodes/", "get jobs/", "get partitions/", "get conf",
    "get node/{node_name}", "post node/{node_name}", "delete node/{node_name}",
    "get job/{job_id}/requeue", "delete job/{job_id}",
    "get reservations/", "post reservation", "delete reservation/{reservation_name}",
]
version = sys.argv[1]
spec = json.load(sys.stdin)


def bare(value):
    """Without prose, which is most of it and not ours to copy."""
    if isinstance(value, dict):
        return {k: bare(v) for k, v in value.items() if k not in ("description", "deprecated") or isinstance(v, dict)}
    if isinstance(value, list):
        return [bare(v) for v in value]
    return value


def schema_of(content):
    return content["application/json"]["schema"]["$ref"].rsplit("/", 1)[1]


operations, wanted = {}, []
for name in OPERATIONS:
    method, path = name.split()
    operation = spec["paths"].get(f"/slurm/{version}/{path}", {}).get(method)
    if operation:
        operations[name] = {"answer": schema_of(operation["responses"]["200"]["content"])}
        if "requestBody" in operation:
            operations[name]["request"] = schema_of(operation["requestBody"]["content"])
        wanted += operations[name].values()

schemas = {}
while wanted:
    name = wanted.pop()
    if name not in schemas:
        schemas[name] = bare(spec["components"]["schemas"][name])
        wanted += [r.rsplit("/", 1)[1] for r in json.dumps(schemas[name]).split('"') if r.startswith("#/components/")]

json.dump({"operations": operations, "schemas": schemas}, sys.stdout, separators=(",", ":"), sort_keys=True)
print()
