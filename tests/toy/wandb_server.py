"""As much of a W&B server as the real client needs: runs logged, read back, and swept."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import yaml

KEY = "0123456789abcdef" * 2 + "01234567"
ENTITY = "me"


@dataclass
class Logged:
    """A run as the client wrote it: `config` holds {"value": ...} by key, `history` JSON lines."""

    name: str
    project: str
    shown: str = ""
    group: str | None = None
    job: str | None = None
    sweep: str | None = None
    state: str = "running"
    config: str = "{}"
    summary: str = "{}"
    history: list[str] = field(default_factory=list)

    @property
    def node(self) -> dict[str, Any]:
        """As the server's schema has it; what we have no use for is empty."""
        return {
            "id": self.name,
            "name": self.name,
            "displayName": self.shown,
            "description": "",
            "state": self.state,
            "config": self.config,
            "summaryMetrics": self.summary,
            "systemMetrics": "{}",
            "group": self.group,
            "jobType": self.job,
            "sweepName": self.sweep,
            "tags": [],
            "historyLineCount": len(self.history),
            "historyKeys": {"lastStep": len(self.history) - 1},
            "user": {"name": ENTITY, "username": ENTITY},
            "project": {"id": self.project, "name": self.project, "entity": _entity()},
            # of a run to resume
            "historyTail": json.dumps(self.history[-1:]),
            "eventsTail": "[]",
            "logLineCount": 0,
            "eventsLineCount": 0,
            "wandbConfig": "{}",
        }


