"""CSV with a column of clients: what its cells become, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpd import FedpdError
from fedpd.data import Federated, csv

TEXT = """hospital,age,weight,note,outcome,part
01,50,70.5,"a, b",1,train
1,60,80,c,0,train
01,70,90.25,d,0,test
"""


def load(folder: Path, text: str = TEXT, **options: Any) -> Federated:
    (folder / "patients.csv").write_text(text)
    given = {"client": "hospital", "features": ["age", "weight"], "label": "outcome"} | options
    return csv(folder / "patients.csv", **given)


def test_rows_by_client(tmp_path: Path) -> None:
    data = load(tmp_path, split="part")
    assert data.name == "patients"
    assert data.names == ("01", "1")  # names are texts
    assert data.train[0]["x"].tolist() == [[50.0, 70.5]]
    assert data.train[0]["x"].dtype == np.float64
    assert data.test[0]["y"].tolist() == [0]


def test_one_column_of_whole_numbers(tmp_path: Path) -> None:
    x = load(tmp_path, features="age").train[0]["x"]
    assert (x.dtype, x.tolist()) == (np.int32, [[50], [70]])


def test_all_other_columns_another_delimiter_and_a_folder(tmp_path: Path) -> None:
    text = "outcome;hospital;age;dose\nyes;north;50;0.5\nno;south;60;0.25\n"
    data = load(tmp_path, text, features=None, delimiter=";")
    assert data.train[1]["x"].tolist() == [[60.0, 0.25]]
    assert data.label_names == ("no", "yes")
    (tmp_path / "more.csv").write_text("outcome;hospital;age;dose\nno;west;40;0.125\n")
    whole = csv(tmp_path, client="hospital", label="outcome", delimiter=";")
    assert whole.names == ("west", "north", "south")  # files in the order of their names


def test_large_whole_numbers_never_wrap(tmp_path: Path) -> None:
    text = f"hospital,age,weight,outcome\na,3000000000,{2**40},0\nb,1,2,1\n"
    with pytest.raises(FedpdError, match=r"range of x = \(3000000000, 1099511627776\): do not fit into int32"):
        load(tmp_path, text)
    assert load(tmp_path, text, dtype=np.float64).train[0]["x"].tolist() == [[3e9, 2.0**40]]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"client": "hospitl"}, "column = 'hospitl': there is no such column. Did you mean 'hospital'"),
        ({"features": None}, "type of column 'note' = 'text': must be numbers. Turn it into numbers"),
        ({"delimiter": ";"}, "column = 'hospital': there is no such column"),
        (
            {"features": ["age", "weight", "age"]},
            r"features = .*: names the column 'age' twice\. Name",
        ),
        ({"label": ["outcome", "outcome"], "classes": False}, "label = .*: names the column 'outcome' twice"),
        ({"encoding": "utf-9"}, "encoding = 'utf-9': there is no such encoding of texts. Give e.g."),
        ({"encoding": "base64"}, "encoding = 'base64': there is no such encoding of texts"),
        ({"encoding": "utf-16"}, "is not text in utf-16, but probably in utf-8"),
        ({"delimiter": "ab"}, "delimiter = 'ab': must be one ASCII character"),
        ({"text": "hospital,age,weight,outcome\na,1,,0\n"}, "column 'weight': row 0 is null"),
        ({"text": "hospital,age,weight,outcome\n,1,2,0\n"}, "column 'hospital': row 0 is null"),
        ({"text": "hospital,age,weight,outcome\na,1,2\n"}, "cannot be read as CSV"),
        ({"text": "hospital,age,weight,outcome\n"}, "has no rows"),
        ({"text": ""}, "cannot be read as CSV"),
    ],
)
def test_what_is_refused(tmp_path: Path, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(FedpdError, match=sentence):
        load(tmp_path, **options)


PLACES = {  # where a character that is not ASCII may stand: a name, a label, the name of a column
    "client": "klinik,age,weight,outcome\nMünchen,50,70.5,ja\nBonn,60,80,nein\n",
    "label": "klinik,age,weight,outcome\nUlm,50,70.5,müde\nBonn,60,80,wach\n",
    "header": "klinik,age,weight,outcome,größe\nUlm,50,70.5,ja,1\nBonn,60,80,nein,2\n",
}


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig"])
@pytest.mark.parametrize("place", PLACES)
def test_other_encodings_are_read_and_an_error_names_them(tmp_path: Path, place: str, encoding: str) -> None:
    text = PLACES[place].replace("ü", "€") if encoding == "cp1252" else PLACES[place]
    file = tmp_path / "patients.csv"
    file.write_bytes(text.encode(encoding))
    given: Any = {"client": "klinik", "features": ["age", "weight"], "label": "outcome"}
    found = csv(file, **given, encoding=encoding)
    (tmp_path / "plain.csv").write_text(text, encoding="utf-8")
    plain = csv(tmp_path / "plain.csv", **given)
    assert (found.names, found.label_names) == (plain.names, plain.label_names)
    assert [own["x"].tolist() for own in found.train] == [own["x"].tolist() for own in plain.train]
    if encoding == "utf-8-sig":  # its mark is allowed in UTF-8
        assert csv(file, **given).names == plain.names
        return
    named = "latin-1" if place == "header" and encoding == "cp1252" else encoding
    with pytest.raises(FedpdError, match=f"is not text in utf-8, but probably in {named}. Give encoding='{named}', or"):
        csv(file, **given)


def test_whole_numbers_in_one_file_and_decimals_in_another(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("hospital,age,outcome\nnorth,50,1\n")
    (tmp_path / "b.csv").write_text("hospital,age,outcome\nsouth,60.5,0\n")
    found = csv(tmp_path, client="hospital", label="outcome")
    assert [own["x"].tolist() for own in found.train] == [[[50.0]], [[60.5]]]
    assert found.dtype == np.float64
    (tmp_path / "c.csv").write_text("hospital,age,outcome\nwest,old,0\n")
    with pytest.raises(FedpdError, match=r"its files have columns of different types: .* Give each column numbers in"):
        csv(tmp_path, client="hospital", label="outcome")
