"""Whatever is done to a store, it is refused in one sentence and left alone, or says the very same as before."""

import pytest

import lastiterate as li
from lastiterate.data.files import BadFile
from tests.auditing.stores.helpers import contents
from tests.tools import malformed

KINDS = malformed.kinds()
EMPTY = {"emptied"}  # to an audit an empty file is a new store
HARMLESS = {
    "cut by a byte",
    "crafted.chunk_size: 5",
}  # a byte that nothing uses; of a finished audit nothing is trained


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """Of a finished audit and of an unfinished one, what they hold, and what they say."""
    folder = tmp_path_factory.mktemp("whole")
    done, begun = malformed.finished(folder / "done.sqlite"), malformed.unfinished(folder / "begun.sqlite")
    return done.read_bytes(), begun.read_bytes(), malformed.outcome(done), malformed.outcome(begun)


@pytest.mark.parametrize("kind", KINDS)
def test_a_malformed_store_is_refused_in_a_sentence_and_nothing_changes(tmp_path, stores, kind):
    done, begun, *whole = stores
    for content, said in zip((done, begun), whole, strict=True):
        path = tmp_path / "s.sqlite"
        path.write_bytes(content)
        KINDS[kind](path)
        before = contents(tmp_path)
        found = malformed.outcome(path)
        if found == said and kind in HARMLESS:
            continue
        assert isinstance(found, str), f"{kind} is not noticed"
        assert found.startswith((f"the store {str(path)!r} ", f"{str(path)!r} "))
        assert "\n" not in found
        assert len(found) < 400
        if kind not in EMPTY:
            with pytest.raises(BadFile) as refused:
                li.audit(malformed.RUN, malformed.train, models=malformed.MODELS, store=path)
            assert "\n" not in str(refused.value)
        assert contents(tmp_path) == before
        for file in tmp_path.iterdir():
            file.unlink()


def test_a_flipped_bit_is_noticed_or_changes_nothing(tmp_path):
    refused, same = malformed.flip_many(tmp_path, 60, seed=5)
    assert refused + same == 60
    assert refused > 0
