"""Digests of the sources of lastiterate and of the user's modules on a node, compared with the digests of the driver.

This module is pickled by value, because a node may have no lastiterate or another version. It therefore imports only
Python's standard library and, in Ray's workers, Ray.
"""

import hashlib
import importlib
import importlib.metadata
import importlib.util
import os
import socket
import sys
from collections.abc import Iterable
from pathlib import Path

from lastiterate.common.types import Foreign

_WORKER = "lastiterate.auditing.engines.ray_worker"


def report(modules: Iterable[str], folders: Iterable[str] = ()) -> dict[str, Foreign]:
    """Return digests of the sources that this process would import. The digest of a missing user's module is None.

    The folders are appended to ``sys.path`` for the life of this process.
    """
    sys.path += [folder for folder in folders if folder not in sys.path and Path(folder).is_dir()]
    specified = importlib.util.find_spec("lastiterate")
    found: dict[str, Foreign] = {"node": socket.gethostname(), "version": None, "sources": None, "versions": {}}
    if specified is not None and specified.origin is not None:
        found["sources"] = digest_of_folder(Path(specified.origin).parent)
        try:
            found["version"] = importlib.metadata.version("lastiterate")
        except importlib.metadata.PackageNotFoundError:
            found["version"] = "of unknown version"
    found["modules"] = {name: digest_of_module(name) for name in modules}
    return found


def disagreement(ours: dict[str, Foreign], theirs: dict[str, Foreign]) -> str | None:
    """Return a sentence about the differences between two reports, or None if they are equal."""
    if theirs["sources"] != ours["sources"]:
        there = "none" if theirs["sources"] is None else f"{theirs['version']} with sources {theirs['sources']}"
        here = f"{ours['version']} with sources {ours['sources']}, got {there}"
        what = "install the same version on all machines of the cluster"
        return f"node {theirs['node']} must have the lastiterate of this process, {here}: {what}"
    for name, digest in ours["modules"].items():
        seen = theirs["modules"].get(name)
        if seen is not None and seen != digest:
            must = f"must have the same module {name!r} as this process, with digest {digest}, got {seen}"
            return f"node {theirs['node']} {must}: copy the same files to all machines, or remove them there"
    return None


def probe(modules: list[str], folders: list[str]) -> dict[str, Foreign]:
    """Return the report of a node with the node's name and, if available, the package versions."""
    found = {**report(modules, folders), "node": node_name()}
    try:
        found["versions"] = importlib.import_module("lastiterate.auditing.identity").versions()
    except (ImportError, AttributeError):  # another version of lastiterate
        found["versions"] = {}
    return found


def call(ours: dict[str, Foreign], function: str, sent: Foreign, *arguments: Foreign) -> tuple[str, Foreign]:
    """Call a function of ``ray_worker`` and return its answer. Refuse if this worker's sources differ from ``ours``.

    The sources are compared once per worker, because a worker keeps its imports even if the files change.
    """
    wanted = {"lastiterate": ours["sources"], **ours["modules"]}
    agreed = getattr(sys.modules.get(_WORKER), "AGREED", {})
    if any(agreed.get(name, "new") not in (digest, None) for name, digest in wanted.items()):
        theirs = {**report(ours["modules"], ours["folders"]), "node": node_name()}
        theirs["modules"] |= {name: digest for name, digest in agreed.items() if digest is not None}
        if sentence := disagreement(ours, theirs):
            return "refused", sentence
        importlib.import_module(_WORKER).AGREED.update(theirs["modules"], lastiterate=theirs["sources"])
    if Path(ours["cwd"]).is_dir():  # makes the user's relative paths valid
        os.chdir(ours["cwd"])
    worker: Foreign = importlib.import_module(_WORKER)
    return "answered", worker.answer(function, sent, arguments)


def node_name() -> str:
    """Return the machine's name and the start of the node's id. One machine may have several nodes."""
    import ray

    return f"{socket.gethostname()} ({ray.get_runtime_context().get_node_id()[:8]})"


def digest_of_folder(folder: Path) -> str:
    """Return a digest of all Python files in a folder, independent of the folder's path."""
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(folder).as_posix()}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]


def digest_of_module(name: str) -> str | None:
    """Return a digest of the file that an import of this name would find."""
    parts = name.split(".")
    for entry in sys.path:
        place = Path(entry or ".").joinpath(*parts)
        for file in (place / "__init__.py", place.parent / f"{parts[-1]}.py"):
            if file.is_file():
                return digest_of_file(file)
    return None


def digest_of_file(file: Path) -> str:
    """Return a digest of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]
