"""The server as a stranger meets it: what it refuses, what it never does, and how it starts."""

import asyncio
import hashlib
import json
import os
import socket
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from typer.testing import CliRunner

import lastiterate as li
from lastiterate.attacks import Adversarial
from lastiterate.auditing.stores.store import Store
from lastiterate.cli.app import app
from lastiterate.labels import VERDICTS
from lastiterate.web.audit_pages import find_stores, locate
from lastiterate.web.server import is_loopback
from lastiterate.web.workers import Broke, TooLong, Workers
from tests.web.running import Running

RUN = {"dataset_size": "50000", "batch_size": "512", "epochs": "60", "noise_multiplier": "0.7", "delta": "1e-5"}


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example:{port}", ""]
)
def test_a_foreign_host_is_refused(server, host):
    response = server.ask("/api/description", {"Host": host.format(port=server.port)})
    assert response.status == 421
    assert b"only under its own address" in response.body


def test_pages_of_others_are_refused_and_nothing_is_shared_with_them(server):
    response = server.ask("/api/description", {"Sec-Fetch-Site": "cross-site", "Origin": "http://evil.example"})
    assert response.status == 403
    response = server.ask("/api/description", {"Origin": "http://evil.example"})
    headers = response.headers
    assert not any(name.startswith("access-control") or name == "set-cookie" for name in headers)
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["script-src"] == "'self'"
    assert policy["default-src"] == "'none'"
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
@pytest.mark.parametrize("path", ["/", "/api/answer", "/api/audits/one", "/static/style.css"])
def test_it_only_reads(server, method, path):
    assert server.ask(path, method=method).status == 405


@pytest.mark.parametrize(
    "path",
    ["/static/../server.py", "/static/..%2fserver.py", "/static/%2e%2e/%2e%2e/run.py", "/etc/passwd", "//etc/passwd"],
)
def test_no_file_but_those_of_pages_is_served(server, path):
    response = server.ask(path)
    assert response.status == 404
    assert b"import" not in response.body


def test_fifty_at_once_get_each_their_own_answer(server):
    def one(index):
        noise = 0.5 + 0.02 * index
        status, found = server.json("/api/answer", **{**RUN, "noise_multiplier": repr(noise)})
        run = li.DPSGD.from_batches(50_000, 512, 60, noise)
        expected = [li.composition(run).epsilon(1e-5), li.last_iterate(run).epsilon(1e-5)]
        return status == 200 and [row["epsilon"] for row in found["rows"][:2]] == expected

    with ThreadPoolExecutor(50) as clients:
        assert all(clients.map(one, range(50)))


def test_only_stores_below_the_folder_are_known(tmp_path, runs):
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    (folder / "sub").mkdir(parents=True)
    outside.mkdir()
    (outside / "secret.sqlite").write_bytes(b"x")
    (folder / "sub" / "mine.sqlite").write_bytes(b"x")
    (folder / "inner.sqlite").symlink_to(folder / "sub" / "mine.sqlite")
    (folder / "outer.sqlite").symlink_to(outside / "secret.sqlite")
    (folder / "linked").symlink_to(outside)
    (folder / "loop.sqlite").symlink_to(folder / "loop.sqlite")
    (folder / "notes.txt").write_text("x")
    assert list(find_stores(folder)) == ["inner.sqlite", "sub/mine.sqlite"]
    for name in ("inner.sqlite", "sub/mine.sqlite"):
        assert locate(folder, name) is not None
    bad = ["outer.sqlite", "linked/secret.sqlite", "../outside/secret.sqlite", "loop.sqlite", "", "notes.txt", "sub"]
    bad += [str(outside / "secret.sqlite"), "sub/../../outside/secret.sqlite", "sub\\mine.sqlite", "a\0.sqlite"]
    for name in bad:
        assert locate(folder, name) is None, name


@pytest.mark.parametrize("name", ["../exact.sqlite", "/etc/passwd", "deep/../../x.sqlite", "missing.sqlite", ""])
def test_other_stores_are_not_found(server, name):
    for path in ("/api/audits/one", "/summary"):
        status, found = server.json(path, store=name)
        assert (status, found["error"]) == (404, "there is no such store in the folder")
    assert server.json("/api/audits/one", store="deep/exact.sqlite", width="9" * 40)[0] == 422


def test_looking_changes_no_store(server, runs):
    path = runs / "deep" / "exact.sqlite"
    before = hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns, sorted(path.parent.iterdir())
    status, found = server.json("/api/audits/one", store="deep/exact.sqlite", width="400")
    assert status == 200
    assert found["verdict"] in VERDICTS
    assert server.ask("/summary?store=deep/exact.sqlite").status == 200
    after = hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns, sorted(path.parent.iterdir())
    assert after == before


