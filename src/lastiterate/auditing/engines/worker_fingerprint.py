"""What a node of a cluster runs: its lastiterate and the user's modules that it would import, compared with ours.

This module is sent by value, as a node may have another lastiterate, or none. So it needs nothing but Python's library.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import os
import socket
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias

Foreign: TypeAlias = Any  # what is sent, and modules that another version may have otherwise

_WORKER = "lastiterate.auditing.engines.ray_worker"


def report(modules: Iterable[str], folders: Iterable[str] = ()) -> dict[str, Foreign]:
    """What this process would import: plain values, with digests of sources.

    Args:
        modules: the user's, by name; what is not found here has None.
        folders: to look into as well, as long as this process lives.
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
    """Why scores from there could be others, in one sentence; None: they are the same program."""
    if theirs["sources"] != ours["sources"]:
        there = "none" if theirs["sources"] is None else f"{theirs['version']} with sources {theirs['sources']}"
        return (
            f"node {theirs['node']} must have the lastiterate of this process, {ours['version']} with sources "
            f"{ours['sources']}, got {there}: install the same one on all machines of the cluster"
        )
    for name, digest in ours["modules"].items():
        seen = theirs["modules"].get(name)
        if seen is not None and seen != digest:
            return (
                f"node {theirs['node']} must have the module {name!r} that is used here, of digest {digest}, got one "
                f"of {seen}: copy the same files to all machines of the cluster, or remove them there"
            )
    return None


def probe(modules: list[str], folders: list[str]) -> dict[str, Foreign]:
    """The report of a node's worker, with its name and, if it has this lastiterate, versions of other packages."""
    found = {**report(modules, folders), "node": node_name()}
    try:
        found["versions"] = importlib.import_module("lastiterate.auditing.identity").versions()
    except (ImportError, AttributeError):  # another lastiterate
        found["versions"] = {}
    return found


def call(ours: dict[str, Foreign], function: str, sent: Foreign, *arguments: Foreign) -> tuple[str, Foreign]:
    """What a function of ``ray_worker`` answers, unless this worker is another program than the one that asks.

    Compared once in the life of a worker: what it has imported it keeps, whatever becomes of the files.
    """
    wanted = {"lastiterate": ours["sources"], **ours["modules"]}
    agreed = getattr(sys.modules.get(_WORKER), "AGREED", {})
    if any(agreed.get(name, "new") not in (digest, None) for name, digest in wanted.items()):
        theirs = {**report(ours["modules"], ours["folders"]), "node": node_name()}
        theirs["modules"] |= {name: digest for name, digest in agreed.items() if digest is not None}
        if sentence := disagreement(ours, theirs):
            return "refused", sentence
        importlib.import_module(_WORKER).AGREED.update(theirs["modules"], lastiterate=theirs["sources"])
    if Path(ours["cwd"]).is_dir():  # where paths that are not absolute begin
        os.chdir(ours["cwd"])
    worker: Foreign = importlib.import_module(_WORKER)
    return "answered", worker.answer(function, sent, arguments)


def node_name() -> str:
    """A machine's name and the beginning of its id, as a machine may be several nodes."""
    import ray

    return f"{socket.gethostname()} ({ray.get_runtime_context().get_node_id()[:8]})"


def digest_of_folder(folder: Path) -> str:
    """A digest of all Python files in a folder, wherever that is."""
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(folder).as_posix()}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]


def digest_of_module(name: str) -> str | None:
    """A digest of the file that an import of this name would find; None: none is found."""
    parts = name.split(".")
    for entry in sys.path:
        place = Path(entry or ".").joinpath(*parts)
        for file in (place / "__init__.py", place.parent / f"{parts[-1]}.py"):
            if file.is_file():
                return digest_of_file(file)
    return None


def digest_of_file(file: Path) -> str:
    """A digest of what a file contains."""
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]
