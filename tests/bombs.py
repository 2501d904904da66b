"""Small files that want to become large, and a process that is given them and watched."""

import json
import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import lastiterate
from lastiterate.data.files import VARIABLE

MOST_RESIDENT = 3 * 2**29  # bytes of a process that refuses them, with JAX or PyTorch in it
MOST_SECONDS = 120
_PIECE = 2**20

# Each command in turn, as a program of its own would run it.
# Whoever hangs is ended, and whoever takes all memory gets none.
_PROGRAM = """
import resource, signal
signal.alarm(4 * SECONDS)
resource.setrlimit(resource.RLIMIT_AS, (2**35, 2**35))
resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
import contextlib, io, json, sys
from lastiterate.cli.app import app
for name, command in json.loads(sys.argv[1]).items():
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            app(command)
        except SystemExit as left:
            status = left.code
    print(json.dumps([name, status, out.getvalue(), err.getvalue()]))
# Not what the system says of the ended process: that began with the size of the one that started it.
print(*[line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")], file=sys.stderr)
"""


@dataclass(frozen=True)
class Answer:
    """How a command ended."""

    status: int
    out: str
    sentence: str


def deflated(pattern: bytes, size: int, before: bytes = b"") -> bytes:
    """A stream of zlib without header that unpacks to ``size`` bytes of a pattern; packed once and repeated."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    start = packer.compress(before) + packer.flush(zlib.Z_FULL_FLUSH)
    piece = packer.compress(pattern * (_PIECE // len(pattern))) + packer.flush(zlib.Z_FULL_FLUSH)
    return start + piece * (size // _PIECE) + packer.flush()


def gzipped(pattern: bytes, size: int, before: bytes = b"") -> bytes:
    """The same in gzip's frame, with the right checksum, unless whoever gets to it has unpacked a gigabyte."""
    checksum, piece = zlib.crc32(before), pattern * (_PIECE // len(pattern))
    for _ in range(size // _PIECE if size < 2**30 else 0):
        checksum = zlib.crc32(piece, checksum)
    end = struct.pack("<2I", checksum, (len(before) + size) % 2**32)
    return b"\x1f\x8b\x08" + bytes(6) + b"\x03" + deflated(pattern, size, before) + end


@dataclass(frozen=True)
class Member:
    """Of a zip file: what is in it, deflated already, and what its directory says about it."""

    content: bytes
    size: int
    checksum: int = 0

    @classmethod
    def honest(cls, content: bytes) -> "Member":
        return cls(deflated(b"\0", 0, content), len(content), zlib.crc32(content))


def zipped(members: Mapping[str, Member]) -> bytes:
    body, directory = b"", b""
    for name, member in members.items():
        sizes = member.checksum, len(member.content), member.size
        fields = struct.pack("<5H3I2H", 20, 0, 8, 0, 0, *sizes, len(name), 0)
        directory += b"PK\1\2\x14\0" + fields + struct.pack("<3H2I", 0, 0, 0, 0, len(body)) + name.encode()
        body += b"PK\3\4" + fields + name.encode() + member.content
    end = struct.pack("<4H2IH", 0, 0, len(members), len(members), len(directory), len(body), 0)
    return body + directory + b"PK\5\6" + end


def npy_header(shape: tuple[int, ...], dtype: str = "|u1") -> bytes:
    header = repr({"descr": dtype, "fortran_order": False, "shape": shape}).encode() + b"\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header


def answers(commands: dict[str, list[str]], folder: Path) -> dict[str, Answer]:
    """What one process answers to the commands, which takes neither long nor much memory for any of them."""
    environment = {**os.environ, "PYTHONPATH": str(Path(lastiterate.__file__).parents[1]), "JAX_PLATFORMS": "cpu"}
    environment.pop("LASTITERATE_MAX_BYTES", None)
    with (folder / "answers").open("w+") as said, (folder / "errors").open("w+") as errors:
        child = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM.replace("SECONDS", str(MOST_SECONDS)), json.dumps(commands)],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=errors,
            env=environment,
            cwd=folder,
        )
        child.wait()
        said.seek(0)
        errors.seek(0)
        told = errors.read()
        assert child.returncode == 0, told[-2000:]
        lines = [json.loads(line) for line in said]
    peak = 1024 * int(told.split()[-1])
    assert peak < MOST_RESIDENT, f"{peak:,} bytes"
    return {name: Answer(*rest) for name, *rest in lines}


def assert_refused(answer: Answer, words: str) -> None:
    """Bad input, told in one sentence that has these words and shows nothing of Python."""
    assert (answer.status, answer.out) == (2, "")
    assert words in answer.sentence
    assert VARIABLE not in words or "set that environment variable to allow more" in answer.sentence
    assert answer.sentence.count("\n") == 1
    assert "Traceback" not in answer.sentence
    assert len(answer.sentence) < 600
