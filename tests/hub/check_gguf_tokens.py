"""check_gguf_tokens.py FILE FOLDER: reads the tokens of a GGUF file with the package gguf, and compares them with those
that its converter's classes read from the folder: SentencePieceVocab of a tokenizer.model (texts, scores, types), or
LlamaHfVocab of a tokenizer.json (texts, types; it has no scores). The exit status is 1 if one differs.

SentencePieceVocab takes tokens that the model's maker has defined for normal ones; here they are type 4, and their marks
are spaces, as they are when tokenizer_config.json lists them."""
import pathlib
import sys

import gguf
from sentencepiece import sentencepiece_model_pb2


def pieces(folder):
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString((folder / "tokenizer.model").read_bytes())
    for piece, (text, score, kind) in zip(model.pieces, gguf.SentencePieceVocab(folder).all_tokens()):
        if piece.type == 4:
            yield text.decode().replace("\u2581", " "), 4, score
        else:
            yield text.decode(), int(kind), score


def expected(folder):
    if (folder / "tokenizer.model").exists():
        return list(pieces(folder))
    return [(text.decode(), int(kind), None) for text, _, kind in gguf.LlamaHfVocab(folder).all_tokens()]


def main(path, folder):
    reader = gguf.GGUFReader(path)
    keys = ("tokens", "token_type", "scores")
    got = list(zip(*(reader.get_field(f"tokenizer.ggml.{key}").contents() for key in keys)))
    wanted = expected(pathlib.Path(folder))
    wanted += [(f"[PAD{i}]", 5, -10000) for i in range(len(wanted), len(got))]
    wrong = [(i, g, w) for i, (g, w) in enumerate(zip(got, wanted)) if g[:2] != w[:2] or w[2] not in (None, g[2])]
    for i, g, w in wrong:
        print(f"token {i}: {g}, not {w}")
    return len(wrong) > 0 or len(got) < 400 or len(got) != len(wanted)


sys.exit(main(*sys.argv[1:]))
