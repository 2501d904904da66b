"""Files of texts and dialogues, each format from a file as small as it can be."""

import json

import pytest

from lastiterate.lm.texts import Texts, read_texts, split_texts
from tests.data.writers import refusal

CONVAI2 = (
    "1 your persona: i like x.\n"
    "2 partner's persona: i like y.\n"
    "3 hello ?\thi .\t\tno .|hi .\n"
    "4 and you ?\tme too .\t\tme too .|never .\n"
    "1 your persona: i sing.\n"
    "2 __SILENCE__\twho is there ?\t\ta|b\n"
)


def write(folder, content, name="some.txt"):
    path = folder / name
    path.write_bytes(content.encode())
    return path


def write_lines(folder, *records, name="some.jsonl"):
    return write(folder, "".join(json.dumps(record) + "\n" for record in records), name)


def test_convai2_has_one_text_a_dialogue_without_candidates_and_personas(tmp_path):
    texts = read_texts(write(tmp_path, CONVAI2))
    assert texts == Texts(("hello ?\nhi .\nand you ?\nme too .", "who is there ?"), "dialogue")


@pytest.mark.parametrize("key", ["turns", "dialog", "utterances"])
def test_json_lines_with_turns_are_dialogues(tmp_path, key):
    texts = read_texts(write_lines(tmp_path, {key: ["a ", "", "b"]}, {"id": 3, key: ["c\u2028d"]}))
    assert texts == Texts(("a\nb", "c\u2028d"), "dialogue")


def test_json_lines_with_messages_keep_their_roles(tmp_path):
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": " b"}]
    assert read_texts(write_lines(tmp_path, {"messages": messages})) == Texts(("user: a\nassistant: b",), "dialogue")


def test_plain_texts_are_separated_by_blank_lines(tmp_path):
    path = write(tmp_path, "\ufeff\na\n b\n\n \t\n\nc\r\n\n")
    assert read_texts(path) == Texts(("a\n b", "c"), "text")


BROKEN = {
    '{"text": "a"}\n{"text": \n': "got a broken one on line 2",
    '{"text": "a"}\n[1]\n': "got a list on line 2",
    '{"text": "a"}\n\n{"words": "b", "id": 1}\n': "one of text, turns, dialog, utterances, messages, "
    "got one with words, id on line 3",
    '{"text": 3}': "as text a string, got a int on line 1",
    '{"turns": "a b"}': "as turns a list of strings, got a str on line 1",
    '{"turns": ["a", null]}': "as turns a list of strings, got a NoneType on line 1",
    '{"messages": ["a"]}': "as messages a list of objects with the strings role and content, got a list on line 1",
    '{"messages": [{"role": "user", "content": [1]}]}': "role and content, got a list on line 1",
    '{"turns": ["a"], "your_persona": "b"}': "as your_persona a list of strings, got a str on line 1",
    '{"text": "a"}\n{"text": "  "}': "no text without words, got one on line 2",
    '{"turns": []}': "no dialogue without words, got one on line 1",
    '{"messages": [{"role": "user", "content": ""}]}': "no dialogue without words, got one on line 1",
    '{"text": "a"}\n{"turns": ["b"]}': "either dialogues or texts, got a dialogue on line 2 and a text on line 1",
    '{"text": "\\ud800"}': "half of a surrogate pair on line 1",
    "[" * 100_000: "got a broken one on line 1",
    "": "at least one text, got an empty file",
    " \n\n": "at least one text, got an empty file",
}


@pytest.mark.parametrize(("content", "words"), BROKEN.items(), ids=range(len(BROKEN)))
def test_what_is_wrong_with_a_file_is_said_with_its_line(tmp_path, content, words):
    path = write(tmp_path, content, "some.jsonl")
    message = refusal(read_texts, path)
    assert words in message
    assert str(path) in message


def test_a_held_out_share_is_the_same_every_time_and_leaves_the_rest():
    texts = Texts(tuple(f"text {number}" for number in range(50)), "dialogue")
    train, held_out = split_texts(texts, 0.2, seed=7)
    assert (len(train), len(held_out)) == (40, 10)
    assert sorted(train.texts + held_out.texts) == sorted(texts.texts)
    assert [list(side.texts) for side in (train, held_out)] == [
        sorted(side.texts, key=texts.texts.index) for side in (train, held_out)
    ]
    assert train.unit == held_out.unit == "dialogue"
    assert split_texts(texts, 0.2, seed=7) == (train, held_out)
    assert held_out.texts[:3] == ("text 3", "text 7", "text 19")
    assert split_texts(texts, 0.2, seed=8)[1] != held_out


def test_texts_of_json_lines_have_an_owner_if_asked(tmp_path):
    file = tmp_path / "d.jsonl"
    records = [{"text": f"text {place}", "user": user} for place, user in enumerate(["a", 7, "a", "7", "b", "a"])]
    file.write_text("\n".join(json.dumps(record) for record in records), encoding="utf-8")
    texts = read_texts(file, by="user")
    assert texts.people == ("a", "7", "a", "7", "b", "a")
    assert texts.most_of_a_person == 3
    assert texts.at_most(2).texts == ("text 0", "text 1", "text 2", "text 3", "text 4")
    kept, held = split_texts(texts, 0.3, 0)
    both = {(text, person) for side in (kept, held) for text, person in zip(side.texts, side.people, strict=True)}
    assert both == set(zip(texts.texts, texts.people, strict=True))
    assert read_texts(file).people is None
