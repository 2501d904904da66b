"""Stores as no audit has written them, of about a hundred kinds, and random flips of their bits."""

import json
import math
import os
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

import lastiterate as li
from lastiterate.auditing.load_evidence import export, read
from lastiterate.auditing.stores.store import Store
from lastiterate.data.files import BadFile

RUN = li.DPSGD(30, [0.1] * 30, 1.0, optimizer=li.SGD(0.02, momentum=0.5))
MODELS = 12
Damage = Callable[[Path], None]


CALLS = {"left": math.inf}  # a trainer's own state; not part of its source


def train(seed: int, canary: bool) -> float:
    """A trainer that costs nothing, and is interrupted after as many calls as are left."""
    from tests.tools import malformed  # what is imported from tests is compared by its source alone

    if not malformed.CALLS["left"]:
        raise KeyboardInterrupt
    malformed.CALLS["left"] -= 1
    return seed % 1000 / 300 + canary


def finished(path: Path, calls: float = math.inf) -> Path:
    """A store of a whole audit, or of the first calls of it."""
    CALLS["left"] = calls
    with suppress(KeyboardInterrupt):
        li.audit(RUN, train, models=MODELS, store=path)
    CALLS["left"] = math.inf
    return path


def sql(*statements: str, **pragmas: int) -> Damage:
    """Damage by SQL, with the schema open to writing."""

    def damage(path: Path) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.execute("PRAGMA writable_schema = ON")
            database.execute("PRAGMA ignore_check_constraints = ON")
            for name, value in pragmas.items():
                database.execute(f"PRAGMA {name} = {value}")
            for statement in statements:
                database.execute(statement)

    return damage


def checksum(name: str, content: bytes) -> str:
    return blake2b(name.encode() + b"\0" + content, digest_size=16).hexdigest()


def value(name: str, text: str, right: bool = True) -> Damage:
    """Another value, and the checksum that fits it, as somebody would write it on purpose."""

    def damage(path: Path) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            told = checksum(name, text.encode()) if right else "0" * 32
            database.execute("INSERT OR REPLACE INTO audit VALUES (?, ?, ?)", (name, text, told))

    return damage


def field(name: str, *keys: str, to: Any) -> Damage:
    """Another value at one place in a value, with the right checksum."""

    def damage(path: Path) -> None:
        with closing(sqlite3.connect(path)) as database:
            ((text,),) = database.execute("SELECT value FROM audit WHERE name = ?", (name,)).fetchall()
        whole = json.loads(text)
        inner = whole
        for key in keys[:-1]:
            inner = inner[key]
        if to is ...:
            del inner[keys[-1]]
        else:
            inner[keys[-1]] = to
        value(name, json.dumps(whole))(path)

    return damage


def cut(share: float) -> Damage:
    return lambda path: os.truncate(path, int(path.stat().st_size * share))


def written(at: int, content: bytes) -> Damage:
    def damage(path: Path) -> None:
        with path.open("r+b") as file:
            file.seek(at)
            file.write(content)

    return damage


ENDLESS = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT n"


def kinds() -> dict[str, Damage]:
    """Every kind by its name."""
    return {**_tables(), **_trials(), **_chunks(), **_values(), **_files(), **dict(_fields())}


def _tables() -> dict[str, Damage]:
    """Other tables than ours."""
    return {
        "column added": sql("ALTER TABLE trials ADD COLUMN more TEXT"),
        "table added": sql("CREATE TABLE mine (x)"),
        "trigger": sql("CREATE TRIGGER t AFTER INSERT ON trials BEGIN UPDATE trials SET score = 1e9; END"),
        "view for trials": sql(
            "DROP TABLE trials", f"CREATE VIEW trials AS {ENDLESS} AS model, 'in' AS world, 0.0 AS score FROM r"
        ),
        "view for audit": sql("DROP TABLE audit", f"CREATE VIEW audit AS {ENDLESS} AS name, '1' AS value FROM r"),
        "virtual table": sql("CREATE VIRTUAL TABLE f USING fts4(x)"),
        "schema of no SQL": sql("UPDATE sqlite_master SET sql = 'nonsense' WHERE name = 'trials'"),
        "schema null": sql("UPDATE sqlite_master SET sql = NULL WHERE name = 'trials'"),
        "schema of another root": sql("UPDATE sqlite_master SET rootpage = 1 WHERE name = 'trials'"),
        "schema twice": sql("INSERT INTO sqlite_master SELECT * FROM sqlite_master WHERE name = 'audit'"),
        "other application": sql(application_id=7),
        "format 0": sql(user_version=0),
    }


