#!/usr/bin/env python3
"""Writes llm_c_gpt2.bin and llm_c_llama3.bin: token files as llm.c's write_datafile writes them.

The function is in llm.c's dev/data/data_common.py. It writes a header of 256 int32 (magic, version, number of tokens,
zeros) and then the tokens. With numpy and a clone of llm.c, `llm_c.py PATH/TO/llm.c` calls that very function; the
bytes are the same.
"""
import array
import pathlib
import sys

HERE = pathlib.Path(__file__).parent
FILES = {  # name: description in llm.c, magic, version, array type of the tokens, tokens
    "llm_c_gpt2.bin": ("gpt-2", 20240520, 1, "H", [50256, 15496, 11, 995, 0, 65535, 1]),
    "llm_c_llama3.bin": ("llama-3", 20240801, 7, "I", [128000, 9906, 11, 1917, 0, 128255]),
}


def write(path, magic, version, kind, tokens):
    header = array.array("i", [magic, version, len(tokens)] + [0] * 253)
    path.write_bytes(header.tobytes() + array.array(kind, tokens).tobytes())


def main():
    for name, (description, magic, version, kind, tokens) in FILES.items():
        if len(sys.argv) > 1:
            sys.path.insert(0, sys.argv[1] + "/dev/data")
            import data_common

            data_common.write_datafile(str(HERE / name), tokens, description)
        else:
            write(HERE / name, magic, version, kind, tokens)


if __name__ == "__main__":
    main()
