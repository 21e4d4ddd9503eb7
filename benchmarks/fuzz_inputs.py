"""Inputs that are nearly right: what each kind of file looks like, and how it is damaged."""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any

import numpy as np
import pandas as pd
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from PIL import Image
from scipy.io import savemat

Damage = tuple[str, float, int, bytes]
# Pieces that parsers stumble over: markers of formats, huge numbers, ends of lines, other encodings.
PIECES = (
    b"", b"\x00", b"\xff" * 8, b"\x7f\xff\xff\xff", b"\x00" * 64, b"PK\x03\x04", b"PK\x05\x06", b"\x93NUMPY", b"PAR1",
    b"\x1f\x8b", b'"', b"'", b",", b"\n", b"\r", b"\n\n", b"\t", b"nan", b"inf", b"-1", b"1e999", b"9" * 40, b"{", b"[",
    b"&a [*a,*a]", b"!!python/object:os.system", b"\xef\xbb\xbf", b"\xff\xfe", b"\xc3\x28", b"../", b"%s", b"a" * 300,
)  # fmt: skip
DAMAGE: SearchStrategy[Damage] = st.tuples(
    st.sampled_from(["truncate", "flip", "flip", "remove", "repeat", "insert", "insert", "zero", "replace"]),
    st.floats(0, 1, width=32),
    st.integers(0, 300),
    st.sampled_from(PIECES),
)


def damaged(content: bytes, damage: Damage) -> bytes:
    """The content with one kind of damage at a place given as a share of its length."""
    kind, share, size, piece = damage
    at = min(int(share * len(content)), max(len(content) - 1, 0))
    before, here, after = content[:at], content[at : at + size], content[at + size :]
    if kind == "flip" and content:
        return before + bytes([content[at] ^ (1 << size % 8)]) + content[at + 1 :]
    changed = {
        "truncate": before, "remove": before + after, "repeat": before + here * 2 + after,
        "insert": before + piece + here + after, "zero": before + bytes(len(here)) + after,
        "replace": before + piece + content[at + len(piece) :],
    }  # fmt: skip
    return changed.get(kind, content)


def broken(*originals: bytes) -> SearchStrategy[bytes]:
    """One of the originals with up to three kinds of damage."""

    def apply(drawn: tuple[bytes, list[Damage]]) -> bytes:
        content, damages = drawn
        for damage in damages:
            content = damaged(content, damage)
        return content

    return st.tuples(st.sampled_from(originals), st.lists(DAMAGE, min_size=1, max_size=3)).map(apply)


# -------------------------------------------------------------------------------------------------------------- tables

CELLS = st.one_of(
    st.sampled_from(
        ["", "red", "blue", "0", "1", "2.5", "-0", "nan", "inf", "1e999", "9" * 30, "NULL", "ü", '"', "a,b"]
    ),
    st.text(max_size=5),
    st.integers(-(2**70), 2**70).map(str),
)
HEADS = st.lists(st.sampled_from(["a1", "a2", "x", "y", "split", "mode", "", "a1", "path"]), min_size=1, max_size=6)