class Wandb(ThreadingHTTPServer):
    """Keeps what it is sent.

    Attributes:
        runs: By their names, which are IDs.
        files: Content by the path to which it was put.
        artifacts: Names of those logged.
        sweeps: Configurations by name, as `wandb sweep` sent them.
        silent: Operations that it does not answer.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.runs: dict[str, Logged] = {}
        self.files: dict[str, bytes] = {}
        self.artifacts: list[str] = []
        self.sweeps: dict[str, dict[str, Any]] = {}
        self.silent: set[str] = set()
        self._orders: Iterator[list[dict[str, Any]]] = iter(())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, operation: str, given: dict[str, Any]) -> dict[str, Any]:
        """To a GraphQL operation of the client; nothing to one that we do not know."""
        known: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "Viewer": self._viewer,
            "GetDefaultEntity": self._viewer,
            "RunResumeStatus": self._resume_status,
            "UpsertBucket": self._upsert_run,
            "CreateRunFiles": self._create_files,
            "ArtifactType": lambda _: {"project": {"artifact": None}},
            "CreateArtifact": self._create_artifact,
            "Runs": self._list_runs,
            "RunHistoryKeys": self._one_run,
            "RunParquetHistory": lambda _: {"project": {"run": {"parquetHistory": PARQUET}}},
            "SampledHistoryPage": self._sampled,
            "UpsertSweep": self._upsert_sweep,
            "SweepWithRuns": self._sweep,
            "CreateAgent": lambda _: {"createAgent": {"agent": {"id": "agent"}}},
            "Heartbeat": self._heartbeat,
        }
        return known[operation](given) if operation in known.keys() - self.silent else {}

    def handle_error(self, *_: Any) -> None:
        """Nothing: the client leaves its connections open until it is ended."""

    def stream(self, name: str, sent: dict[str, Any]) -> None:
        """Lines of a run's files, each from a line number on."""
        run, files = self.runs[name], sent.get("files") or {}
        if lines := files.get("wandb-history.jsonl"):
            run.history[lines["offset"] :] = lines["content"]
        if lines := files.get("wandb-summary.json"):
            run.summary = lines["content"][-1]
        if sent.get("complete"):
            run.state = "failed" if sent.get("exitcode") else "finished"

    def _viewer(self, _: dict[str, Any]) -> dict[str, Any]:
        teams: dict[str, Any] = {"edges": []}
        who = {"id": ENTITY, "entity": ENTITY, "username": ENTITY, "email": "", "flags": "{}"}
        return {"viewer": {**who, "teams": teams}}

    def _resume_status(self, given: dict[str, Any]) -> dict[str, Any]:
        run = self.runs.get(given["name"])
        found = {"id": given["project"], "name": given["project"], "entity": _entity()}
        return {"model": {**found, "bucket": run.node if run else None}}

    def _upsert_run(self, given: dict[str, Any]) -> dict[str, Any]:
        new = given["name"] not in self.runs
        run = self.runs.setdefault(given["name"], Logged(given["name"], given["project"]))
        run.shown = given.get("displayName") or run.shown
        run.group = given.get("groupName") or run.group
        run.job = given.get("jobType") or run.job
        run.sweep = given.get("sweep") or run.sweep
        run.config = given.get("config") or run.config
        run.summary = given.get("summaryMetrics") or run.summary
        return {"upsertBucket": {"bucket": run.node, "inserted": new}}

    def _create_files(self, given: dict[str, Any]) -> dict[str, Any]:
        files = [
            {"name": name, "uploadUrl": f"{self.url}/put/{given['run']}/{name}"}
            for name in given["files"]
        ]
        return {"createRunFiles": {"runID": given["run"], "uploadHeaders": [], "files": files}}

    def _create_artifact(self, given: dict[str, Any]) -> dict[str, Any]:
        name = given["input"]["artifactCollectionName"]
        self.artifacts.append(name)
        # "here already" keeps the client from uploading it
        artifact = {"id": name, "state": "COMMITTED", "artifactSequence": {"latestArtifact": None}}
        return {"createArtifact": {"artifact": artifact}}

    def _list_runs(self, given: dict[str, Any]) -> dict[str, Any]:
        group = json.loads(given["filters"]).get("group")
        runs = [run for run in self.runs.values() if run.project == given["project"]]
        if not runs:
            return {"project": None}
        runs = [run for run in runs if run.group == group]
        edges = [{"node": run.node, "cursor": run.name} for run in runs]
        page = {"endCursor": None, "hasNextPage": False}
        found = {"edges": edges, "pageInfo": page}
        return {"project": {"internalId": "1", "runCount": len(runs), "runs": found}}

    def _one_run(self, given: dict[str, Any]) -> dict[str, Any]:
        return {"project": {"run": self.runs[given["name"]].node}}

    def _sampled(self, given: dict[str, Any]) -> dict[str, Any]:
        spec = json.loads(given["spec"])
        lines = map(json.loads, self.runs[given["run"]].history)
        rows = [
            {key: line[key] for key in spec["keys"]}
            for line in lines
            if spec["minStep"] <= line["_step"] <= spec["maxStep"]
            and line.keys() >= {*spec["keys"]}
        ]
        return {"project": {"run": {"sampledHistory": [rows]}}}

    def _upsert_sweep(self, given: dict[str, Any]) -> dict[str, Any]:
        name = f"sweep{len(self.sweeps) + 1}"
        config = self.sweeps[name] = yaml.safe_load(given["config"])
        grid = {key: found["values"] for key, found in sorted(config["parameters"].items())}
        self._orders = (
            [
                {
                    "type": "run",
                    "run_id": f"{name}-{number}",
                    "program": config["program"],
                    "args": {key: {"value": it} for key, it in zip(grid, values, strict=True)},
                }
            ]
            for number, values in enumerate(itertools.product(*grid.values()), 1)
        )
        project = {"id": "1", "name": given["projectName"], "entity": _entity()}
        found = {"name": name, "project": project}
        return {"upsertSweep": {"sweep": found, "configValidationWarnings": []}}

    def _sweep(self, given: dict[str, Any]) -> dict[str, Any]:
        config = yaml.safe_dump(self.sweeps[given["sweep"]])
        found = {"id": given["sweep"], "config": config, "runs": {"edges": []}}
        return {"project": {"sweep": found}}

    def _heartbeat(self, given: dict[str, Any]) -> dict[str, Any]:
        busy = json.loads(given["runState"])
        orders = [] if busy else next(self._orders, [{"type": "exit"}])
        return {"agentHeartbeat": {"agent": {"id": "agent"}, "commands": json.dumps(orders)}}


PARQUET = {"parquetUrls": [], "liveData": []}


def _entity() -> dict[str, Any]:
    return {"id": ENTITY, "name": ENTITY}


@contextmanager
def serving() -> Iterator[Wandb]:
    with Wandb() as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    server: Wandb
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self._body()
        if self.path == "/graphql":
            known = base64.b64encode(f"api:{KEY}".encode()).decode()
            if self.headers["Authorization"] != f"Basic {known}":
                self._send({}, 401)
                return
            asked = json.loads(body)
            operation = re.search(r"(?:query|mutation)\s+(\w+)", asked["query"])[1]
            self._send({"data": self.server.answer(operation, asked.get("variables") or {})})
            return
        if self.path.endswith("/file_stream"):
            self.server.stream(self.path.split("/")[-2], json.loads(body))
        self._send({})

    def do_PUT(self) -> None:
        self.server.files[self.path] = self._body()
        self._send({})

    def _body(self) -> bytes:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body

    def _send(self, content: dict[str, Any], status: int = 200) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass
