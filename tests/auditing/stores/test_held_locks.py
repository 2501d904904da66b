"""Only a held lock means that somebody writes to a store; a lock file that was left behind does not."""

import threading

from lastiterate.auditing.stores.store_file import WriterLock, is_written


def test_looking_keeps_no_writer_out(tmp_path):
    store, done = tmp_path / "s.sqlite", threading.Event()

    def look():
        while not done.is_set():
            is_written(store)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for _ in range(200):
            WriterLock(store).release()
    finally:
        done.set()
        looking.join()