def good_frame(rows: int = 24) -> pd.DataFrame:
    """A table that can be used."""
    columns = {"a1": ["u", "v", "w"] * (rows // 3), "a2": ["r", "r", "b", "b"] * (rows // 4)}
    numbers = {name: np.linspace(-1, 1, rows) * scale for name, scale in (("x", 1), ("y", 3))}
    return pd.DataFrame({**columns, **numbers, "split": (["train"] * 4 + ["val", "test1"]) * (rows // 6)})


def csv_files(pictures: bool = False) -> SearchStrategy[bytes]:
    """Damaged and wholly made-up tables, if asked for with a column of pictures."""

    def table(drawn: tuple[list[str], list[list[str]]]) -> bytes:
        head, rows = drawn
        return "\n".join(",".join(line) for line in [head, *rows]).encode("utf-8", "surrogatepass")

    made = st.tuples(HEADS, st.lists(st.lists(CELLS, max_size=7), max_size=12)).map(table)
    frame = good_frame().assign(path="good.png") if pictures else good_frame()
    return st.one_of(broken(frame.to_csv(index=False).encode()), made)


def parquet_files() -> SearchStrategy[bytes]:
    """Damaged parquet files, and whole ones of unusual types."""
    odd = {
        "a1": [[1], [2]] * 12,
        "a2": [b"x", b"y"] * 12,
        "x": pd.date_range("2020-01-01", periods=24),
        "y": [None] * 24,
    }
    frames = [good_frame(), pd.DataFrame(odd), good_frame().astype({"a1": "category"}), good_frame().iloc[:0]]
    return st.one_of(broken(*map(_parquet, frames)), st.sampled_from([*map(_parquet, frames)]))


def _parquet(frame: pd.DataFrame) -> bytes:
    file = io.BytesIO()
    frame.to_parquet(file)
    return file.getvalue()


def npz_files() -> SearchStrategy[bytes]:
    """Damaged archives, and whole ones of arrays of any type and shape."""
    kinds = st.sampled_from(["f4", "f8", "f2", "i1", "i8", "u1", "u8", "b1", "c8", "U3", "S3", "M8[s]", "m8[s]", "V4"])
    shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple) | st.just((24, 3)) | st.just((24,))
    arrays = st.tuples(kinds, shapes).map(lambda drawn: np.zeros(drawn[1], dtype=drawn[0]))
    good = {"x": np.random.default_rng(0).normal(size=(24, 3)), "a1": np.arange(24) % 3, "a2": np.arange(24) % 2}
    changes = st.dictionaries(st.sampled_from(["x", "a1", "a2", "other"]), arrays, max_size=3)
    headers = broken(_npy(good["x"]), _npy(good["a1"])).map(lambda member: _zip({"x.npy": member, "a1.npy": member}))
    return st.one_of(broken(_npz(good), _npz({**good, "x": good["x"].astype("u1")})), headers,
                     changes.map(lambda changed: _npz({**good, **changed})))  # fmt: skip


def _npz(arrays: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


# -------------------------------------------------------------------------------------------------------- other formats


def images() -> SearchStrategy[bytes]:
    """Damaged pictures in eight formats, and text."""
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (9, 7, 3), dtype=np.uint8))
    originals = []
    for name in ("png", "jpeg", "gif", "bmp", "tiff", "webp", "ppm", "tga"):
        file = io.BytesIO()
        picture.save(file, name)
        originals.append(file.getvalue())
    return st.one_of(broken(*originals), broken(originals[0]), st.binary(max_size=40))


def idx_files() -> SearchStrategy[bytes]:
    """Damaged idx files of pictures."""
    pictures = np.random.default_rng(0).integers(0, 255, (20, 28, 28), dtype=np.uint8)
    head = b"\x00\x00\x08\x03" + b"".join(n.to_bytes(4, "big") for n in pictures.shape)
    return broken(head + pictures.tobytes(), head)


def mat_files() -> SearchStrategy[bytes]:
    """Damaged MATLAB files, compressed and not."""
    originals = []
    for compressed in (True, False):
        file = io.BytesIO()
        savemat(
            file, {"X097_DE_time": np.zeros((50, 1)), "X097RPM": 1797, "s": {"a": [1, "b"]}}, do_compression=compressed
        )
        originals.append(file.getvalue())
    return broken(*originals)


def archives() -> SearchStrategy[bytes]:
    """Damaged zip files, and whole ones with members that lead elsewhere."""
    names = st.lists(
        st.sampled_from(["a.txt", "b/c.txt", "../evil", "/evil", "C:\\evil", "..\\evil", "a.txt/", "a.txt/b",
                         ".", "..", "\x00", "n" * 300, "b", "con", "ü/ö"]),
        min_size=1, max_size=5,
    )  # fmt: skip
    made = st.tuples(names, st.sampled_from([b"text", b"\x00" * 100_000])).map(
        lambda drawn: _zip(dict.fromkeys(drawn[0], drawn[1]))
    )
    good = _zip({"a.txt": b"text" * 50, "b/c.txt": b"more"})
    return st.one_of(broken(good), broken(good), made)


def _zip(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in members.items():
            packed.writestr(name, content)
    return file.getvalue()


# -------------------------------------------------------------------------------------------------------------- configs

VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**66), 2**66), st.floats(), st.text(max_size=6),
        st.sampled_from(["1e3", "nan", "~", "Toy", "codid_lightning.CoDID", "os.system", "/", "x" * 300]),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
BOMBS = (
    "a: &a [x,x,x,x,x,x,x,x,x]\n"
    + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(8)),
    "a: &a {b: *a}\n", "&x [*x]", "[" * 3000, "{a: " * 2000, "- " * 3000, "overlays: bomb.yaml", "overlays: [[]]",
    "overlays: {a: b}", "overlays: /", "? [a]\n: b", "2020-01-01: x", "!!binary x", "!!set {a}", "a: 1\na: 2", "%",
    "--- 1\n--- 2", "data: .", "model: /dev/null", "data: {class_path: [1]}", "1: 2", "null: 3", "config: config.yaml",
)  # fmt: skip


def configs(good: dict[str, Any]) -> SearchStrategy[bytes]:
    """A config with a value of the wrong type at any key, damaged text, and bombs."""
    paths = list(_paths(good))

    def changed(drawn: tuple[tuple[str, ...], Any]) -> bytes:
        path, value = drawn
        content = json.loads(json.dumps(good))
        place = content
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        return json.dumps(content).encode()

    wrong = st.tuples(st.sampled_from(paths), VALUES).map(changed)
    return st.one_of(wrong, wrong, broken(json.dumps(good, indent=1).encode()), st.sampled_from(BOMBS).map(str.encode))


def _paths(content: dict[str, Any], before: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for key, value in content.items():
        found.append((*before, key))
        if isinstance(value, dict):
            found += _paths(value, (*before, key))
    return found


def json_files(content: dict[str, Any]) -> SearchStrategy[bytes]:
    """A JSON file with a value of the wrong type, or damaged text."""
    wrong = st.tuples(st.sampled_from(sorted(content)), VALUES).map(
        lambda d: json.dumps({**content, d[0]: d[1]}).encode()
    )
    text = json.dumps(content, indent=2).encode()
    return st.one_of(wrong, broken(text), st.sampled_from([b"", b"[]", b"3", b"null", b"[" * 5000, b"\xff\xfe"]))


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content).encode()