def _trials() -> dict[str, Damage]:
    """Other trials than were stored."""
    return {
        "model beyond the plan": sql(f"UPDATE trials SET model = {MODELS} WHERE model = 0"),
        "model 2**62": sql(f"UPDATE trials SET model = {2**62} WHERE model = 0"),
        "model negative": sql("UPDATE trials SET model = -1 WHERE model = 0"),
        "model a text": sql("UPDATE trials SET model = 'x' WHERE model = 0"),
        "world <b>": sql("UPDATE trials SET world = '<b>' WHERE model = 0 AND world = 'out'"),
        "world IN": sql("UPDATE trials SET world = 'IN' WHERE world = 'in'"),
        "world a blob": sql("UPDATE trials SET world = x'696e' WHERE model = 0 AND world = 'in'"),
        "worlds exchanged": sql(
            "UPDATE trials SET world = 'x' WHERE world = 'in'",
            "UPDATE trials SET world = 'in' WHERE world = 'out'",
            "UPDATE trials SET world = 'out' WHERE world = 'x'",
        ),
        "score another": sql("UPDATE trials SET score = score + 1e-15 WHERE model = 0"),
        "score 1e308": sql("UPDATE trials SET score = 1e308 WHERE model = 0"),
        "score infinite": sql("UPDATE trials SET score = 9e999 WHERE model = 0"),
        "score a text": sql("UPDATE trials SET score = 'nan' WHERE model = 0"),
        "score no UTF-8": sql("UPDATE trials SET score = CAST(x'ff' AS TEXT) WHERE model = 0"),
        "quality infinite": sql("UPDATE trials SET quality = 9e999 WHERE model = 0"),
        "seconds negative": sql("UPDATE trials SET seconds = -1 WHERE model = 0"),
    }


def _chunks() -> dict[str, Damage]:
    """Other chunks, or other versions of what trained them."""
    return {
        "trial in no chunk": sql("UPDATE trials SET chunk = 1000 WHERE model = 0"),
        "trial in another chunk": sql("UPDATE trials SET chunk = 1"),
        "trial removed": sql("DELETE FROM trials WHERE model = 0 AND world = 'in'"),
        "trials removed": sql("DELETE FROM trials"),
        "chunk removed": sql("DELETE FROM chunks WHERE number = 3"),
        "chunk's checksum": sql("UPDATE chunks SET checksum = 'x' WHERE number = 3"),
        "chunk's software": sql("UPDATE chunks SET software = 99 WHERE number = 3"),
        "chunk numbered otherwise": sql("UPDATE chunks SET number = 1000 WHERE number = 3"),
        "software removed": sql("DELETE FROM software"),
        "software another": sql("UPDATE software SET versions = '{}'"),
        "software no JSON": sql("UPDATE software SET versions = '{'"),
    }


def _values() -> dict[str, Damage]:
    """Other values than were stored, of every kind of text."""
    found: dict[str, Damage] = {
        "crafted removed": sql("DELETE FROM audit WHERE name = 'crafted'"),
        "record removed": sql("DELETE FROM audit WHERE name = 'record'"),
        "identity removed": sql("DELETE FROM audit WHERE name = 'identity'"),
        "seconds removed": sql("DELETE FROM audit WHERE name = 'seconds'"),
        "audit emptied": sql("DELETE FROM audit"),
        "value added": value("more", "1"),
        "value a blob": sql("UPDATE audit SET value = x'7b7d' WHERE name = 'record'"),
        "value no UTF-8": sql("UPDATE audit SET value = CAST(x'ff' AS TEXT) WHERE name = 'record'"),
    }
    for name in ("identity", "record", "crafted", "seconds"):
        wrong = {"no JSON": "{", "nothing": "", "null": "null", "a list": "[1, 2]"}
        wrong |= {"NaN": "NaN", "deep": "[" * 50_000 + "]" * 50_000}
        found |= {f"{name}: {what}": value(name, text) for what, text in wrong.items()}
        found[f"{name}: checksum"] = value(name, "{}", right=False)
    return found


def _files() -> dict[str, Damage]:
    """Other bytes than SQLite wrote."""
    return {
        "emptied": cut(0.0),
        "cut to a byte": lambda path: os.truncate(path, 1),
        "cut to half": cut(0.5),
        "cut by a byte": lambda path: os.truncate(path, path.stat().st_size - 1),
        "header": written(0, b"X"),
        "page size": written(16, b"\x03\x03"),
        "page of zeros": written(8192, bytes(4096)),
        "first page of zeros": written(100, bytes(3996)),
    }


def _fields() -> Iterator[tuple[str, Damage]]:
    """Every field of the record and of what was crafted, of other types, or gone."""
    places = {
        "record": "run run.steps run.sample_rate run.noise_multiplier run.sampling run.clip_norm run.optimizer "
        "run.optimizer.learning_rate design design.kind design.models data quality setup",
        "crafted": "facts expected expected.kind words words.attack words.unit words.caveats quality_before chunk_size",
    }
    for name, paths in places.items():
        for path in paths.split():
            for what, to in (("gone", ...), ("a number", -7.5), ("an object", {"x": None})):
                if what == "an object" and path in ("facts", "setup"):
                    continue  # they may be any object, and this attack needs none
                if what == "gone" and path.endswith(("sampling", "clip_norm", "optimizer", "learning_rate")):
                    continue  # that is another run, as sound as this one
                yield f"{name}.{path}: {what}", field(name, *path.split("."), to=to)
    yield "record.design.models: huge", field("record", "design", "models", to=10**300)
    yield "record.design.kind: one-model", field("record", "design", to={"kind": "one-model", "models": 24, "seed": 1})
    yield "record.design.seed: huge", field("record", "design", to={"kind": "one-model", "models": 2**60, "seed": 1})
    yield "crafted.chunk_size: 5", field("crafted", "chunk_size", to=5)
    yield "crafted.chunk_size: huge", field("crafted", "chunk_size", to=10**30)


def flip(path: Path, generator: random.Random) -> None:
    """One bit at a random place, of a byte that is not in unused space any more often than others are."""
    content = bytearray(path.read_bytes())
    content[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
    path.write_bytes(content)


def outcome(path: Path) -> str | dict[str, Any]:
    """What a report and an export of it say: one sentence, or the numbers."""
    try:
        result = read(path)
        with Store.read(path) as store:
            export(store, path.with_suffix(".csv"))
        table = path.with_suffix(".csv").read_text()
        return {"estimates": result.estimates, "predictions": result.predictions, "table": table}
    except BadFile as error:
        return str(error)
    except ValueError as error:
        if "has no trial yet" in str(error):
            return str(error)
        raise
    finally:
        path.with_suffix(".csv").unlink(missing_ok=True)


def flip_many(folder: Path, count: int, seed: int) -> tuple[int, int]:
    """How many flipped bits are refused in a sentence and how many have no effect; none does anything else."""
    path = finished(folder / "s.sqlite")
    whole, content, generator = outcome(path), path.read_bytes(), random.Random(seed)
    refused = same = 0
    for _ in range(count):
        path.write_bytes(content)
        flip(path, generator)
        before = path.read_bytes()
        found = outcome(path)
        changed = path.read_bytes() != before or (found != whole and not isinstance(found, str))
        assert not changed, f"a flipped bit changed the result, or the file: {found}"
        refused, same = refused + isinstance(found, str), same + (found == whole)
    return refused, same
