"""A stand-in for the Hugging Face hub: the part of its HTTP API that uploads and downloads use, in memory.

Repositories are created, files go in as git blobs or by the LFS protocol, commits are made on branches or as pull
requests, and files come out by name and revision. A token is asked for where the hub asks for one.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "hf_for_the_tests"
USER = "tester"
_LARGE = (".flashpack", ".safetensors", ".bin")


@dataclass
class Repository:
    """Commits by their hash, and the names that point to them."""

    private: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    references: dict[str, str] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    def commit(self, reference: str, files: dict[str, bytes], message: str, base: str = "main") -> str:
        """Adds files to what a reference has."""
        before = self.commits.get(self.references.get(base, ""), {})
        self.messages.append(message)
        name = hashlib.sha1(f"{len(self.commits)} {message}".encode()).hexdigest()
        self.commits[name] = {**before, **files}
        self.references[reference] = name
        return name

    def resolve(self, revision: str) -> str | None:
        """The commit of a branch, tag or hash."""
        return self.references.get(revision, revision if revision in self.commits else None)


class Hub:
    """The state of the hub, and what it was asked."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.large: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.endpoint = ""

    def add(self, name: str, files: dict[str, bytes], *, private: bool = False, branch: str = "main") -> Repository:
        """A repository with these files; more of them if there is one."""
        repository = self.repositories.setdefault(name, Repository(private))
        repository.commit(branch, files, "added")
        return repository

    def files(self, name: str, revision: str = "main") -> dict[str, bytes]:
        repository = self.repositories[name]
        commit = repository.resolve(revision)
        assert commit is not None, revision
        return repository.commits[commit]

    def downloads(self) -> list[str]:
        """The files that were fetched."""
        return [request.split("/", 5)[-1] for request in self.requests if re.match(r"GET /.*/resolve/", request)]


