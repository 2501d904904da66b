"""Worker processes that answer questions of pages, so that no question blocks the server.

If a question takes too long, or its client has disconnected, its process is killed and replaced. Every process ends by
itself when the server is gone, even if the server was killed.
"""

import asyncio
import multiprocessing
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from lastiterate.common.errors import BadArgument
from lastiterate.common.types import Fields

Task = Callable[..., Fields]
_FORGET_AFTER = 0.3  # seconds that an abandoned question may still take before its process is killed


class TooLong(RuntimeError):
    """Error for a question that exceeded its time limit. The message is a sentence."""


class Broke(RuntimeError):
    """Error for a process that died, for example for lack of memory. The message is a sentence."""


class Workers:
    """A pool of processes. Each process answers one question at a time, and further questions wait."""

    def __init__(self, count: int, seconds: float, preloaded: Sequence[str] = ()) -> None:
        self._count, self._seconds = count, seconds
        self._context = multiprocessing.get_context("spawn" if sys.platform == "win32" else "forkserver")
        if sys.platform != "win32":
            self._context.set_forkserver_preload(list(preloaded))
        self._free: asyncio.Queue[_Worker] = asyncio.Queue()

    def start(self) -> None:
        """Start the processes in the background, before the first question."""
        for _ in range(self._count):
            worker = _Worker(self._context, self._seconds)
            threading.Thread(target=worker.begin, daemon=True).start()
            self._free.put_nowait(worker)

    def stop(self) -> None:
        """End the idle processes. Busy processes end with the server."""
        while not self._free.empty():
            self._free.get_nowait().end()

    async def ask(self, task: Task, *given: object) -> Fields:
        """Run the task with these arguments in a process. Return its result or raise its ValueError."""
        worker = await self._free.get()
        try:
            return await worker.ask(task, *given)
        finally:
            self._free.put_nowait(worker if worker.is_alive else _Worker(self._context, self._seconds))


class _Worker:
    def __init__(self, context: multiprocessing.context.BaseContext, seconds: float) -> None:
        self._context, self._seconds = context, seconds
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self._beginning = threading.Lock()
        self.is_alive = True

    async def ask(self, task: Task, *given: object) -> Fields:
        exchange = asyncio.ensure_future(asyncio.to_thread(self._exchange, task, given))
        began = asyncio.get_running_loop().time()
        try:
            done, _ = await asyncio.wait({exchange}, timeout=self._seconds)
        except asyncio.CancelledError:  # the client has disconnected
            since = asyncio.get_running_loop().time() - began
            await asyncio.wait({exchange}, timeout=max(0.0, _FORGET_AFTER - since))
            if not exchange.done():
                self.end()
            exchange.add_done_callback(_forget)
            raise
        if not done:
            self.end()
            exchange.add_done_callback(_forget)
            raise TooLong(
                f"this takes longer than a page waits ({self._seconds:g} seconds): use the command line instead"
            )
        return exchange.result()

    def _exchange(self, task: Task, given: tuple[object, ...]) -> Fields:
        try:
            pipe = self.begin()
            pipe.send((task, given))
            found, refusal = pipe.recv()
        except (EOFError, OSError):
            self.end()
            raise Broke("the computing process ended, perhaps for lack of memory: try another run") from None
        if refusal is not None:
            raise refusal
        fields: Fields = found
        return fields

    def begin(self) -> Connection:
        """Start the process, unless it was started before, and return the pipe to it."""
        with self._beginning:
            if self._pipe is None:
                self._pipe, theirs = multiprocessing.Pipe()
                make = self._context.Process  # type: ignore[attr-defined]  # all contexts have Process
                self._process = make(target=_serve, args=(theirs, self._seconds), daemon=True)
                self._process.start()
                theirs.close()
            return self._pipe

    def end(self) -> None:
        self.is_alive = False
        if self._process is not None:
            self._process.kill()
            self._process.join()
        if self._pipe is not None:
            with suppress(OSError):
                self._pipe.close()


def _forget(exchange: asyncio.Future[Fields]) -> None:
    """Retrieve the exception of an abandoned question, so that asyncio does not report it."""
    if not exchange.cancelled():
        exchange.exception()


def _serve(pipe: Connection, seconds: float) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server handles Ctrl-C; its end closes the pipe
    while True:
        try:
            task, given = pipe.recv()
        except (EOFError, OSError):
            return
        if sys.platform != "win32":
            signal.setitimer(signal.ITIMER_REAL, seconds + 5.0)  # ends the process even if the server was killed
        found: Fields | None = None
        refusal: Exception | None = None
        try:
            found = task(*given)
        except (ValueError, ArithmeticError, OSError) as error:
            refusal = error if isinstance(error, BadArgument) else ValueError(str(error))
        except MemoryError:
            refusal = ValueError(
                "the run needs more memory than this machine has: describe it with fewer distinct steps"
            )
        except Exception as error:  # a bug must not end the process
            refusal = RuntimeError(f"{type(error).__name__}: {error}")
        if sys.platform != "win32":
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        with suppress(OSError):
            pipe.send((found, refusal))
