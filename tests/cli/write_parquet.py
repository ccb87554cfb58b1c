#!/usr/bin/env python3
"""Writes pairs of files NAME.parquet and NAME.jsonl, which hold the same rows, into the current folder.

It needs Python's package pyarrow. The rows are drawn by a fixed seed; the pairs differ in what their rows are, and how
Parquet stores them: packed by what, with dictionaries or not, in how many groups of rows.
"""

import datetime
import json
import random

import pyarrow
import pyarrow.parquet

draw = random.Random(7)
WORDS = ["wind", "sea", "a \"quoted\" word", "back\\slash", "two\nlines", "tab\t", "Grüße", "雨", "🦜", "\x01", ""]


def text(most=12):
    return " ".join(draw.choice(WORDS) for _ in range(draw.randint(1, most)))


def messages():
    turns = [{"role": "user", "content": text()}, {"role": "assistant", "content": text()}]
    return turns * draw.randint(1, 3)


def write(name, rows, schema=None, pages=None, **options):
    """`pages`: rows as the JSON has them, where they differ."""
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), name + ".parquet", **options)
    with open(name + ".jsonl", "w", encoding="utf-8") as out:
        for row in pages or rows:
            out.write(json.dumps(row, ensure_ascii=draw.random() < 0.5) + "\n")


def write_kinds():
    write("messages", [{"messages": messages(), "id": i} for i in range(300)], row_group_size=37, compression="snappy")
    write("prompt", [{"prompt": text(), "completion": text(), "score": i / 7} for i in range(90)], compression="zstd",
          row_group_size=10)
    write("alpaca", [{"instruction": text(), "input": draw.choice(["", text()]), "output": text()} for _ in range(80)],
          compression="gzip", use_dictionary=False)
    write("sharegpt", [{"conversations": [{"from": "human", "value": text()}, {"from": "gpt", "value": text()}],
                        "source": draw.choice(["a", "b"])} for _ in range(70)], compression="none", row_group_size=69)
    write("pairs", [{"prompt": text(), "chosen": text(), "rejected": text()} for _ in range(50)], row_group_size=1)
    write("text", [{"text": text(200)} for _ in range(400)], row_group_size=111, data_page_size=512)
    write("empty", [{"text": "one"}], row_group_size=1)


def with_message(more):
    return {"messages": [{"role": "user", "content": "?", "more": more}, {"role": "assistant", "content": "!", "more": None}]}


def write_types():
    """A message may have members of many types, which a template can see."""
    kinds = {
        "i8": pyarrow.int8(), "u64": pyarrow.uint64(), "f32": pyarrow.float32(), "f64": pyarrow.float64(),
        "yes": pyarrow.bool_(), "nothing": pyarrow.null(), "large": pyarrow.large_string(),
        "several": pyarrow.list_(pyarrow.list_(pyarrow.int16())), "fixed": pyarrow.list_(pyarrow.int32(), 2),
        "named": pyarrow.map_(pyarrow.string(), pyarrow.int64()),
        "of": pyarrow.dictionary(pyarrow.int32(), pyarrow.string()),
        "at": pyarrow.timestamp("us"), "day": pyarrow.date32(),
        "inner": pyarrow.struct([("a", pyarrow.string()), ("b", pyarrow.list_(pyarrow.float64()))]),
        "raw": pyarrow.binary()}
    rows = []
    for i in range(60):
        row = {
            "i8": -i, "u64": 2**63 + i, "f32": i / 4, "f64": i / 3, "yes": i % 2 == 0, "nothing": None,
            "large": text(), "several": [[1, i], [], [2]], "fixed": [i, 2], "named": [("k", i), ("l", 0)],
            "of": draw.choice(["x", "y"]), "at": datetime.datetime(2024, 2, 29, 1, 2, 3, 4000 * i),
            "day": datetime.date(1969, 12, 1 + i % 9), "inner": {"a": text(), "b": [0.1, 1e300]}, "raw": b"raw"}
        for key in row:
            if draw.random() < 0.2:
                row[key] = None
        rows.append(row)
    pages = [dict(row) for row in rows]
    epoch = datetime.datetime(1970, 1, 1)
    for page in pages:
        if page["at"]:
            page["at"] = (page["at"] - epoch) // datetime.timedelta(milliseconds=1)
        if page["day"]:
            page["day"] = (page["day"] - epoch.date()) // datetime.timedelta(milliseconds=1)
        if page["named"] is not None:
            page["named"] = dict(page["named"])
        if page["raw"]:
            page["raw"] = page["raw"].decode()
    message = pyarrow.struct([("role", pyarrow.string()), ("content", pyarrow.string()),
                              ("more", pyarrow.struct(list(kinds.items())))])
    write("types", [with_message(row) for row in rows], pyarrow.schema([("messages", pyarrow.list_(message))]),
          [with_message(page) for page in pages], row_group_size=13)


def write_bad():
    """Files that are refused: write NAME.parquet alone."""
    table = pyarrow.table({"text": ["one", "two"], "price": pyarrow.array([1, 2], pyarrow.decimal128(9, 2))})
    pyarrow.parquet.write_table(table, "decimal.parquet")
    table = pyarrow.table({"text": ["one", None, "three"]})
    pyarrow.parquet.write_table(table, "null.parquet")
    table = pyarrow.table({"text": pyarrow.array([b"one", b"\xff\xfe"], pyarrow.binary())})
    pyarrow.parquet.write_table(table, "latin.parquet")
    with open("text.parquet", "rb") as whole:
        data = whole.read()
    with open("cut.parquet", "wb") as out:
        out.write(data[:-100])
    with open("damaged.parquet", "wb") as out:
        out.write(data[:2000] + bytes(2000) + data[4000:])


write_kinds()
write_types()
write_bad()
