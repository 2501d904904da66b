"""Only the user who started the server reads its pages: the token, the cookie, and slow clients."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner

from lastiterate.cli import serve as serving
from lastiterate.cli.app import app
from tests.web.running import Running

NOBODY = 65534
PATHS = [
    "/",
    "/audits",
    "/api/answer?steps=10",
    "/api/audits/events",
    "/api/audits/one?store=deep/exact.sqlite",
    "/summary?store=deep/exact.sqlite",
    "/static/style.css",
    "/no/such/page",
]
STRANGER = """
import os, socket, sys
os.setgroups([]), os.setgid({uid}), os.setuid({uid})
with socket.create_connection((b"127.0.0.1", {port}), timeout=30) as connection:
    request = "GET " + sys.argv[1] + " HTTP/1.1\\r\\nHost: 127.0.0.1:{port}\\r\\nConnection: close\\r\\n\\r\\n"
    connection.sendall(request.encode())
    while piece := connection.recv(65536):
        sys.stdout.write(piece.decode())
"""


@pytest.mark.skipif(not hasattr(os, "setuid") or os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("path", PATHS)
def test_another_user_of_the_machine_reads_nothing(server, path):
    program = STRANGER.format(uid=NOBODY, port=server.port)
    found = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=True, cwd="/")
    head, _, body = found.stdout.partition("\r\n\r\n" if "\r" in found.stdout else "\n\n")
    assert head.startswith("HTTP/1.1 403")
    assert "set-cookie" not in head
    assert "This page needs the token" in body
    assert len(body) < 120


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("cookie", ["", "lastiterate-{port}=", "lastiterate-{port}={part}", "other={token}"])
def test_every_page_needs_the_whole_token(server, path, cookie):
    given = cookie.format(port=server.port, part=server.token[:-1], token=server.token)
    assert server.ask(path, {"Cookie": given}).status == 403
    query = "&" if "?" in path else "?"
    assert server.ask(f"{path}{query}token={server.token[:-1]}", {"Cookie": given}).status == 403


def test_the_printed_address_sets_a_cookie_and_loses_the_token(server):
    assert len(server.token) >= 43  # 32 random bytes
    place = urlsplit(server.url)
    answer = server.ask(f"{place.path}?{place.query}&store=%ff.sqlite", {"Cookie": ""})
    assert (answer.status, answer.headers["location"]) == (303, "/audits?store=%ff.sqlite")
    cookie = answer.headers["set-cookie"]
    assert cookie == f"lastiterate-{server.port}={server.token}; HttpOnly; SameSite=Strict; Path=/"
    assert server.ask("/audits", {"Cookie": f"a=b; {cookie.partition(';')[0]}"}).status == 200
    known = server.ask(f"/audits?token={server.token}")  # the address bar loses the token in any case
    assert (known.status, known.headers["location"]) == (303, "/audits")


def test_nobody_is_sent_to_another_server(server):
    answer = server.ask(f"//evil.example/?token={server.token}", {"Cookie": ""})
    assert answer.headers["location"] == "/evil.example/"


def test_without_a_token_everybody_is_told_so(runs):
    running = Running("watch", str(runs), "--no-token")
    try:
        assert "token" not in running.url
        assert running.ask("/audits", {"Cookie": ""}).status == 200
        for site in ("cross-site", "same-site"):  # a page elsewhere must not start computations
            headers = {"Cookie": "", "Sec-Fetch-Site": site}
            assert running.ask("/summary?store=deep/exact.sqlite", headers).status == 403
    finally:
        running.stop()
    refused = CliRunner().invoke(app, ["explore", "--no-token", "--allow-remote"], prog_name="lastiterate")
    assert refused.exit_code == 2
    assert refused.stderr == "--no-token must not be given with --allow-remote: others need the token\n"
    assert "every user of this machine can read all pages" in " ".join(
        CliRunner().invoke(app, ["watch", "--help"], prog_name="lastiterate").stdout.split()
    )


def test_the_browser_is_not_started_with_the_token_as_an_argument():
    with serving._private_link("http://127.0.0.1:1/?token=secret") as link:
        file = Path(urlsplit(link).path)
        assert "secret" not in link
        assert "token=secret" in file.read_text()
        assert file.stat().st_mode & 0o077 == 0
    assert not file.exists()


def test_half_sent_requests_keep_nobody_else_waiting(server):
    with contextlib.ExitStack() as open_ones:
        for _ in range(520):
            half = open_ones.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            half.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")
        assert server.ask("/").status == 200
        half.settimeout(20.0)
        began = time.monotonic()
        with contextlib.suppress(ConnectionError):
            assert half.recv(1) == b""  # the server closes it
        assert 5.0 < time.monotonic() - began < 15.0
    assert server.ask("/").status == 200


BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on this machine")
def test_a_browser_opens_the_private_link_and_shares_no_token(server):
    import playwright.sync_api as sync_api

    with sync_api.sync_playwright() as playwright, serving._private_link(server.url) as link:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--headless"])
        page = browser.new_page()
        page.goto(link)
        page.wait_for_url(f"{server.address}/audits")
        sync_api.expect(page.get_by_role("link", name="exact", exact=True)).to_be_visible(timeout=60_000)
        assert server.token not in page.content()
        page.goto(f"{server.address}/?token={server.token}&noise_multiplier=2")
        assert page.url == f"{server.address}/?noise_multiplier=2"
        page.locator("#noise_multiplier").fill("3")
        page.wait_for_url("**noise_multiplier=3**")
        assert "token" not in page.url
        assert page.evaluate("document.cookie") == ""
        browser.close()