def test_half_of_a_write_is_not_undone_by_looking(tmp_path):
    """As a writer leaves it that is killed between journal and log: the journal is hot, and the file half new."""
    path = tmp_path / "half.sqlite"
    run = li.DPSGD(steps=2, sample_rate=0.5, noise_multiplier=1.0)
    li.audit(run, None, Adversarial("exact"), models=5000, store=path, methods=["clopper-pearson"], progress=False)
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA cache_size = 1")  # so that what is changed goes to the file before it is committed
    database.execute("BEGIN IMMEDIATE")
    database.execute("UPDATE trials SET score = score + 1")
    copy = tmp_path / "copy.sqlite"  # while the write is under way
    copy.write_bytes(path.read_bytes())
    (tmp_path / "copy.sqlite-journal").write_bytes((tmp_path / "half.sqlite-journal").read_bytes())
    database.execute("ROLLBACK")
    database.close()
    before = copy.read_bytes()
    with pytest.raises(ValueError, match="has an incomplete write"):
        Store.read(copy, repairs=False)
    assert copy.read_bytes() == before
    with Store.read(copy) as repaired, Store.read(path) as whole:
        assert repaired.digest() == whole.digest()


def test_a_store_that_appears_is_told_and_one_that_is_damaged_says_so(tmp_path, runs):
    folder = tmp_path / "runs"
    folder.mkdir()
    running = Running("watch", str(folder))
    try:
        with running.events("/api/audits/events") as events:
            assert events.getheader("content-type").startswith("text/event-stream")
            assert next_rows(events) == []
            (folder / "junk.sqlite").write_bytes(b"no database" * 1000)
            (folder / "late.sqlite").write_bytes((runs / "deep" / "exact.sqlite").read_bytes())
            rows = {}
            while not all(row.get("error") or row.get("verdict") for row in rows.values()) or len(rows) < 2:
                rows = {row["name"]: row for row in next_rows(events)}
            assert rows["late.sqlite"]["verdict"] in VERDICTS
            assert rows["late.sqlite"]["state"] == "finished"
            assert rows["late.sqlite"]["done"] == rows["late.sqlite"]["planned"] == 120
            assert "junk.sqlite" in rows["junk.sqlite"]["error"]
            (folder / "late.sqlite").unlink()
            while len(rows) > 1:
                rows = {row["name"]: row for row in next_rows(events)}
    finally:
        running.stop()


def next_rows(events):
    while not (line := events.readline()).startswith(b"data: "):
        assert line, "the stream ended"
    return json.loads(line[6:])["rows"]


def test_what_takes_too_long_ends_and_the_next_question_is_answered():
    async def asked():
        workers = Workers(1, 6.0)
        workers.start()
        assert await workers.ask(dict) == {}
        with pytest.raises(TooLong, match=r"longer than a page waits \(6 seconds\)"):
            await workers.ask(sleep, 60.0)
        assert await workers.ask(dict) == {}
        with pytest.raises(Broke):
            await workers.ask(leave)
        with pytest.raises(ValueError, match="a sentence"):
            await workers.ask(refuse)
        task = asyncio.ensure_future(workers.ask(sleep, 60.0))
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await workers.ask(dict) == {}
        workers.stop()

    began = time.monotonic()
    asyncio.run(asked())
    assert time.monotonic() - began < 50.0


def sleep(seconds):
    time.sleep(seconds)


def leave():
    os._exit(1)


def refuse():
    raise ValueError("a sentence")


def refusal(*words):
    result = CliRunner().invoke(app, list(words), prog_name="lastiterate")
    assert result.exit_code == 2, result.output
    assert result.stderr.count("\n") == 1
    return result.stderr


def test_other_hosts_need_to_be_allowed():
    said = refusal("explore", "--host", "0.0.0.0")
    assert "--allow-remote" in said
    assert "everybody who reaches this machine and has the token" in said
    assert "--host must be" in refusal("explore", "--host", "no.such.host.invalid", "--allow-remote")
    assert is_loopback("127.0.0.1") and is_loopback("::1") and is_loopback("localhost")  # noqa: PT018
    assert not is_loopback("10.0.0.1")


def test_a_port_that_is_taken_is_one_sentence():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        said = refusal("explore", "--port", str(taken.getsockname()[1]))
    assert "is used by another program" in said
    assert "must be an integer in [0, 65535]" in refusal("explore", "--port", "70000")