@contextmanager
def running_hub() -> Iterator[Hub]:
    """A hub on a port of this machine."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _RefusedError(Exception):
    def __init__(self, status: int, code: str | None, text: str) -> None:
        super().__init__(text)
        self.status, self.code = status, code


class _Handler(BaseHTTPRequestHandler):
    hub: ClassVar[Hub]
    routes: ClassVar[list[tuple[str, str, str]]] = [
        ("GET", r"/api/whoami-v2", "_whoami"),
        ("POST", r"/api/repos/create", "_create"),
        ("POST", r"/api/validate-yaml", "_validate"),
        ("POST", r"/api/models/(?P<name>.+)/preupload/(?P<revision>[^/]+)", "_preupload"),
        ("POST", r"/api/models/(?P<name>.+)/commit/(?P<revision>[^/]+)", "_commit"),
        ("GET", r"/api/models/(?P<name>.+)/tree/(?P<revision>[^/]+)", "_tree"),
        ("GET", r"/api/models/(?P<name>.+)/revision/(?P<revision>[^/]+)", "_info"),
        ("GET", r"/api/models/(?P<name>.+)", "_info"),
        ("POST", r"/(?P<name>.+)\.git/info/lfs/objects/batch", "_lfs_batch"),
        ("PUT", r"/lfs/(?P<oid>\w+)", "_lfs_put"),
        ("GET", r"/(?P<name>.+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)", "_file"),
        ("HEAD", r"/(?P<name>.+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)", "_file"),
    ]

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_PUT = do_HEAD = do_GET  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = urlsplit(self.path).path
        self.hub.requests.append(f"{self.command} {path}")
        try:
            for method, pattern, handler in self.routes:
                match = re.fullmatch(pattern, path)
                if method == self.command and match:
                    parts = {key: unquote(value) for key, value in match.groupdict().items()}
                    getattr(self, handler)(body, **parts)
                    return
            raise _RefusedError(404, None, f"the stand-in has no {self.command} {path}")
        except _RefusedError as problem:
            headers = {"X-Error-Message": str(problem)}
            if problem.code:
                headers["X-Error-Code"] = problem.code
            self._answer(problem.status, json.dumps({"error": str(problem)}).encode(), headers)

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _json(self, value: Any) -> None:
        self._answer(200, json.dumps(value).encode())

    def _is_known(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def _check_known(self) -> None:
        if not self._is_known():
            raise _RefusedError(401, None, "Invalid username or password.")

    def _repository(self, name: str) -> Repository:
        repository = self.hub.repositories.get(name)
        if repository is None or (repository.private and not self._is_known()):
            raise _RefusedError(401 if repository else 404, "RepoNotFound", "Repository not found")
        return repository

    def _resolved(self, name: str, revision: str) -> tuple[str, dict[str, bytes]]:
        repository = self._repository(name)
        commit = repository.resolve(revision)
        if commit is None:
            raise _RefusedError(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return commit, repository.commits[commit]

    def _whoami(self, body: bytes) -> None:
        self._check_known()
        self._json({"type": "user", "name": USER, "orgs": []})

    def _create(self, body: bytes) -> None:
        self._check_known()
        wanted = json.loads(body)
        name = f"{wanted.get('organization') or USER}/{wanted['name']}"
        if name in self.hub.repositories:
            answer = {"error": "You already created this model repo", "url": f"{self.hub.endpoint}/{name}"}
            self._answer(409, json.dumps(answer).encode())
            return
        private = wanted.get("visibility") == "private" or bool(wanted.get("private"))
        self.hub.repositories[name] = Repository(private)
        self.hub.repositories[name].commit("main", {".gitattributes": b"*.flashpack filter=lfs\n"}, "initial commit")
        self._json({"url": f"{self.hub.endpoint}/{name}", "name": name})

    def _validate(self, body: bytes) -> None:
        content = json.loads(body)["content"]
        errors = [] if content.startswith("---\n") else [{"message": "no metadata"}]
        self._json({"errors": errors, "warnings": []})

    def _preupload(self, body: bytes, name: str, revision: str) -> None:
        self._check_known()
        self._repository(name)
        files = json.loads(body)["files"]
        modes = {file["path"]: "lfs" if file["path"].endswith(_LARGE) else "regular" for file in files}
        self._json(
            {"files": [{"path": path, "uploadMode": mode, "shouldIgnore": False} for path, mode in modes.items()]}
        )

    def _lfs_batch(self, body: bytes, name: str) -> None:
        self._check_known()
        objects = []
        for wanted in json.loads(body)["objects"]:
            answer = {"oid": wanted["oid"], "size": wanted["size"]}
            if wanted["oid"] not in self.hub.large:
                answer["actions"] = {"upload": {"href": f"{self.hub.endpoint}/lfs/{wanted['oid']}", "header": {}}}
            objects.append(answer)
        self._json({"transfer": "basic", "objects": objects})

    def _lfs_put(self, body: bytes, oid: str) -> None:
        if hashlib.sha256(body).hexdigest() != oid:
            raise _RefusedError(400, None, "the content has another hash")
        self.hub.large[oid] = body
        self._answer(200, b"")

    def _commit(self, body: bytes, name: str, revision: str) -> None:
        self._check_known()
        repository = self._repository(name)
        message = ""
        files: dict[str, bytes] = {}
        for line in body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "header":
                message = value["summary"]
            elif entry["key"] == "file":
                assert value["encoding"] == "base64"
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self.hub.large[value["oid"]]
            else:
                raise _RefusedError(400, None, f"the stand-in has no {entry['key']} in commits")
        is_request = "create_pr" in parse_qs(urlsplit(self.path).query)
        reference = f"refs/pr/{len(repository.references)}" if is_request else revision
        commit = repository.commit(reference, files, message, base=revision)
        answer = {"success": True, "commitOid": commit, "commitUrl": f"{self.hub.endpoint}/{name}/commit/{commit}"}
        if is_request:
            answer["pullRequestUrl"] = f"{self.hub.endpoint}/{name}/discussions/{reference.rsplit('/', 1)[-1]}"
        self._json(answer)

    def _info(self, body: bytes, name: str, revision: str = "main") -> None:
        commit, files = self._resolved(name, revision)
        self._json(
            {
                "_id": "0",
                "id": name,
                "modelId": name,
                "sha": commit,
                "private": self.hub.repositories[name].private,
                "tags": [],
                "downloads": 0,
                "likes": 0,
                "siblings": [{"rfilename": path} for path in files],
            }
        )

    def _tree(self, body: bytes, name: str, revision: str) -> None:
        _, files = self._resolved(name, revision)
        entries = []
        for path, content in files.items():
            entry: dict[str, Any] = {"type": "file", "path": path, "size": len(content), "oid": _blob_id(content)}
            if path.endswith(_LARGE):
                oid = hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"oid": oid, "size": len(content), "pointerSize": 134}
            entries.append(entry)
        self._json(entries)

    def _file(self, body: bytes, name: str, revision: str, path: str) -> None:
        commit, files = self._resolved(name, revision)
        if path not in files:
            raise _RefusedError(404, "EntryNotFound", "Entry not found")
        content = files[path]
        etag = hashlib.sha256(content).hexdigest() if path.endswith(_LARGE) else _blob_id(content)
        headers = {
            "Content-Type": "application/octet-stream",
            "X-Repo-Commit": commit,
            "ETag": f'"{etag}"',
            "X-Linked-Etag": f'"{etag}"',
            "X-Linked-Size": str(len(content)),
        }
        self._answer(200, content, headers)


def _blob_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
